//! Reading ahead in a table of wire ids.
//!
//! What a message needs of a large table lies in places that no near cache holds, and each place is
//! known only when the one before was read. Who has several messages can take the same step for all of
//! them before the next one, so that the memory answers their reads at once instead of one by one.

/// Bytes of a table that a core's own caches hold: there is no use in reading ahead in a smaller one.
pub const NEAR: usize = 3 << 19;

/// How far the reading for one message has come. It changes nothing, and it may be wrong by the time
/// that the message is judged: then it was in vain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trail {
    /// An index was read where this hash is at home: it may name a slot.
    Bucket(u32),
    /// A slot is to be read.
    Slot(u32),
    /// Nothing more is worth reading.
    #[default]
    End,
}
