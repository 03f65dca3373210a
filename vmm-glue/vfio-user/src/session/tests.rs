use emulated_hca::{Adapters, Fabric, HcaConfig};
use hca_api::{FunctionId, HcaEvent};
use ib_wire::Guid;
use vf_pci::{Bar, PciEvent};
use zerocopy::little_endian::U16;

use super::*;
use crate::Signals;
use vhca_vfio_user_codec::{Assembler, Header, MultiWrite};

/// A device that records the writes to its one register, and the doorbells that the session rings.
#[derive(Debug, Default)]
struct Log {
    writes: Vec<(u64, Vec<u8>)>,
    doorbells: Vec<Doorbell>,
    rung: Vec<Doorbell>,
}

impl PciFunction for Log {
    fn bars(&self) -> &[Bar] {
        &[Bar {
            index: 2,
            size: 0x1000,
            prefetchable: false,
        }]
    }

    fn interrupt_vectors(&self) -> u16 {
        1
    }

    fn has_driver(&self) -> bool {
        false
    }

    fn config_read(&self, _: u16, _: &mut [u8]) {}

    fn config_write(&mut self, _: Instant, _: &mut dyn Hca, _: u16, _: &[u8]) {}

    fn bar_read(&mut self, _: u8, _: u64, _: &mut [u8]) {}

    fn bar_write(&mut self, _: Instant, _: &mut dyn Hca, _: u8, offset: u64, bytes: &[u8]) {
        self.writes.push((offset, bytes.to_vec()));
    }

    fn doorbells(&self) -> Vec<Doorbell> {
        self.doorbells.clone()
    }

    fn ring(&mut self, _: Instant, _: &mut dyn Hca, doorbell: Doorbell) {
        self.rung.push(doorbell);
    }

    fn handle_hca_event(&mut self, _: Instant, _: &mut dyn Hca, _: &HcaEvent) {}

    fn poll(&mut self, _: Instant, _: &mut dyn Hca) -> bool {
        false
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<PciEvent> {
        None
    }

    fn reset(&mut self, _: Instant, _: &mut dyn Hca) {}
}

fn message(command: Command, payload: &[u8]) -> Message<PassedFd> {
    let header = Header {
        command: U16::new(command.0),
        size: U32::new(u32::try_from(size_of::<Header>() + payload.len()).unwrap()),
        ..Header::default()
    };
    let bytes = [header.as_bytes(), payload].concat();
    let mut assembler = Assembler::new(0);
    let mut rest = &bytes[..];
    loop {
        let space = assembler.space();
        let (now, later) = rest.split_at(space.len().min(rest.len()));
        space[..now.len()].copy_from_slice(now);
        rest = later;
        if let Some(message) = assembler.filled(now.len(), None).unwrap() {
            return message;
        }
    }
}

fn access(offset: u64, count: u32) -> RegionAccess {
    RegionAccess {
        offset: U64::new(offset),
        region: U32::new(2),
        count: U32::new(count),
    }
}

/// Handles a message in turns of so many steps. How many turns it took, and what came of it.
fn handle(message: Message<PassedFd>, steps: u32) -> (u32, Handled, Log) {
    let mut fabric = Fabric::new(1);
    let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
    let mut hca = fabric.hca(node, FunctionId::PF).unwrap();
    let mut log = Log::default();
    let mut lent = Lent {
        function: &mut log,
        hca: &mut hca,
        now: Instant::ZERO,
    };
    let signaller = Signals::default().signaller().unwrap();
    let mut session = Session::new(GuestMemory::default(), 1, signaller);
    session.is_agreed = true;
    let mut turns = 1;
    let mut handled = session.handle(message, &mut lent, &mut Slice::of_steps(steps));
    while handled.is_none() {
        assert!(session.is_amid());
        turns += 1;
        handled = session.go_on(&mut lent, &mut Slice::of_steps(steps));
    }
    assert!(!session.is_amid());
    assert_eq!(session.statistics().commands, 1);
    (turns, handled.unwrap(), log)
}

#[test]
fn a_message_of_many_writes_is_done_in_turns_and_answered_once() {
    let writes: Vec<MultiWrite> = (0..100_u8)
        .map(|n| MultiWrite {
            access: access(u64::from(n) * 8, 4),
            data: [n; 8],
        })
        .collect();
    let payload = [&100_u64.to_le_bytes()[..], writes.as_bytes()].concat();
    for (steps, turns) in [(1, 100), (7, 15), (100, 1), (1000, 1)] {
        let message = message(Command::REGION_WRITE_MULTI, &payload);
        let (had, handled, log) = handle(message, steps);
        assert_eq!(had, turns);
        let expected = (0..100_u8).map(|n| (u64::from(n) * 8, vec![n; 4]));
        assert!(log.writes.into_iter().eq(expected), "in order, and once");
        let reply = handled.reply.unwrap();
        assert_eq!(reply.bytes[size_of::<Header>()..], 100_u64.to_le_bytes());
    }
}

#[test]
fn a_long_write_is_done_in_turns_and_answered_once() {
    let data: Vec<u8> = (0..=255).cycle().take(1000).collect();
    let payload = [access(16, 1000).as_bytes(), &data].concat();
    let (turns, handled, log) = handle(message(Command::REGION_WRITE, &payload), 2);
    assert_eq!(turns, 8);
    let mut at = 16;
    for (offset, piece) in &log.writes {
        assert_eq!(*offset, at);
        at += piece.len() as u64;
    }
    let written: Vec<u8> = log
        .writes
        .into_iter()
        .flat_map(|(_, piece)| piece)
        .collect();
    assert_eq!(written, data);
    let reply = handled.reply.unwrap();
    assert_eq!(
        &reply.bytes[size_of::<Header>()..],
        access(16, 1000).as_bytes()
    );
}

#[test]
fn a_write_that_fails_ends_its_message() {
    let writes = [access(0, 4), access(0x1000, 4), access(8, 4)].map(|access| MultiWrite {
        access,
        data: [1; 8],
    });
    let payload = [&3_u64.to_le_bytes()[..], writes.as_bytes()].concat();
    let (_, handled, log) = handle(message(Command::REGION_WRITE_MULTI, &payload), 1);
    assert_eq!(log.writes.len(), 1);
    let reply = handled.reply.unwrap();
    assert_eq!(reply.bytes[12..16], 22_u32.to_le_bytes(), "EINVAL");
}

/// Asks for the eventfds of a region's doorbells, with room for so many.
fn io_fds(region: u32, most: u32) -> Message<PassedFd> {
    let request = RegionIoFds {
        argsz: U32::new(16 + 40 * most),
        index: U32::new(region),
        ..RegionIoFds::default()
    };
    message(Command::DEVICE_GET_REGION_IO_FDS, request.as_bytes())
}

const fn doorbell(bar: u8, offset: u64) -> Doorbell {
    Doorbell {
        bar,
        offset,
        len: 4,
    }
}

#[test]
fn doorbells_have_eventfds_as_long_as_they_are_there_and_there_is_room() {
    let mut fabric = Fabric::new(1);
    let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
    let mut hca = fabric.hca(node, FunctionId::PF).unwrap();
    let mut log = Log::default();
    let signaller = Signals::default().signaller().unwrap();
    let memory = GuestMemory::default();
    let make = || rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK);
    let mut session = Session::new(memory, 1, signaller).with_doorbells(Box::new(make));
    session.is_agreed = true;
    let mut ask = |log: &mut Log, region, most| {
        let mut lent = Lent {
            function: log,
            hca: &mut hca,
            now: Instant::ZERO,
        };
        let handled = session.handle(io_fds(region, most), &mut lent, &mut Slice::endless());
        let reply = handled.unwrap().reply.unwrap();
        let changes: Vec<_> = core::iter::from_fn(|| session.poll_doorbell_change()).collect();
        let removed = changes
            .iter()
            .filter(|change| matches!(change, DoorbellChange::Removed(_)));
        let removed = removed.count();
        (reply, changes.len() - removed, removed)
    };

