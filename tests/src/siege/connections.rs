//! Attacks by connected queue pairs. A process has two VFs of the attacked adapter, whose guests are each other's peers.

use std::path::Path;

use ib_vtime::Duration;
use ib_wire::{PortNum, Psn, QKey, Qpn};
use mlx4_defs::{Cqn, Pdn};

use super::attacks::{PAGES, Target, note};
use super::victims::{Trouble, machine};
use crate::mlx4_driver::{
    BufferKind, Bus, Connection, ConnectionSpec, CqSpec, DatagramAttributes, Driver, Operation,
    Owner, Payload, Peer, QpSpec, QpUse, Region, Remote, Rights, SendWork, VmmBus, WorkCompletion,
};

const PORT: PortNum = PortNum(1);

/// Requests of a queue pair that are outstanding: as many reads as a responder serves.
const DEPTH: u32 = 16;

/// Bytes of a large message.
const LARGE: usize = 1 << 20;

/// Bytes of a small message.
const SMALL: usize = 2048;

/// Bytes of the longest message.
const LONGEST: usize = 1 << 30;

/// Requests under way of each queue pair of a guest that has many.
const REQUESTS: u32 = 2;

/// First PSN of the connections of guests with many.
const FIRST_PSN: Psn = Psn::from_low_bits(0x42);

/// How long a guest waits where nothing has completed.
const PAUSE: Duration = Duration::from_micros(100);

/// A guest with its driver.
struct Guest {
    bus: VmmBus,
    driver: Driver,
}

