//! Two reliable connections in one program: an RDMA write, a fetch-and-add and a send, handed over as whole runs.
//!
//! `cargo run -p ib-transport --example loopback`

use std::ops::Range;

use ib_transport::{
    AckTimeout, AtomicOp, Effects, Event, LocalFault, LocalRight, Operation, PathMtu, ReceiveFault,
    Received, ReliableConnection, RemoteFault, RemoteRight, RemoteRights, RemoteStart, Request,
    RequesterConfig, ResponderConfig, RetryCount, RnrRetryCount, RnrTimer, Status, Taken,
};
use ib_vtime::Instant;
use ib_wire::packet::FlushPlacement;
use ib_wire::{Mtu, Psn, RKey};

const KEY: RKey = RKey::new(0x1234);

/// Surroundings of a connection: 64 KiB of memory under one key, one receive of 64 bytes at offset 0.
#[derive(Debug)]
struct Host {
    name: &'static str,
    memory: Vec<u8>,
    receives: u32,
    /// Payload of the run that is being taken.
    arriving: Vec<u8>,
    /// Payload of the run that a poll returns.
    leaving: Vec<u8>,
}

impl Host {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            memory: vec![0; 1 << 16],
            receives: 1,
            arriving: Vec::new(),
            leaving: Vec::new(),
        }
    }

    fn store(&mut self, at: usize, payload: Range<u32>) {
        let bytes = &self.arriving[payload.start as usize..payload.end as usize];
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn load(&mut self, at: usize, len: u32) {
        self.leaving = self.memory[at..at + len as usize].to_vec();
    }
}

impl Effects for Host {
    /// Offset in memory; lists here are in one piece and always usable.
    type Buffer = usize;
    type Region = ();
    type Receive = u32;

    fn check_local(&mut self, _: &usize, _: u32, _: LocalRight) -> Result<(), LocalFault> {
        Ok(())
    }

    fn gather(&mut self, at: &usize, range: Range<u32>) -> Result<(), LocalFault> {
        self.load(at + range.start as usize, range.end - range.start);
        Ok(())
    }

    fn scatter(&mut self, at: &usize, offset: u32, payload: Range<u32>) -> Result<(), LocalFault> {
        self.store(at + offset as usize, payload);
        Ok(())
    }

    fn store_original(&mut self, at: &usize, original: u64) -> Result<(), LocalFault> {
        self.memory[*at..at + 8].copy_from_slice(&original.to_le_bytes());
        Ok(())
    }

    fn execute(&mut self, _: &usize) -> Result<(), LocalFault> {
        Err(LocalFault)
    }

    fn complete_send(&mut self, request: Request<usize>, status: Status) {
        println!("{}: {:?} ends: {status:?}", self.name, request.operation);
    }

    fn look_up(
        &mut self,
        key: RKey,
        addr: u64,
        len: u32,
        _: RemoteRight,
    ) -> Result<(), RemoteFault> {
        let end = addr.checked_add(u64::from(len)).ok_or(RemoteFault)?;
        if key == KEY && end <= self.memory.len() as u64 {
            Ok(())
        } else {
            Err(RemoteFault)
        }
    }

    fn place(&mut self, (): (), addr: u64, payload: Range<u32>) -> Result<(), RemoteFault> {
        self.store(usize::try_from(addr).map_err(|_| RemoteFault)?, payload);
        Ok(())
    }

    fn place_at_once(&mut self, (): (), addr: u64, payload: Range<u32>) -> Result<(), RemoteFault> {
        self.place((), addr, payload)
    }

    fn flush(
        &mut self,
        key: RKey,
        range: Option<(u64, u32)>,
        _: FlushPlacement,
    ) -> Result<(), RemoteFault> {
        let (addr, len) = range.unwrap_or_default();
        self.look_up(key, addr, len, RemoteRight::Write)
    }

