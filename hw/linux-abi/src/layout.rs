//! Layouts of interfaces.

/// Declares a layout of an interface: all bytes, alignment 1, the size checked when it is compiled, zeros by default.
///
/// Integers are of `zerocopy::native_endian`, as programs and the kernel share them, unless the interface says otherwise.
#[macro_export]
macro_rules! abi_layout {
    ($(#[$meta:meta])* $vis:vis $name:ident, $size:literal { $($body:tt)* }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq,
            $crate::zerocopy::FromBytes, $crate::zerocopy::IntoBytes,
            $crate::zerocopy::KnownLayout, $crate::zerocopy::Immutable,
            $crate::zerocopy::Unaligned,
        )]
        #[repr(C)]
        $vis struct $name { $($body)* }

        const _: () = assert!(size_of::<$name>() == $size && align_of::<$name>() == 1);

        impl Default for $name {
            /// All bytes zero.
            fn default() -> Self {
                $crate::zerocopy::FromZeros::new_zeroed()
            }
        }
    };
}
