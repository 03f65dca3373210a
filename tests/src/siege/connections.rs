//! Attacks by connected queue pairs. A process has two VFs of the attacked adapter, whose guests are each other's peers.

use std::path::Path;

use ib_vtime::Duration;
use ib_wire::PortNum;

use super::attacks::{PAGES, Target, note};
use super::victims::{Trouble, machine};
use crate::mlx4_driver::{
    Bus, Connection, ConnectionSpec, Driver, Operation, Owner, Payload, SendWork, VmmBus,
    WorkCompletion,
};

const PORT: PortNum = PortNum(1);

/// Requests of a queue pair that are outstanding: as many reads as a responder serves.
const DEPTH: u32 = 16;

/// Bytes of a large message.
const LARGE: usize = 1 << 20;

/// Bytes of a small message.
const SMALL: usize = 2048;

/// How long a guest waits where nothing has completed.
const PAUSE: Duration = Duration::from_micros(100);

/// A guest with its driver.
struct Guest {
    bus: VmmBus,
    driver: Driver,
}

impl Guest {
    /// Binds the driver, and waits until the port is active.
    fn start(socket: &Path) -> Result<Self, Trouble> {
        let (mut bus, memory) = machine(socket, PAGES)?;
        let driver = Driver::probe(&mut bus, memory)?;
        let mut this = Self { bus, driver };
        while !this.driver.port(PORT).is_active() {
            this.idle()?;
        }
        Ok(this)
    }

    fn idle(&mut self) -> Result<(), Trouble> {
        self.driver.serve(&mut self.bus)?;
        self.bus.wait(PAUSE);
        Ok(())
    }

    fn open(&mut self, len: usize) -> Result<Connection, Trouble> {
        let spec = ConnectionSpec {
            owner: Owner::Kernel,
            sends: DEPTH,
            receives: 1,
            len,
            ..ConnectionSpec::reliable()
        };
        Ok(Connection::open(&mut self.driver, &mut self.bus, &spec)?)
    }

    fn completions(&mut self, end: &Connection) -> Result<Vec<WorkCompletion>, Trouble> {
        Ok(end.completions(&mut self.driver)?)
    }

    /// Posts as many requests as there may be, which are all alike.
    fn fill(&mut self, end: &Connection, payload: &Payload, op: Operation) -> Result<(), Trouble> {
        let free = DEPTH - self.driver.outstanding_sends(end.qpn);
        let work = SendWork::to_peer(0, payload.clone(), op);
        let works = vec![work; free as usize];
        Ok(end.post(&mut self.driver, &mut self.bus, &works)?)
    }

    fn disconnect(&mut self, end: &Connection) -> Result<(), Trouble> {
        Ok(end.disconnect(&mut self.driver, &mut self.bus)?)
    }
}

/// Two guests that are each other's peers.
struct Pair {
    guests: [Guest; 2],
}

impl Pair {
    fn start(target: Target<'_>) -> Result<Self, Trouble> {
        Ok(Self {
            guests: [Guest::start(target.vf)?, Guest::start(target.second_vf)?],
        })
    }

    /// Opens a queue pair of each guest, with memory of so many bytes.
    fn open(&mut self, len: usize) -> Result<[Connection; 2], Trouble> {
        let [a, b] = &mut self.guests;
        Ok([a.open(len)?, b.open(len)?])
    }

    /// Connects two queue pairs to each other, whatever state they are in.
    fn connect(&mut self, ends: &[Connection; 2]) -> Result<(), Trouble> {
        let [a, b] = &mut self.guests;
        let peers = [ends[1].address(&b.driver), ends[0].address(&a.driver)];
        for ((guest, end), peer) in [a, b].into_iter().zip(ends).zip(peers) {
            guest.disconnect(end)?;
            end.connect(&mut guest.driver, &mut guest.bus, &peer)?;
        }
        Ok(())
    }

    /// Takes what has completed at both ends, and connects them anew after a failure. Returns the number of successes.
    fn collect(&mut self, ends: &[Connection; 2]) -> Result<usize, Trouble> {
        let mut done = Vec::new();
        for (guest, end) in self.guests.iter_mut().zip(ends) {
            done.extend(guest.completions(end)?);
        }
        let well = done.iter().filter(|one| one.error.is_none()).count();
        if well < done.len() {
            self.connect(ends)?;
        }
        Ok(well)
    }
}

/// Two VFs read from each other, each with as many reads of 1 MiB under way as there may be.
pub(super) fn reads(target: Target<'_>) -> Result<(), Trouble> {
    let mut pair = Pair::start(target)?;
    let ends = pair.open(2 * LARGE)?;
    pair.connect(&ends)?;
    loop {
        for (own, peer) in [(0, 1), (1, 0)] {
            let into = ends[own].part(LARGE, LARGE);
            let read = Operation::Read(ends[peer].remote(0));
            pair.guests[own].fill(&ends[own], &into, read)?;
        }
        let done = pair.collect(&ends)?;
        (0..done).for_each(|_| note());
        if done == 0 {
            pair.guests.iter_mut().try_for_each(Guest::idle)?;
        }
    }
}

/// Two VFs send to each other by many queue pairs, and neither ever posts a receive.
pub(super) fn no_receives(target: Target<'_>) -> Result<(), Trouble> {
    const QUEUE_PAIRS: usize = 32;

    let mut pair = Pair::start(target)?;
    let mut all = Vec::new();
    for _ in 0..QUEUE_PAIRS {
        let ends = pair.open(SMALL)?;
        pair.connect(&ends)?;
        all.push(ends);
    }
    loop {
        for ends in &all {
            for (guest, end) in pair.guests.iter_mut().zip(ends) {
                guest.fill(end, &end.part(0, SMALL), Operation::Send)?;
            }
            pair.collect(ends)?;
        }
        // It sends as much as it may, of which nothing ever completes.
        note();
        pair.guests.iter_mut().try_for_each(Guest::idle)?;
    }
}

/// Writes of 1 MiB to queue pairs that are destroyed meanwhile, over and over.
pub(super) fn lost_peers(target: Target<'_>) -> Result<(), Trouble> {
    const WRITERS: usize = 4;

    let mut pair = Pair::start(target)?;
    let mut all = Vec::new();
    for _ in 0..WRITERS {
        all.push(pair.open(LARGE)?);
    }
    loop {
        for ends in &all {
            pair.connect(ends)?;
            let write = Operation::Write(ends[1].remote(0));
            pair.guests[0].fill(&ends[0], &ends[0].part(0, LARGE), write)?;
        }
        for ends in &all {
            pair.guests[1].disconnect(&ends[1])?;
            note();
        }
        pair.guests.iter_mut().try_for_each(Guest::idle)?;
    }
}
