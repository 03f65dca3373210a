//! Commands that take long: each call does a small part of them, and a reset ends them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hca_api::{DmaBuffer, DmaFault, HcaError};
use mlx4_defs::MttIndex;
use mlx4_defs::cq::CqContext;
use mlx4_defs::mpt::{MptEntry, STATUS_VALID};

use super::*;

/// Entries of the table that one command writes.
const ENTRIES: u64 = 510;

/// The most that one call may write into the guest's memory.
const MOST: usize = 256 << 10;

/// Memory that counts the bytes that are written.
#[derive(Debug, Default)]
struct Counted {
    memory: HostMemory,
    written: Arc<AtomicUsize>,
}

impl AddressSpace for Counted {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.memory.read(addr, buf)
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.written.fetch_add(bytes.len(), Ordering::Relaxed);
        self.memory.write(addr, bytes)
    }

    fn update_u64(&mut self, addr: u64, to: &mut dyn FnMut(u64) -> u64) -> Result<u64, DmaFault> {
        self.memory.update_u64(addr, to)
    }

    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        self.memory.allocate(len)
    }

    fn free(&mut self, buffer: DmaBuffer) {
        self.memory.free(buffer);
    }
}

/// A guest whose memory counts what is written.
fn counted() -> (Guest, Arc<AtomicUsize>) {
    let memory = Counted::default();
    let written = memory.written.clone();
    let mut guest = Guest::with_memory(memory);
    guest.start();
    (guest, written)
}

impl Guest {
    /// A range of the table whose entries all name a page of the guest, except the last, which names another address.
    fn map_one_page(&mut self, order: u8, last: u64) -> u64 {
        let op = ResourceOp::RESERVE_AND_MAP;
        let (status, first) = self.allocate(ResourceType::MTT, op, order.into());
        assert_eq!(status, Status::OK);
        let (page, end) = (self.page(8), first + (1 << order));
        let mut at = first;
        while at < end {
            let count = ENTRIES.min(end - at);
            let mut write = WriteMtt {
                first: U64::new(at),
                ..WriteMtt::default()
            };
            write.entries.fill(MttEntry::new(page));
            at += count;
            if at == end {
                write.entries[usize::try_from(count).unwrap() - 1] = MttEntry::new(last);
            }
            let mut input = self.put(&write);
            input.modifier = u32::try_from(count).unwrap();
            assert_eq!(self.command(Opcode::WRITE_MTT, input).0, Status::OK);
        }
        first
    }

    /// Begins to make an event queue of 4 MiB, in a range of the table of 1024 entries.
    fn begin_event_queue(&mut self, eqn: u32, first: u64) {
        let mut context = EqContext {
            mtt_base: MttBase::from_entry(MttIndex(first)),
            ..EqContext::default()
        };
        context.set_log_entries(17);
        let mut input = self.put(&context);
        input.modifier = eqn;
        self.begin(Opcode::SW2HW_EQ, input);
    }

    fn step(&mut self) -> bool {
        let mut hca = self.fabric.hca(self.node, VF).unwrap();
        self.function.poll(NOW, &mut hca)
    }

    /// Polls until the command is done. How often that was, and the most that one call wrote.
    fn wait(&mut self, written: &AtomicUsize) -> (usize, usize) {
        let (mut calls, mut most) = (0, 0);
        while !self.is_done() {
            assert_eq!(self.function.poll_timeout(), Some(Instant::ZERO));
            let before = written.load(Ordering::Relaxed);
            assert!(self.step());
            most = most.max(written.load(Ordering::Relaxed) - before);
            calls += 1;
        }
        (calls, most)
    }
}

#[test]
fn a_large_queue_is_made_in_small_steps() {
    let (mut guest, written) = counted();
    let page = guest.page(8);
    let first = guest.map_one_page(10, page);
    let before = written.load(Ordering::Relaxed);
    guest.begin_event_queue(7, first);
    assert!(!guest.is_done());
    assert!(written.load(Ordering::Relaxed) - before < MOST);
    let (calls, most) = guest.wait(&written);
    assert_eq!(guest.result().0, Status::OK);
    assert!(calls > 16 && most < MOST, "{calls} calls, {most} bytes");
    assert_eq!(guest.read::<8>(page), [0xcc; 8]);
    let input = Input {
        modifier: 7,
        ..Input::default()
    };
    assert_eq!(guest.command(Opcode::HW2SW_EQ, input).0, Status::OK);
    let op = ResourceOp::RESERVE_AND_MAP;
    let range = first | 10 << 32;
    assert_eq!(guest.free(ResourceType::MTT, op, range), Status::OK);
}

