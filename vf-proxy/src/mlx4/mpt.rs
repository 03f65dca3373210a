//! The memory protection table: the guest's regions, registered with the VF's function under the keys that
//! the guest chose.

use std::collections::BTreeMap;
use std::sync::Arc;

use hca_api::{AccessFlags, Hca, MrHandle, MrKind, MrSpec, PdHandle};
use mlx4_defs::mpt::{MptEntry, STATUS_FREE, STATUS_VALID};
use mlx4_defs::mtt::MTT_ENTRY_SIZE;
use mlx4_defs::{MptIndex, MttIndex, Pdn, Status};

use super::mtt::{MttPin, Mtts};
use super::pd::{Pds, status_of};
use vf_pci::{MAX_PAGE_SHIFT, MIN_PAGE_SHIFT};

/// [`MptEntry::enable_invalidate`] of a region that a peer may invalidate, as drivers write it.
const INVALIDATES: u8 = 3;

/// A region that the device has.
#[derive(Debug)]
struct Region {
    mr: MrHandle,
    pd: Pdn,
    /// Physical regions have no pages.
    pin: Option<MttPin>,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Mpts {
    /// Entries as the driver last wrote them; it reads them back to change them.
    written: BTreeMap<MptIndex, MptEntry>,
    regions: BTreeMap<MptIndex, Region>,
}

impl Mpts {
    /// Hands a region over to the device (`SW2HW_MPT`), whose pages were looked up. The caller has checked who owns
    /// the entry. Gives its number.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`], [`Status::EXCEED_LIM`].
    pub(super) fn create(
        &mut self,
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        pds: &mut Pds,
        region: &NewRegion,
    ) -> Result<MptIndex, Status> {
        let NewRegion { index, entry, .. } = region;
        let pin = match region.source {
            Source::Whole | Source::Range => None,
            Source::Pages { .. } | Source::Later => Some(mtts.pin(first_page(entry))?),
        };
        let tag = entry.pd();
        let registered = pds
            .acquire(hca, tag)
            .and_then(|pd| register(hca, pd, entry, &region.source));
        match registered {
            Ok(mr) => {
                self.written.insert(*index, *entry);
                self.regions.insert(*index, Region { mr, pd: tag, pin });
                Ok(*index)
            }
            Err(status) => {
                if let Some(pin) = pin {
                    mtts.unpin(pin);
                }
                pds.release(hca, tag);
                Err(status)
            }
        }
    }

    /// Takes a region back from the device (`HW2SW_MPT`).
    ///
    /// # Errors
    /// [`Status::REG_BOUND`] while windows are bound to it.
    pub(super) fn destroy(
        &mut self,
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        pds: &mut Pds,
        index: MptIndex,
    ) -> Result<(), Status> {
        let region = self.regions.get(&index).ok_or(Status::BAD_RES_STATE)?;
        hca.deregister_mr(region.mr)
            .map_err(|_| Status::REG_BOUND)?;
        if let Some(region) = self.regions.remove(&index) {
            pds.release(hca, region.pd);
            if let Some(pin) = region.pin {
                mtts.unpin(pin);
            }
        }
        Ok(())
    }

    /// An entry as the driver last wrote it (`QUERY_MPT`); zeros if it never did.
    pub(super) fn query(&self, index: MptIndex) -> MptEntry {
        self.written.get(&index).copied().unwrap_or_default()
    }

    /// The entry's number was given back.
    pub(super) fn forget(&mut self, index: MptIndex) {
        self.written.remove(&index);
    }
}

/// A region that the device is to have.
#[derive(Debug)]
pub(super) struct NewRegion {
    index: MptIndex,
    entry: MptEntry,
    source: Source,
}

/// Where a region's bytes are.
#[derive(Debug)]
enum Source {
    /// All of the guest's memory.
    Whole,
    /// In one piece: the region's addresses are the memory's.
    Range,
    /// In so many pages, of which these were looked up.
    Pages { count: usize, found: Arc<Vec<u64>> },
    /// Nowhere until a fast registration says where. That changes the region and neither the entry nor the pages that the entry
    /// names: the driver reads an entry back as it wrote it.
    Later,
}

impl NewRegion {
    /// Pages that are looked up before others have their turn.
    const PAGES_PER_STEP: usize = 4096;

