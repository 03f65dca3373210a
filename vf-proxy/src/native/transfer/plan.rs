//! How the bytes of a list are divided among regions and requests.
//!
//! Both divisions take as much as the bounds allow from the front. That is the least number of parts: a part that begins later ends
//! no earlier.

use hca_api::{DmaBuffer, LKey, Sge};

use super::{TransferError, TransferLimits};
use crate::native::FastRegion;

const PAGE: u64 = 1 << FastRegion::PAGE_SHIFT;

/// Memory that one region holds: every page but the first begins at its beginning, and every page but the last ends at its end.
#[derive(Debug)]
pub(super) struct Run {
    /// Address of the first byte, in the region's own count: as far into a page as the byte is.
    pub(super) iova: u64,
    pub(super) len: u64,
    pub(super) pages: Vec<u64>,
}

/// The bytes of a request.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) remote_addr: u64,
    pub(super) sges: Vec<Sge>,
    len: u64,
}

/// Divides memory into the fewest runs of `max_pages` pages at most.
pub(super) fn runs(memory: &[DmaBuffer], max_pages: u32) -> Result<Vec<Run>, TransferError> {
    let max_pages = max_pages as usize;
    let mut runs: Vec<Run> = Vec::new();
    // Where the last run ends.
    let mut end = 0;
    for entry in memory.iter().filter(|entry| entry.len != 0) {
        let behind = entry.addr.checked_add(entry.len as u64);
        let behind = behind.ok_or(TransferError::OutOfRange)?;
        let mut addr = entry.addr;
        while addr < behind {
            let (page, offset) = (addr & !(PAGE - 1), addr % PAGE);
            let piece = (behind - addr).min(PAGE - offset);
            let follows = if offset == 0 {
                end % PAGE == 0
            } else {
                addr == end
            };
            let fits = |run: &Run| offset != 0 || run.pages.len() < max_pages;
            match runs.last_mut() {
                Some(run) if follows && fits(run) => {
                    run.len += piece;
                    if offset == 0 {
                        run.pages.push(page);
                    }
                }
                _ => runs.push(Run {
                    iova: offset,
                    len: piece,
                    pages: vec![page],
                }),
            }
            addr += piece;
            end = addr;
        }
    }
    Ok(runs)
}

/// Divides entries, each of an address, a length and a key, into the fewest requests, at least one.
pub(super) fn chunks(
    entries: impl Iterator<Item = (u64, u64, LKey)>,
    mut remote_addr: u64,
    limits: &TransferLimits,
) -> Result<Vec<Chunk>, TransferError> {
    let max_sge = (limits.max_sge as usize).max(1);
    let max_message = u64::from(limits.max_message.clamp(1, 1 << 31));
    let empty = |remote_addr| Chunk {
        remote_addr,
        sges: Vec::new(),
        len: 0,
    };
    let (mut all, mut chunk) = (Vec::new(), empty(remote_addr));
    for (mut addr, mut left, lkey) in entries {
        addr.checked_add(left).ok_or(TransferError::OutOfRange)?;
        while left > 0 {
            let count = chunk.sges.len();
            let last = chunk.sges.last_mut();
            let joined =
                last.filter(|sge| sge.lkey == lkey && sge.addr + u64::from(sge.len) == addr);
            if chunk.len == max_message || (joined.is_none() && count == max_sge) {
                all.push(core::mem::replace(&mut chunk, empty(remote_addr)));
                continue;
            }
            let now = left.min(max_message - chunk.len);
            // A message has at most 2^31 bytes.
            let len = u32::try_from(now).map_err(|_| TransferError::OutOfRange)?;
            match joined {
                Some(sge) => sge.len += len,
                None => chunk.sges.push(Sge { addr, len, lkey }),
            }
            chunk.len += now;
            remote_addr = remote_addr
                .checked_add(now)
                .ok_or(TransferError::OutOfRange)?;
            (addr, left) = (addr + now, left - now);
        }
    }
    all.push(chunk);
    Ok(all)
}
