//! The macros behind the crate's quantities.

/// Defines a big-endian integer newtype with alignment 1 that can be a field of a layout.
///
/// Stored as bytes, so the derived order is the numeric order.
macro_rules! be_newtype {
    ($(#[$meta:meta])* $name:ident($int:ty, $bytes:literal), $fmt:literal) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Makes the quantity from its value in host byte order.
            #[must_use]
            pub const fn new(value: $int) -> Self {
                Self(value.to_be_bytes())
            }

            /// The value in host byte order.
            #[must_use]
            pub const fn get(self) -> $int {
                <$int>::from_be_bytes(self.0)
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self::new(value)
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, $fmt, self.get())
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "(", $fmt, ")"), self.get())
            }
        }
    };
}

/// Defines a small unsigned quantity held in one byte, with a mask.
macro_rules! bits_newtype {
    ($(#[$meta:meta])* $name:ident, $mask:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u8);

        impl $name {
            /// The largest legal value.
            pub const MAX: Self = Self($mask);

            /// Makes the value, if it is in range.
            #[must_use]
            pub const fn new(value: u8) -> Option<Self> {
                if value <= $mask { Some(Self(value)) } else { None }
            }

            /// Makes the value from the low bits of `value`; the rest is ignored.
            #[must_use]
            pub const fn from_low_bits(value: u8) -> Self {
                Self(value & $mask)
            }

            /// The value.
            #[must_use]
            pub const fn get(self) -> u8 {
                self.0
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

/// Adds named values to a newtype and prints them by name in `Debug`.
///
/// The type stays open: every other value is legal and survives a round trip.
#[macro_export]
macro_rules! open_enum {
    ($(#[$meta:meta])* $name:ident(u8) { $($(#[$vmeta:meta])* $konst:ident = $value:expr,)* }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name(u8);

        impl $name {
            $($(#[$vmeta])* pub const $konst: Self = Self($value);)*

            /// Makes the value; every number is legal.
            #[must_use]
            pub const fn new(value: u8) -> Self {
                Self(value)
            }

            /// The value as a number.
            #[must_use]
            pub const fn get(self) -> u8 {
                self.0
            }

            /// The standard's name of the value, if it has one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($konst)),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "0x{:02x}", self.get()),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{}::{}", stringify!($name), name),
                    None => write!(f, "{}(0x{:02x})", stringify!($name), self.get()),
                }
            }
        }
    };
    ($(#[$meta:meta])* $name:ident(u16) { $($(#[$vmeta:meta])* $konst:ident = $value:expr,)* }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name([u8; 2]);

        impl $name {
            $($(#[$vmeta])* pub const $konst: Self = Self::new($value);)*

            /// Makes the value from host byte order.
            #[must_use]
            pub const fn new(value: u16) -> Self {
                Self(value.to_be_bytes())
            }

            /// The value in host byte order.
            #[must_use]
            pub const fn get(self) -> u16 {
                u16::from_be_bytes(self.0)
            }

            /// The standard's name of the value, if it has one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.get() {
                    $($value => Some(stringify!($konst)),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "0x{:04x}", self.get()),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, "{}::{}", stringify!($name), name),
                    None => write!(f, "{}(0x{:04x})", stringify!($name), self.get()),
                }
            }
        }
    };
}
/// Adds named bits and set operations to a big-endian newtype.
macro_rules! flags {
    ($name:ident($int:ty) { $($(#[$vmeta:meta])* $konst:ident = $bit:literal,)* }) => {
        impl $name {
            $($(#[$vmeta])* pub const $konst: Self = Self::new(1 << $bit);)*

            /// Whether all bits of `other` are set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.get() & other.get() == other.get()
            }

            /// The bits of both.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self::new(self.get() | other.get())
            }

            /// The bits that are not in `other`.
            #[must_use]
            pub const fn difference(self, other: Self) -> Self {
                Self::new(self.get() & !other.get())
            }
        }

        impl core::ops::BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }
    };
}

/// Defines a 24-bit big-endian newtype.
#[macro_export]
macro_rules! u24_newtype {
    ($(#[$meta:meta])* $name:ident, $fmt:literal) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name([u8; 3]);

        impl $name {
            /// The largest legal value.
            pub const MAX: Self = Self([0xff; 3]);

            /// Makes the value, if it fits in 24 bits.
            #[must_use]
            pub const fn new(value: u32) -> Option<Self> {
                if value >> 24 == 0 { Some(Self::from_low_bits(value)) } else { None }
            }

            /// Makes the value from the low 24 bits of `value`; the rest is ignored.
            #[must_use]
            pub const fn from_low_bits(value: u32) -> Self {
                let b = value.to_be_bytes();
                Self([b[1], b[2], b[3]])
            }

            /// The value in host byte order.
            #[must_use]
            pub const fn get(self) -> u32 {
                u32::from_be_bytes([0, self.0[0], self.0[1], self.0[2]])
            }

            /// The value `step` further, modulo 2^24.
            #[must_use]
            pub const fn wrapping_add(self, step: u32) -> Self {
                Self::from_low_bits(self.get().wrapping_add(step))
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, $fmt, self.get())
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "(", $fmt, ")"), self.get())
            }
        }
    };
}
