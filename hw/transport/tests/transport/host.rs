//! One end: a connection with its memory, receives, completions and events.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use ib_transport::{
    AtomicOp, Effects, Event, LocalFault, LocalRight, ReceiveFault, Received, RemoteFault,
    RemoteRight, Request, Status, Taken,
};
use ib_wire::RKey;
use ib_wire::packet::FlushPlacement;

/// A gather or scatter list of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buffer {
    pub(crate) id: u64,
    pub(crate) at: usize,
}

/// A receive request of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    pub(crate) at: usize,
    pub(crate) len: u32,
}

/// A memory region with remote rights. Addresses are offsets in the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) rkey: RKey,
    pub(crate) range: (u64, u64),
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) atomic: bool,
    pub(crate) flush: FlushPlacement,
    pub(crate) generation: u32,
}

/// Index and generation of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region(usize, u32);

/// Faults of the receive queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum QueueFault {
    #[default]
    None,
    Malformed,
    Unreachable,
}

/// The surroundings of one end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) memory: Vec<u8>,
    pub(crate) keys: Vec<Key>,
    pub(crate) receives: VecDeque<Receive>,
    pub(crate) queue_fault: QueueFault,
    /// Requests and receives whose local memory cannot be used.
    pub(crate) bad_buffers: BTreeSet<u64>,
    pub(crate) bad_receives: BTreeSet<u64>,
    /// Local requests that were carried out.
    pub(crate) executed: Vec<u64>,
    pub(crate) sends: Vec<(u64, Status)>,
    pub(crate) received: Vec<Received<Receive>>,
    pub(crate) events: Vec<Event>,
    pub(crate) atomics: u64,
    pub(crate) flushes: u64,
    /// Payload of the run that is being taken.
    pub(crate) arriving: Vec<u8>,
    /// Payload of the run that a poll returned.
    pub(crate) staged: Vec<u8>,
}

impl Host {
    pub(crate) fn revoke(&mut self, index: usize) {
        self.keys[index].generation += 1;
        self.keys[index].range = (0, 0);
    }

    fn region(&self, region: Region) -> Result<(), RemoteFault> {
        if self.keys[region.0].generation == region.1 {
            Ok(())
        } else {
            Err(RemoteFault)
        }
    }

