//! The macros behind the crate's layouts.

/// Defines a `repr(C)` layout with the offset of each field before it, and checks the offsets, the
/// size and the alignment. With `mailbox` before its name it is the start of a command mailbox.
macro_rules! layout {
    ($(#[$meta:meta])* mailbox $name:ident, $size:literal { $($body:tt)* }) => {
        layout! { $(#[$meta])* $name, $size { $($body)* } }

        impl crate::MailboxLayout for $name {}

        const _: () = assert!(size_of::<$name>() <= crate::MAILBOX_SIZE);
    };
    ($(#[$meta:meta])* $name:ident, $size:literal {
        $($(#[$field_meta:meta])* $offset:literal $vis:vis $field:ident: $ty:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $name {
            $(
                $(#[$field_meta])*
                #[doc = concat!("\n\nOffset ", stringify!($offset), ".")]
                $vis $field: $ty,
            )*
        }

        const _: () = {
            assert!(size_of::<$name>() == $size && align_of::<$name>() == 1);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)*
        };

        impl Default for $name {
            /// All bytes zero.
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}

/// Defines a layout that is one field with a name of its own.
macro_rules! transparent {
    ($(#[$meta:meta])* pub struct $name:ident($vis:vis $ty:ty);) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout,
            zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(transparent)]
        pub struct $name($vis $ty);
    };
}