impl Guest {
    /// Binds the driver, and waits until the port is active.
    fn start(socket: &Path, pages: usize) -> Result<Self, Trouble> {
        let (mut bus, memory) = machine(socket, pages)?;
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
            guests: [
                Guest::start(target.vf, PAGES)?,
                Guest::start(target.second_vf, PAGES)?,
            ],
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

/// A guest with many queue pairs, which have a completion queue and a region in common.
struct Crowd {
    guest: Guest,
    pd: Pdn,
    cq: Cqn,
    region: Region,
    qpns: Vec<Qpn>,
}

impl Crowd {
    /// Makes the queue pairs, or fewer where the VF may not have so many.
    fn start(socket: &Path, queue_pairs: u32, len: usize) -> Result<Self, Trouble> {
        // Ports have queue pairs of their own.
        const SPARE: u32 = 16;

        let mut guest = Guest::start(socket, 4 * PAGES)?;
        let Guest { bus, driver } = &mut guest;
        let pd = driver.allocate_pd()?;
        let quota = driver.capabilities().qp_quota.saturating_sub(SPARE);
        let queue_pairs = queue_pairs.min(quota);
        let cq = driver.create_cq(
            bus,
            &CqSpec {
                entries: queue_pairs * REQUESTS,
                vector: 0,
                uar: driver.uar(),
                memory: BufferKind::Kernel,
            },
        )?;
        let region = driver.register_repeated(bus, pd, len, Rights::ALL)?;
        let mut this = Self {
            guest,
            pd,
            cq,
            region,
            qpns: Vec::new(),
        };
        for _ in 0..queue_pairs {
            let qpn = this.create()?;
            this.qpns.push(qpn);
        }
        Ok(this)
    }

    fn create(&mut self) -> Result<Qpn, Trouble> {
        let Guest { bus, driver } = &mut self.guest;
        let spec = QpSpec {
            purpose: QpUse::Reliable,
            owner: Owner::Kernel,
            uar: driver.uar(),
            memory: BufferKind::Kernel,
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            sends: REQUESTS,
            receives: 1,
            send_sges: 1,
            receive_sges: 1,
            inline: 0,
            signal_all: false,
        };
        Ok(driver.create_qp(bus, &spec)?)
    }

    fn address(&self, nth: usize) -> Peer {
        let port = self.guest.driver.port(PORT);
        Peer {
            lid: port.info.lid,
            gid: Some(port.gid()),
            qpn: self.qpns[nth],
            psn: FIRST_PSN,
        }
    }

    /// Connects a queue pair to a peer, whatever its state.
    fn connect(&mut self, nth: usize, peer: &Peer) -> Result<(), Trouble> {
        let (Guest { bus, driver }, qpn) = (&mut self.guest, self.qpns[nth]);
        let attributes = DatagramAttributes {
            port: PORT,
            pkey_index: 0,
            qkey: QKey::new(0),
        };
        driver.reset_qp(bus, qpn)?;
        driver.to_init(bus, qpn, &attributes)?;
        driver.connect_rtr(bus, qpn, peer)?;
        Ok(driver.connect_rts(bus, qpn, FIRST_PSN)?)
    }

    /// Posts a request to each queue pair as often as it may have it.
    fn fill(&mut self, work: &SendWork) -> Result<(), Trouble> {
        let Guest { bus, driver } = &mut self.guest;
        for qpn in &self.qpns {
            let free = (REQUESTS - driver.outstanding_sends(*qpn)) as usize;
            if free > 0 {
                driver.post_sends(bus, *qpn, &vec![work.clone(); free])?;
            }
        }
        Ok(())
    }

    /// Takes the completions. Returns the queue pairs that have failed ones.
    fn failures(&mut self) -> Result<Vec<usize>, Trouble> {
        let done = self.guest.driver.poll_cq(self.cq, usize::MAX)?;
        let failed = done.iter().filter(|one| one.error.is_some());
        let place = |one: &WorkCompletion| self.qpns.iter().position(|qpn| *qpn == one.qpn);
        let mut failed: Vec<usize> = failed.filter_map(place).collect();
        failed.sort_unstable();
        failed.dedup();
        Ok(failed)
    }
}

/// Two guests with many queue pairs carry out requests without end.
fn crowds(
    target: Target<'_>,
    queue_pairs: u32,
    len: usize,
    operation: impl Fn(Remote) -> Operation,
) -> Result<(), Trouble> {
    let mut crowds = [
        Crowd::start(target.vf, queue_pairs, len)?,
        Crowd::start(target.second_vf, queue_pairs, len)?,
    ];
    let count = crowds.each_ref().map(|crowd| crowd.qpns.len());
    let connect = |crowds: &mut [Crowd; 2], nth| {
        let [a, b] = crowds;
        let peers = [b.address(nth), a.address(nth)];
        a.connect(nth, &peers[0])?;
        b.connect(nth, &peers[1])
    };
    for crowd in &mut crowds {
        crowd.qpns.truncate(count[0].min(count[1]));
    }
    (0..crowds[0].qpns.len()).try_for_each(|nth| connect(&mut crowds, nth))?;
    loop {
        for (own, peer) in [(0, 1), (1, 0)] {
            let remote = Remote {
                addr: crowds[peer].region.start,
                rkey: crowds[peer].region.key,
            };
            let from = Payload::Gather(vec![crowds[own].region.sge(0, len)]);
            crowds[own].fill(&SendWork::to_peer(0, from, operation(remote)))?;
        }
        // As much is under way as there may be, whether it completes or not.
        note();
        for own in 0..2 {
            for nth in crowds[own].failures()? {
                connect(&mut crowds, nth)?;
            }
            crowds[own].guest.idle()?;
        }
    }
}

/// Two VFs send to each other by 2,000 queue pairs, and neither ever posts a receive: each answers that the other is to wait for 10 us.
pub(super) fn rnr(target: Target<'_>) -> Result<(), Trouble> {
    crowds(target, 2000, SMALL, |_| Operation::Send)
}

/// Two VFs write to each other by 1,000 queue pairs, as much at a time as a message can have.
pub(super) fn writes(target: Target<'_>) -> Result<(), Trouble> {
    crowds(target, 1000, LONGEST, Operation::Write)
}