    /// What an entry says, as far as it can be seen without its pages.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`].
    pub(super) fn new(mtts: &Mtts, index: MptIndex, entry: &MptEntry) -> Result<Self, Status> {
        if !entry.region() || entry.memory_key() >> 8 != index.get() {
            return Err(Status::BAD_PARAM);
        }
        let source = match entry.status() {
            _ if entry.physical() => {
                let whole = entry.start.get() == 0 && entry.length.get() == u64::MAX;
                if whole { Source::Whole } else { Source::Range }
            }
            STATUS_FREE if entry.fast_register() => {
                // Windows and registrations by work request exclude each other in virtual functions.
                if entry.bind() {
                    return Err(Status::BAD_OP);
                }
                let count = usize::try_from(entry.mtt_size.get());
                mtts.check(first_page(entry), count.map_err(|_| Status::BAD_PARAM)?)?;
                Source::Later
            }
            STATUS_VALID => {
                let count = page_count(entry)?;
                mtts.check(first_page(entry), count)?;
                let found = Arc::default();
                Source::Pages { count, found }
            }
            _ => return Err(Status::BAD_PARAM),
        };
        Ok(Self {
            index,
            entry: *entry,
            source,
        })
    }

    /// Looks up the next pages. Whether these were the last.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for an entry of the table that names no page.
    pub(super) fn look_up(&mut self, mtts: &Mtts) -> Result<bool, Status> {
        let Source::Pages { count, found } = &mut self.source else {
            return Ok(true);
        };
        let found = Arc::make_mut(found);
        found.reserve_exact(*count - found.len());
        let done = found.len();
        let now = (*count - done).min(Self::PAGES_PER_STEP);
        let MttIndex(first) = first_page(&self.entry);
        mtts.append_pages(MttIndex(first + done as u64), now, found)?;
        let within = (1 << page_shift(&self.entry)?) - 1;
        for page in found.iter_mut().skip(done) {
            *page &= !within;
        }
        Ok(done + now == *count)
    }
}

fn first_page(entry: &MptEntry) -> MttIndex {
    MttIndex(entry.mtt_addr.get() / MTT_ENTRY_SIZE)
}

/// Base-2 logarithm of the region's page size.
fn page_shift(entry: &MptEntry) -> Result<u8, Status> {
    u8::try_from(entry.entity_size.get())
        .ok()
        .filter(|shift| (MIN_PAGE_SHIFT..=MAX_PAGE_SHIFT).contains(shift))
        .ok_or(Status::BAD_PARAM)
}

/// Offset of the region's first byte in its first page.
fn first_offset(entry: &MptEntry, shift: u8) -> u64 {
    entry.start.get() & ((1 << shift) - 1)
}

/// Pages that the region's bytes are in. More than the translation table has are refused by it.
fn page_count(entry: &MptEntry) -> Result<usize, Status> {
    let shift = page_shift(entry)?;
    let bytes = first_offset(entry, shift).checked_add(entry.length.get());
    let bytes = bytes.filter(|bytes| *bytes != 0).ok_or(Status::BAD_PARAM)?;
    let last = (bytes - 1) >> shift;
    usize::try_from(last + 1).map_err(|_| Status::BAD_PARAM)
}

fn register(
    hca: &mut dyn Hca,
    pd: PdHandle,
    entry: &MptEntry,
    source: &Source,
) -> Result<MrHandle, Status> {
    let (start, len) = (entry.start.get(), entry.length.get());
    let kind = match source {
        Source::Whole => MrKind::WholeSpace,
        Source::Range => MrKind::Virtual { addr: start, len },
        Source::Later => MrKind::FastRegister {
            max_pages: entry.mtt_size.get(),
        },
        Source::Pages { found: pages, .. } => {
            let page_shift = page_shift(entry)?;
            MrKind::Physical {
                pages,
                page_shift,
                iova: start,
                first_offset: first_offset(entry, page_shift),
                len,
            }
        }
    };
    let spec = MrSpec {
        pd,
        kind,
        access: match source {
            Source::Later => registrable(entry),
            _ => rights(entry),
        },
        key: Some(entry.memory_key()),
    };
    Ok(hca.register_mr(&spec).map_err(status_of)?.handle)
}

/// The rights of a region.
fn rights(entry: &MptEntry) -> AccessFlags {
    let rights = [
        (entry.local_write(), AccessFlags::LOCAL_WRITE),
        (entry.remote_write(), AccessFlags::REMOTE_WRITE),
        (entry.remote_read(), AccessFlags::REMOTE_READ),
        (entry.atomic(), AccessFlags::REMOTE_ATOMIC),
        (entry.bind(), AccessFlags::MW_BIND),
    ];
    let granted = rights.into_iter().filter(|(given, _)| *given);
    granted.map(|(_, right)| right).collect()
}

/// The rights that a fast registration may give.
fn registrable(entry: &MptEntry) -> AccessFlags {
    let mut access = AccessFlags::LOCAL_WRITE;
    if entry.remote_access() {
        access |= AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
    }
    access.set(
        AccessFlags::REMOTE_INVALIDATE,
        entry.enable_invalidate() == INVALIDATES,
    );
    access
}

#[cfg(test)]
mod tests;