    log.doorbells = vec![doorbell(2, 0x14), doorbell(2, 0x20), doorbell(4, 0x14)];
    let (reply, added, removed) = ask(&mut log, 2, 64);
    assert_eq!(
        (&reply.doorbells[..], added, removed),
        (&log.doorbells[..2], 2, 0)
    );
    assert_eq!(reply.bytes.len(), 16 + 16 + 2 * 40);
    // Asked again, they are the same ones.
    assert_eq!(ask(&mut log, 2, 1).0.doorbells, log.doorbells[..1]);
    let (reply, added, removed) = ask(&mut log, 4, 64);
    assert_eq!(
        (&reply.doorbells[..], added, removed),
        (&log.doorbells[2..], 1, 0)
    );
    // One is gone, and one is new.
    log.doorbells[0] = doorbell(2, 0x34);
    let (reply, added, removed) = ask(&mut log, 2, 64);
    assert_eq!(
        (&reply.doorbells[..], added, removed),
        (&log.doorbells[..2], 1, 1)
    );
    // A function has as many as it likes; so many have an eventfd.
    log.doorbells = (0..500).map(|page| doorbell(2, page * 4096)).collect();
    let (reply, added, removed) = ask(&mut log, 2, 500);
    assert_eq!((reply.doorbells.len(), added, removed), (64, 64, 3));
    assert!(reply.refused(Errno::AGAIN).len() == 16);

    session.note_rung(doorbell(2, 0x14));
    session.note_rung(doorbell(2, 4096));
    session.note_rung(doorbell(2, 4096));
    assert!(session.is_rung());
    session.ring(&mut Lent {
        function: &mut log,
        hca: &mut hca,
        now: Instant::ZERO,
    });
    assert_eq!(log.rung, [doorbell(2, 0x14), doorbell(2, 4096)]);
    assert_eq!((session.is_rung(), session.statistics().rings), (false, 2));
    session.remove_doorbells();
    let gone = core::iter::from_fn(|| session.poll_doorbell_change());
    assert_eq!(gone.count(), 64);
}

#[test]
fn a_session_without_eventfds_has_none_for_doorbells() {
    let (turns, handled, _) = handle(io_fds(2, 64), 1);
    assert_eq!((turns, handled.reply.unwrap().bytes.len()), (1, 32));
    // A region that no function has, and flags that do not exist.
    let is_error = |message| handle(message, 1).1.reply.unwrap().bytes[8] & 0x20 != 0;
    assert!(is_error(io_fds(9, 64)));
    let odd = RegionIoFds {
        argsz: U32::new(16),
        flags: U32::new(1),
        ..RegionIoFds::default()
    };
    assert!(is_error(message(
        Command::DEVICE_GET_REGION_IO_FDS,
        odd.as_bytes()
    )));
}
