//! The macros behind layouts: a struct of bytes, and the bit fields inside its words.
//!
//! Other crates of layouts use the exported ones: [`bit_fields!`](crate::bit_fields),
//! [`impl_bits!`](crate::impl_bits), [`open_enum!`](crate::open_enum) and
//! [`u24_newtype!`](crate::u24_newtype). Those need `zerocopy` among the dependencies of the crate that uses them.

use zerocopy::network_endian::{U16, U32};

use crate::packet::{FlushPlacement, FlushSelectivity};
use crate::{Lmc, Mtu, Qpn, Rate, Sl, Vl};

/// Defines a `repr(C)` layout, checks its size and alignment, and, with `mad`, makes it the layout
/// of a whole MAD.
macro_rules! layout {
    ($(#[$meta:meta])* mad $name:ident { $($body:tt)* }) => {
        layout! { $(#[$meta])* $name, 256 { $($body)* } }

        impl crate::mad::MadLayout for $name {}
    };
    ($(#[$meta:meta])* $name:ident, $size:literal { $($body:tt)* }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name { $($body)* }

        const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() == 1);

        impl Default for $name {
            /// All bytes zero.
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}

/// Defines the getter and setter of a bit field: `get, set: Type = word >> shift, width bits`.
///
/// The shift counts from the least significant bit of the big-endian word. The setter leaves the
/// word's other bits alone and drops value bits that do not fit.
#[macro_export]
macro_rules! bit_fields {
    ($($(#[$meta:meta])* $get:ident, $set:ident: $ty:ty = $field:ident >> $shift:literal, $width:literal;)*) => {
        $(
            $(#[$meta])*
            #[must_use]
            pub fn $get(&self) -> $ty {
                $crate::layout::get_bits(&self.$field, $shift, $width)
            }

            #[doc = concat!("Sets [`Self::", stringify!($get), "`]; bits that do not fit are dropped.")]
            pub fn $set(&mut self, value: $ty) {
                $crate::layout::set_bits(&mut self.$field, $shift, $width, value);
            }
        )*
    };
}

/// A big-endian word that holds bit fields.
pub trait Word {
    /// The word in host byte order.
    fn load(&self) -> u32;
    /// Replaces the word. Bits that it has no room for are dropped.
    fn store(&mut self, value: u32);
}

impl Word for u8 {
    fn load(&self) -> u32 {
        u32::from(*self)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "bits beyond the word are dropped"
    )]
    fn store(&mut self, value: u32) {
        *self = value as Self;
    }
}

impl Word for U16 {
    fn load(&self) -> u32 {
        u32::from(self.get())
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "bits beyond the word are dropped"
    )]
    fn store(&mut self, value: u32) {
        self.set(value as u16);
    }
}

impl Word for [u8; 3] {
    fn load(&self) -> u32 {
        u32::from_be_bytes([0, self[0], self[1], self[2]])
    }

    fn store(&mut self, value: u32) {
        let [_, bytes @ ..] = value.to_be_bytes();
        *self = bytes;
    }
}

impl Word for U32 {
    fn load(&self) -> u32 {
        self.get()
    }

    fn store(&mut self, value: u32) {
        self.set(value);
    }
}

/// What a bit field can hold.
pub trait Bits {
    /// The value of a field's bits.
    fn from_bits(bits: u32) -> Self;
    /// The bits of a value.
    fn to_bits(self) -> u32;
}

impl Bits for u32 {
    fn from_bits(bits: u32) -> Self {
        bits
    }

    fn to_bits(self) -> u32 {
        self
    }
}

impl Bits for bool {
    fn from_bits(bits: u32) -> Self {
        bits != 0
    }

    fn to_bits(self) -> u32 {
        u32::from(self)
    }
}

impl Bits for Qpn {
    fn from_bits(bits: u32) -> Self {
        Self::from_low_bits(bits)
    }

    fn to_bits(self) -> u32 {
        self.get()
    }
}

/// Implements [`Bits`] for quantities of at most 16 bits.
#[macro_export]
macro_rules! impl_bits {
    ($($ty:ty, $int:ty, $from:path, $get:expr;)*) => {
        $(impl $crate::layout::Bits for $ty {
            #[expect(clippy::cast_possible_truncation, reason = "no field is wider than its type")]
            fn from_bits(bits: u32) -> Self {
                $from(bits as $int)
            }

            fn to_bits(self) -> u32 {
                u32::from($get(self))
            }
        })*
    };
}

impl_bits! {
    u8, u8, core::convert::identity, core::convert::identity;
    u16, u16, core::convert::identity, core::convert::identity;
    Sl, u8, Sl::from_low_bits, Sl::get;
    Vl, u8, Vl::from_low_bits, Vl::get;
    Lmc, u8, Lmc::from_low_bits, Lmc::get;
    Mtu, u8, Mtu::new, Mtu::get;
    Rate, u8, Rate::new, Rate::get;
    FlushPlacement, u8, FlushPlacement::from_low_bits, FlushPlacement::get;
    FlushSelectivity, u8, FlushSelectivity::from_low_bits, FlushSelectivity::get;
}

const fn mask(shift: u32, width: u32) -> u32 {
    (u32::MAX >> (u32::BITS - width)) << shift
}

/// Reads `width` bits of a word.
pub fn get_bits<T: Bits>(word: &impl Word, shift: u32, width: u32) -> T {
    T::from_bits((word.load() & mask(shift, width)) >> shift)
}

/// Writes `width` bits of a word and leaves the others.
pub fn set_bits<T: Bits>(word: &mut impl Word, shift: u32, width: u32, value: T) {
    let mask = mask(shift, width);
    word.store((word.load() & !mask) | ((value.to_bits() << shift) & mask));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn setting_a_field_leaves_its_neighbours_and_drops_what_does_not_fit() {
        let mut word = 0b1111_1111_u8;
        set_bits(&mut word, 2, 3, 0b1_0010_u8);
        assert_eq!(word, 0b1110_1011);
        assert_eq!(get_bits::<u8>(&word, 2, 3), 0b010);
    }

    #[test]
    fn a_24_bit_word_is_big_endian() {
        let mut word = [0x12, 0x34, 0x56];
        assert_eq!(get_bits::<u32>(&word, 4, 20), 0x1_2345);
        set_bits(&mut word, 4, 20, 0xf_edcb_u32);
        assert_eq!(word, [0xfe, 0xdc, 0xb6]);
    }

    proptest! {
        #[test]
        fn a_field_reads_back_and_no_other_bit_changes(
            before: u32, value: u32, shift in 0_u32..32, width in 1_u32..=32
        ) {
            let width = width.min(32 - shift);
            let mut word = U32::new(before);
            set_bits(&mut word, shift, width, value);
            prop_assert_eq!(get_bits::<u32>(&word, shift, width), value & mask(0, width));
            prop_assert_eq!((word.get() ^ before) & !mask(shift, width), 0);
        }
    }
}