#[test]
fn nothing_is_written_of_a_queue_that_is_not_all_memory() {
    let (mut guest, written) = counted();
    let first = guest.map_one_page(10, 1 << 50);
    let page = guest.page(8);
    guest.write(page, &[0x55; 4096]);
    let mut context = CqContext {
        mtt_base: MttBase::from_entry(MttIndex(first)),
        ..CqContext::default()
    };
    context.set_log_entries(17);
    let (_, cqn) = guest.allocate(ResourceType::CQ, ResourceOp::RESERVE_AND_MAP, 0);
    let mut input = guest.put(&context);
    input.modifier = u32::try_from(cqn).unwrap();
    guest.begin(Opcode::SW2HW_CQ, input);
    guest.wait(&written);
    assert_eq!(guest.result().0, Status::BAD_PARAM);
    guest.begin_event_queue(7, first);
    guest.wait(&written);
    assert_eq!(guest.result().0, Status::BAD_PARAM);
    assert_eq!(guest.read::<4096>(page), [0x55; 4096]);
    assert_eq!(guest.owned().cqs, 0);
    let op = ResourceOp::RESERVE_AND_MAP;
    let range = first | 10 << 32;
    assert_eq!(
        guest.free(ResourceType::MTT, op, range),
        Status::OK,
        "not held"
    );
}

#[test]
fn a_large_region_is_looked_up_in_small_steps() {
    let (mut guest, written) = counted();
    let page = guest.page(8);
    let first = guest.map_one_page(16, page);
    let (_, key) = guest.allocate(ResourceType::MPT, ResourceOp::RESERVE, 0);
    let index = u32::try_from(key).unwrap();
    let (status, _) = guest.allocate(ResourceType::MPT, ResourceOp::MAP_ICM, key);
    assert_eq!(status, Status::OK);
    let mut entry = MptEntry {
        length: U64::new(4096 << 16),
        entity_size: U32::new(12),
        mtt_addr: U64::new(first * 8),
        ..MptEntry::default()
    };
    entry.set_region(true);
    entry.set_status(STATUS_VALID);
    entry.set_memory_key(index << 8);
    let mut input = guest.put(&entry);
    input.modifier = index;
    guest.begin(Opcode::SW2HW_MPT, input);
    let (calls, _) = guest.wait(&written);
    assert_eq!(guest.result().0, Status::OK);
    assert!(calls >= 8, "{calls}");
}

#[test]
fn a_reset_ends_a_command_that_is_under_way() {
    let resets: [fn(&mut Guest); 3] = [
        |guest| {
            let mut hca = guest.fabric.hca(guest.node, VF).unwrap();
            guest.function.reset(NOW, &mut hca);
        },
        |guest| guest.write_bar(2, FLAGS, &[0, 1, 0, 0]),
        |guest| guest.reset_by_pf(),
    ];
    for reset in resets {
        let (mut guest, written) = counted();
        let page = guest.page(8);
        let first = guest.map_one_page(10, page);
        guest.begin_event_queue(7, first);
        guest.step();
        reset(&mut guest);
        let before = written.load(Ordering::Relaxed);
        while guest.step() {}
        assert_eq!(written.load(Ordering::Relaxed), before);
        assert_eq!(guest.function.poll_timeout(), None);
    }
}

#[test]
fn what_the_driver_writes_while_a_command_is_executed_is_looked_at_behind_it() {
    let (mut guest, written) = counted();
    let page = guest.page(8);
    let first = guest.map_one_page(10, page);
    guest.begin_event_queue(7, first);
    // A driver that does not wait for the answer.
    guest.post(CommCommand::RESET, 0);
    assert_eq!(guest.function.poll_event(), None);
    let begun = written.load(Ordering::Relaxed);
    while guest.step() {}
    assert!(written.load(Ordering::Relaxed) - begun > 3 << 20);
    assert_eq!(guest.function.poll_event(), Some(PciEvent::ResetWanted));
}
