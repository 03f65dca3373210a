//! Rights as programs write them.

use hca_api::AccessFlags;

/// Rights that regions, windows and queue pairs have (`enum ibv_access_flags`), with the same bits as [`AccessFlags`].
pub(crate) const RIGHTS: u32 = 0x33f;

/// Returns the rights that a program gives. Unknown ones are left out: queue pairs and windows with them are not refused, as no provider
/// of the kernel does that (`modify_qp` of `uverbs_cmd.c`).
pub(crate) fn rights(flags: u32) -> AccessFlags {
    let [low, high, ..] = (flags & RIGHTS).to_le_bytes();
    AccessFlags::from_bits_truncate(u16::from_le_bytes([low, high]))
}
