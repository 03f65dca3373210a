//! Command mailboxes.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a command mailbox, and its alignment in guest memory (`MLX4_MAILBOX_SIZE`).
pub const MAILBOX_SIZE: usize = 4096;

/// A layout that a mailbox starts with. What follows it is zero.
pub trait MailboxLayout: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned {}

/// The bytes of one mailbox, copied out of guest memory or to be copied there.
#[derive(Clone, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(transparent)]
pub struct Mailbox(pub [u8; MAILBOX_SIZE]);

impl Default for Mailbox {
    /// All bytes zero.
    fn default() -> Self {
        Self([0; MAILBOX_SIZE])
    }
}

impl Mailbox {
    /// A mailbox that starts with `layout` and is zero behind it.
    #[must_use]
    pub fn with<T: MailboxLayout>(layout: &T) -> Self {
        let mut mailbox = Self::default();
        mailbox.0[..size_of::<T>()].copy_from_slice(layout.as_bytes());
        mailbox
    }

    /// Its start, as one of the layouts.
    #[must_use]
    pub fn view<T: MailboxLayout>(&self) -> &T {
        let Ok((layout, _)) = T::ref_from_prefix(&self.0) else {
            unreachable!("a mailbox layout fits into a mailbox and needs no alignment")
        };
        layout
    }

    /// Its start, as one of the layouts, to be changed.
    #[must_use]
    pub fn view_mut<T: MailboxLayout>(&mut self) -> &mut T {
        let Ok((layout, _)) = T::mut_from_prefix(&mut self.0) else {
            unreachable!("a mailbox layout fits into a mailbox and needs no alignment")
        };
        layout
    }
}