    fn fetch(&mut self, (): (), addr: u64, len: u32) -> Result<(), RemoteFault> {
        self.load(usize::try_from(addr).map_err(|_| RemoteFault)?, len);
        Ok(())
    }

    fn atomic(&mut self, (): (), addr: u64, op: AtomicOp) -> Result<u64, RemoteFault> {
        let at = usize::try_from(addr).map_err(|_| RemoteFault)?;
        let bytes = self.memory[at..].first_chunk_mut().ok_or(RemoteFault)?;
        let original = u64::from_le_bytes(*bytes);
        *bytes = op.apply(original).to_le_bytes();
        Ok(original)
    }

    fn take_receive(&mut self) -> Result<Option<Taken<u32>>, ReceiveFault<u32>> {
        self.receives = match self.receives.checked_sub(1) {
            Some(left) => left,
            None => return Ok(None),
        };
        Ok(Some(Taken {
            receive: self.receives,
            capacity: 64,
        }))
    }

    fn fill(&mut self, _: &u32, offset: u32, payload: Range<u32>) -> Result<(), LocalFault> {
        self.store(offset as usize, payload);
        Ok(())
    }

    fn invalidate(&mut self, _: RKey) -> Result<(), RemoteFault> {
        Err(RemoteFault)
    }

    fn complete_receive(&mut self, received: Received<u32>) {
        println!("{}: received {} bytes", self.name, received.len);
    }

    fn raise(&mut self, event: Event) {
        println!("{}: event {event:?}", self.name);
    }
}

fn connection(first_psn: Psn) -> Option<ReliableConnection<usize, (), u32>> {
    let pmtu = PathMtu::new(Mtu::MTU_1024)?;
    let requester = RequesterConfig {
        pmtu,
        first_psn,
        ack_timeout: AckTimeout::from_low_bits(14),
        retries: RetryCount::from_low_bits(7),
        rnr_retries: RnrRetryCount::INFINITE,
        max_reads: 4,
        window: 128,
        ack_interval: 16,
        max_message: 1 << 30,
    };
    let responder = ResponderConfig {
        pmtu,
        first_psn,
        rights: RemoteRights {
            read: true,
            write: true,
            atomic: true,
            flush: FlushPlacement::GLOBAL,
        },
        max_reads: 4,
        min_rnr_timer: RnrTimer::from_low_bits(12),
        shared_receives: false,
    };
    let mut connection = ReliableConnection::new(requester, responder);
    connection.start();
    Some(connection)
}

fn main() -> Result<(), &'static str> {
    let make = || connection(Psn::from_low_bits(7)).ok_or("an unknown MTU");
    let mut ends = [(make()?, Host::new("a")), (make()?, Host::new("b"))];
    let (a, host) = &mut ends[0];
    host.memory[..5000].fill(b'x');
    let to = RemoteStart {
        addr: 4096,
        rkey: KEY,
    };
    for (operation, buffer, len) in [
        (Operation::Write(to), 0, 5000),
        (
            Operation::Atomic(to, AtomicOp::FetchAdd { add: 1 }),
            8192,
            8,
        ),
        (Operation::Send, 0, 12),
    ] {
        let request = Request {
            operation,
            buffer,
            len,
            fence: false,
            solicited: false,
        };
        a.post(request, host);
    }
    // A device sends in turns and keeps timers; without losses it is enough to carry until nothing leaves.
    let now = Instant::ZERO;
    let mut idle = 0;
    for from in [0, 1].into_iter().cycle() {
        let (connection, host) = &mut ends[from];
        let Some(transfer) = connection.poll_transmit(now, 64, host) else {
            idle += 1;
            if idle == 2 {
                break;
            }
            continue;
        };
        idle = 0;
        let payload = std::mem::take(&mut host.leaving);
        let (connection, host) = &mut ends[1 - from];
        host.arriving = payload;
        connection.handle(now, &transfer, host);
    }
    println!("b holds {:?} ...", &ends[1].1.memory[4096..4106]);
    Ok(())
}
