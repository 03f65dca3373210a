//! A table of every layout of `ib-wire` and every field in it, down to single bits.
//!
//! The golden traces are encoded again field by field through it, and property tests show that the
//! fields of each layout cover all its bits and do not disturb each other. A layout that is missing
//! here is missed by neither; `tests/tests/wire_layouts.rs` looks for that.

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A field of a layout, or the reserved bits of one of its words.
#[derive(Debug)]
pub struct Field<T> {
    /// Its name in the code.
    pub name: &'static str,
    /// Reads it from one value with its accessor and writes it to another.
    pub copy: fn(&T, &mut T),
}

/// A layout whose fields are listed.
pub trait Fields: Copy + FromBytes + IntoBytes + KnownLayout + Immutable + Sized + 'static {
    /// The layout's name in the code.
    const NAME: &'static str;
    /// All of its fields.
    const FIELDS: &'static [Field<Self>];
}

/// Lists the fields of layouts: those that are whole bytes, those with a getter and a setter, and the
/// bits of words that no field names.
macro_rules! fields {
    ($($name:ident {
        $(fields: $($plain:ident),+;)?
        $(bits: $($get:ident/$set:ident),+;)?
        $(reserved: $($word:ident & $mask:literal),+;)?
    })*) => {
        $(
            impl $crate::fields::Fields for $name {
                const NAME: &'static str = stringify!($name);
                const FIELDS: &'static [$crate::fields::Field<Self>] = &[
                    $($($crate::fields::Field {
                        name: stringify!($plain),
                        copy: |from, to| to.$plain = from.$plain,
                    },)+)?
                    $($($crate::fields::Field {
                        name: stringify!($get),
                        copy: |from, to| to.$set(from.$get()),
                    },)+)?
                    $($($crate::fields::Field {
                        name: concat!("reserved bits of ", stringify!($word)),
                        copy: |from, to| {
                            $crate::fields::Word::copy_bits(&from.$word, &mut to.$word, $mask);
                        },
                    },)+)?
                ];
            }
        )*

        /// The layouts listed here.
        pub(super) const LAYOUTS: &[$crate::fields::Layout] =
            &[$($crate::fields::Layout::of::<$name>(),)*];
    };
}

mod cm;
mod gmp;
mod ipoib;
mod packet;
mod sa;
mod smp;

/// A word of a layout that holds bit fields.
pub(crate) trait Word {
    /// Copies the bits of `mask`.
    fn copy_bits(from: &Self, to: &mut Self, mask: u32);
}

impl Word for u8 {
    fn copy_bits(from: &Self, to: &mut Self, mask: u32) {
        let mask = Self::try_from(mask).expect("the mask fits the word");
        *to = (*to & !mask) | (from & mask);
    }
}

impl Word for U16 {
    fn copy_bits(from: &Self, to: &mut Self, mask: u32) {
        let mask = u16::try_from(mask).expect("the mask fits the word");
        *to = Self::new((to.get() & !mask) | (from.get() & mask));
    }
}

impl Word for U32 {
    fn copy_bits(from: &Self, to: &mut Self, mask: u32) {
        *to = Self::new((to.get() & !mask) | (from.get() & mask));
    }
}

/// A layout with its type erased.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The layout's name in the code.
    pub name: &'static str,
    /// Bytes of the layout.
    pub size: usize,
    reencode: fn(&[u8], &mut [u8]),
    masks: fn() -> Vec<(&'static str, Vec<u8>)>,
    copy_field: fn(usize, &[u8], &mut [u8]),
}

impl Layout {
    /// The layout of a type.
    #[must_use]
    pub const fn of<T: Fields>() -> Self {
        Self {
            name: T::NAME,
            size: size_of::<T>(),
            reencode: reencode::<T>,
            masks: masks::<T>,
            copy_field: copy_field::<T>,
        }
    }

    /// Decodes `from` and writes every field of it, and nothing else, to `to`.
    ///
    /// # Panics
    /// If one of them has another size than the layout.
    pub fn reencode(&self, from: &[u8], to: &mut [u8]) {
        (self.reencode)(from, to);
    }

    /// The name of each field and the bits that it stands in.
    #[must_use]
    pub fn masks(&self) -> Vec<(&'static str, Vec<u8>)> {
        (self.masks)()
    }

    /// Copies one field, given by its place in [`Layout::masks`].
    ///
    /// # Panics
    /// If a buffer has another size than the layout, or there is no such field.
    pub fn copy_field(&self, index: usize, from: &[u8], to: &mut [u8]) {
        (self.copy_field)(index, from, to);
    }
}

fn reencode<T: Fields>(from: &[u8], to: &mut [u8]) {
    let from = T::read_from_bytes(from).expect("the caller passes the layout's size");
    let mut out = T::read_from_bytes(to).expect("the caller passes the layout's size");
    for field in T::FIELDS {
        (field.copy)(&from, &mut out);
    }
    to.copy_from_slice(out.as_bytes());
}

fn copy_field<T: Fields>(index: usize, from: &[u8], to: &mut [u8]) {
    let from = T::read_from_bytes(from).expect("the caller passes the layout's size");
    let mut out = T::read_from_bytes(to).expect("the caller passes the layout's size");
    (T::FIELDS[index].copy)(&from, &mut out);
    to.copy_from_slice(out.as_bytes());
}

fn masks<T: Fields>() -> Vec<(&'static str, Vec<u8>)> {
    let mut ones = T::new_zeroed();
    ones.as_mut_bytes().fill(0xff);
    let mask = |field: &Field<T>| {
        let mut zeros = T::new_zeroed();
        (field.copy)(&ones, &mut zeros);
        (field.name, zeros.as_bytes().to_vec())
    };
    T::FIELDS.iter().map(mask).collect()
}

/// Every layout of `ib-wire`.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    [
        packet::LAYOUTS,
        smp::LAYOUTS,
        gmp::LAYOUTS,
        sa::LAYOUTS,
        cm::LAYOUTS,
        ipoib::LAYOUTS,
    ]
    .into_iter()
    .flatten()
}