    fn copy(&mut self, at: usize, payload: Range<u32>) {
        let payload = payload.start as usize..payload.end as usize;
        let bytes = &self.arriving[payload];
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Effects for Host {
    type Buffer = Buffer;
    type Region = Region;
    type Receive = Receive;

    fn check_local(
        &mut self,
        buffer: &Buffer,
        _len: u32,
        _right: LocalRight,
    ) -> Result<(), LocalFault> {
        if self.bad_buffers.contains(&buffer.id) {
            return Err(LocalFault);
        }
        Ok(())
    }

    fn gather(&mut self, buffer: &Buffer, range: Range<u32>) -> Result<(), LocalFault> {
        if self.bad_buffers.contains(&buffer.id) {
            return Err(LocalFault);
        }
        let bytes = buffer.at + range.start as usize..buffer.at + range.end as usize;
        self.staged.clear();
        self.staged.extend_from_slice(&self.memory[bytes]);
        Ok(())
    }

    fn scatter(
        &mut self,
        buffer: &Buffer,
        offset: u32,
        payload: Range<u32>,
    ) -> Result<(), LocalFault> {
        if self.bad_buffers.contains(&buffer.id) {
            return Err(LocalFault);
        }
        self.copy(buffer.at + offset as usize, payload);
        Ok(())
    }

    fn store_original(&mut self, buffer: &Buffer, original: u64) -> Result<(), LocalFault> {
        if self.bad_buffers.contains(&buffer.id) {
            return Err(LocalFault);
        }
        self.memory[buffer.at..buffer.at + 8].copy_from_slice(&original.to_le_bytes());
        Ok(())
    }

    fn execute(&mut self, buffer: &Buffer) -> Result<(), LocalFault> {
        if self.bad_buffers.contains(&buffer.id) {
            return Err(LocalFault);
        }
        self.executed.push(buffer.id);
        Ok(())
    }

    fn complete_send(&mut self, request: Request<Buffer>, status: Status) {
        self.sends.push((request.buffer.id, status));
    }

    fn look_up(
        &mut self,
        rkey: RKey,
        addr: u64,
        len: u32,
        right: RemoteRight,
    ) -> Result<Region, RemoteFault> {
        assert!(len > 0, "nothing is looked up for no byte");
        let index = self.keys.iter().position(|key| key.rkey == rkey);
        let index = index.ok_or(RemoteFault)?;
        let key = self.keys[index];
        let allowed = match right {
            RemoteRight::Read => key.read,
            RemoteRight::Write => key.write,
            RemoteRight::Atomic => key.atomic,
        };
        let end = addr.checked_add(u64::from(len)).ok_or(RemoteFault)?;
        if !allowed || addr < key.range.0 || end > key.range.1 {
            return Err(RemoteFault);
        }
        Ok(Region(index, key.generation))
    }

    fn place(&mut self, region: Region, addr: u64, payload: Range<u32>) -> Result<(), RemoteFault> {
        self.region(region)?;
        self.copy(usize::try_from(addr).expect("looked up"), payload);
        Ok(())
    }

    fn place_at_once(
        &mut self,
        region: Region,
        addr: u64,
        payload: Range<u32>,
    ) -> Result<(), RemoteFault> {
        self.atomics += 1;
        self.place(region, addr, payload)
    }

    fn flush(
        &mut self,
        rkey: RKey,
        range: Option<(u64, u32)>,
        placement: FlushPlacement,
    ) -> Result<(), RemoteFault> {
        let key = self.keys.iter().find(|key| key.rkey == rkey);
        let key = key.ok_or(RemoteFault)?;
        let (addr, len) = range.unwrap_or((key.range.0, 0));
        let end = addr.checked_add(u64::from(len)).ok_or(RemoteFault)?;
        if !key.flush.contains(placement) || addr < key.range.0 || end > key.range.1 {
            return Err(RemoteFault);
        }
        self.flushes += 1;
        Ok(())
    }

    fn fetch(&mut self, region: Region, addr: u64, len: u32) -> Result<(), RemoteFault> {
        self.region(region)?;
        let at = usize::try_from(addr).expect("looked up");
        self.staged.clear();
        self.staged
            .extend_from_slice(&self.memory[at..at + len as usize]);
        Ok(())
    }

    fn atomic(&mut self, region: Region, addr: u64, op: AtomicOp) -> Result<u64, RemoteFault> {
        self.region(region)?;
        self.atomics += 1;
        let at = usize::try_from(addr).expect("looked up");
        let bytes = &mut self.memory[at..at + 8];
        let original = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        bytes.copy_from_slice(&op.apply(original).to_le_bytes());
        Ok(original)
    }

    fn take_receive(&mut self) -> Result<Option<Taken<Receive>>, ReceiveFault<Receive>> {
        match self.queue_fault {
            QueueFault::Unreachable => return Err(ReceiveFault::Unreachable),
            QueueFault::Malformed => {
                if let Some(receive) = self.receives.pop_front() {
                    return Err(ReceiveFault::Malformed(receive));
                }
            }
            QueueFault::None => {}
        }
        Ok(self.receives.pop_front().map(|receive| Taken {
            receive,
            capacity: u64::from(receive.len),
        }))
    }

    fn fill(
        &mut self,
        receive: &Receive,
        offset: u32,
        payload: Range<u32>,
    ) -> Result<(), LocalFault> {
        if self.bad_receives.contains(&receive.id) {
            return Err(LocalFault);
        }
        self.copy(receive.at + offset as usize, payload);
        Ok(())
    }

    fn invalidate(&mut self, rkey: RKey) -> Result<(), RemoteFault> {
        let index = self.keys.iter().position(|key| key.rkey == rkey);
        self.revoke(index.ok_or(RemoteFault)?);
        Ok(())
    }

    fn complete_receive(&mut self, received: Received<Receive>) {
        self.received.push(received);
    }

    fn raise(&mut self, event: Event) {
        self.events.push(event);
    }
}
