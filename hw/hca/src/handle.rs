//! Handles: a provider's names for the objects it made.

use core::fmt;

macro_rules! handle {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        ///
        /// Meaningful only to the function that made it. Providers may reuse the value after the
        /// object is destroyed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
    };
}

handle! {
    /// A protection domain.
    PdHandle
}
handle! {
    /// An address handle: an address vector that the provider holds.
    AvHandle
}
handle! {
    /// A completion queue.
    CqHandle
}
handle! {
    /// A shared receive queue.
    SrqHandle
}
handle! {
    /// A queue pair.
    QpHandle
}
handle! {
    /// A memory region.
    MrHandle
}
handle! {
    /// A memory window.
    MwHandle
}

macro_rules! key {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "(0x{:08x})"), self.0)
            }
        }
    };
}

key! {
    /// A local key: names a memory region in the work requests of its own function (IBA 10.6.3).
    LKey
}
key! {
    /// A remote key: names a memory region or window in a peer's RDMA requests (IBA 10.6.3).
    RKey
}
