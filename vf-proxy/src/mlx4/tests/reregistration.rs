//! Regions that are changed as `mlx4_ib_rereg_user_mr` does: the driver takes the entry back, reads it, and gives another one.

use mlx4_defs::Pdn;
use mlx4_defs::cqe::Syndrome;
use mlx4_defs::mpt::{MptEntry, STATUS_VALID};
use mlx4_defs::mtt::MTT_ENTRY_SIZE;

use super::regions::{create, destroy};
use super::registration::{SHARED, START, Scene};
use super::*;

/// The first page of the region, and that of another buffer.
const PAGES: [u64; 2] = [40, 44];

/// A region of user memory that the peer may write.
fn region(entry: &mut MptEntry) {
    entry.set_status(STATUS_VALID);
    entry.set_fast_register(false);
    entry.set_remote_write(true);
    entry.set_local_write(true);
    entry.entity_size.set(12);
    entry.start.set(START);
    entry.length.set(0x1000);
}

impl Scene {
    /// Changes the region's entry: HW2SW_MPT, QUERY_MPT, SW2HW_MPT.
    fn reregister(&mut self, change: impl FnOnce(&mut Guest, &mut MptEntry)) {
        let (guest, index) = (&mut self.guest, self.index);
        assert_eq!(destroy(guest, index), Status::OK);
        let query = Input {
            modifier: index,
            ..Input::default()
        };
        guest.ok(Opcode::QUERY_MPT, query);
        let at = guest.outbox();
        let mut entry: MptEntry = guest.read_layout(at);
        change(guest, &mut entry);
        assert_eq!(create(guest, index, &entry), Status::OK);
    }

    /// Writes 8 bytes at the region's start, and returns the status and the bytes of both buffers.
    fn write_both(&mut self, byte: u8) -> (Option<Syndrome>, [u8; 2]) {
        let shared = self.guest.page(SHARED);
        self.guest.write(shared, &[byte; 8]);
        let key = self.key(0);
        let status = self.write_remotely(key, 0);
        let first = PAGES.map(|page| self.guest.read::<1>(self.guest.page(page) + 0x10)[0]);
        (status, first)
    }
}

#[test]
fn a_region_that_is_registered_again_has_its_new_pages_rights_or_domain_under_the_old_key() {
    let mut scene = Scene::with(|_| (), region);
    assert_eq!(scene.write_both(1), (None, [1, 0]));
    let owned = scene.guest.owned();
    scene.reregister(|guest, entry| {
        let (kind, op) = (ResourceType::MTT, ResourceOp::RESERVE_AND_MAP);
        let old = entry.mtt_addr.get() / MTT_ENTRY_SIZE;
        assert_eq!(guest.free(kind, op, old | 2 << 32), Status::OK);
        let new = guest.map_pages(PAGES[1], 1);
        entry.mtt_addr.set(new * MTT_ENTRY_SIZE);
    });
    assert_eq!(scene.write_both(2), (None, [1, 2]));
    scene.reregister(|_, _| ());
    assert_eq!(scene.write_both(3), (None, [1, 3]));
    assert_eq!(scene.guest.owned(), owned);

    type Change = fn(&mut MptEntry);
    let changes: [Change; 2] = [
        |entry| entry.set_remote_write(false),
        |entry| entry.set_pd(Pdn(7)),
    ];
    for change in changes {
        let mut scene = Scene::with(|_| (), region);
        assert_eq!(scene.write_both(1), (None, [1, 0]));
        scene.reregister(|_, entry| change(entry));
        let refused = (Some(Syndrome::REMOTE_ACCESS), [1, 0]);
        assert_eq!(scene.write_both(2), refused);
        scene.end();
    }
}
