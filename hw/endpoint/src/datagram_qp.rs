//! A datagram queue pair with its buffers: messages in, messages out.

mod receives;
mod sends;

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

use hca_api::{
    AccessFlags, ArmKind, Completion, CompletionFlags, CompletionStatus, CqHandle, DmaBuffer, Hca,
    HcaError, MrHandle, MrKind, MrSpec, Payload, PdHandle, QpCaps, QpHandle, QpKind, QpModify,
    QpNumbers, QpSpec, QpState, ReceiveMode, SendFlags, SendOp, SendRequest, Sge, SourceAddress,
    UdDestination,
};
use ib_wire::{PKeyIndex, PortNum, Psn, QKey};

use self::receives::{Place, Receives};
use self::sends::Sends;

/// Space in front of each received message, where a GRH stands if there is one (IBA 11.4.1.2).
const GRH_SPACE: u32 = 40;

/// Completions taken from the queue at once.
const POLL_BATCH: usize = 16;

/// Longest message that is given with its request instead of by its place in memory: one that a queue
/// entry of an adapter has room for.
const MAX_INLINE: u32 = 512;

/// What a [`DatagramQp`] is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramQpSpec {
    /// UD, or a special or proxy QP.
    pub kind: QpKind,
    /// The port.
    pub port: PortNum,
    /// The partition; a special QP chooses it with each send instead.
    pub pkey_index: PKeyIndex,
    /// The queue key; that of a special QP is fixed.
    pub qkey: QKey,
    /// Receive buffers.
    pub receives: u32,
    /// Sends that may be under way.
    pub sends: u32,
    /// Bytes of the longest message.
    pub max_message: u32,
    /// Do not deliver to this QP the multicast packets that it sent itself.
    pub block_multicast_loopback: bool,
}

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Who sent it.
    pub source: SourceAddress,
    /// Whether it came by multicast.
    pub multicast: bool,
    /// The message, without the GRH.
    pub bytes: Vec<u8>,
}

/// What arrived with a message that was copied into a buffer of the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Who sent it.
    pub source: SourceAddress,
    /// Whether it came by multicast.
    pub multicast: bool,
    /// Bytes of the message, without the GRH.
    pub len: usize,
}

/// A message that lies in its receive buffer.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    received: Received,
    /// Where the message starts.
    addr: u64,
}

/// A datagram queue pair in the state "ready to send", with its completion queue and its buffers.
///
/// Keeps handles only; every call takes the HCA that they belong to.
#[derive(Debug)]
pub struct DatagramQp {
    spec: DatagramQpSpec,
    numbers: QpNumbers,
    pd: PdHandle,
    cq: CqHandle,
    qp: QpHandle,
    memory: DmaBuffer,
    region: MrHandle,
    inline: bool,
    sends: Sends,
    receives: Receives,
    completions: Completions,
    failed_sends: u64,
    failed_receives: u64,
}

impl DatagramQp {
    /// Makes the queue pair, posts its receives and makes it ready.
    ///
    /// # Errors
    /// Those of the verbs it uses. What was made before the failing one is destroyed again.
    pub fn open(hca: &mut dyn Hca, spec: DatagramQpSpec) -> Result<Self, HcaError> {
        let mut undo = Undo::default();
        let opened = Self::make(hca, spec, &mut undo);
        if opened.is_err() {
            undo.run(hca);
        }
        opened
    }

    fn make(hca: &mut dyn Hca, spec: DatagramQpSpec, undo: &mut Undo) -> Result<Self, HcaError> {
        let inline = spec.max_message <= hca.attributes().limits.max_inline.min(MAX_INLINE);
        let memory = hca.allocate_dma(memory_len(&spec, inline))?;
        undo.memory = Some(memory);
        let pd = hca.alloc_pd()?;
        undo.pd = Some(pd);
        let region = hca.register_mr(&MrSpec {
            pd,
            kind: MrKind::Virtual {
                addr: memory.addr,
                len: memory.len as u64,
            },
            access: AccessFlags::LOCAL_WRITE,
            key: None,
        })?;
        undo.region = Some(region.handle);
        let cq = hca.create_cq(spec.receives.saturating_add(spec.sends))?;
        undo.cq = Some(cq);
        let place = Place {
            addr: memory.addr,
            len: receive_len(&spec),
            lkey: region.lkey,
        };
        let (qp, numbers, receives) = create_qp(hca, &spec, inline, pd, cq, place)?;
        undo.qp = Some(qp);

        let mut this = Self {
            spec,
            numbers,
            pd,
            cq,
            qp,
            memory,
            region: region.handle,
            inline,
            sends: Sends::new(spec.sends),
            receives,
            completions: Completions::new(),
            failed_sends: 0,
            failed_receives: 0,
        };
        let init = QpModify {
            state: Some(QpState::Init),
            port: Some(spec.port),
            pkey_index: Some(spec.pkey_index),
            qkey: Some(spec.qkey),
            ..QpModify::default()
        };
        hca.modify_qp(qp, &init)?;
        this.receives.replenish(hca);
        let change = |state, sq_psn| QpModify {
            state: Some(state),
            sq_psn,
            ..QpModify::default()
        };
        hca.modify_qp(qp, &change(QpState::ReadyToReceive, None))?;
        hca.modify_qp(qp, &change(QpState::ReadyToSend, Some(Psn::default())))?;
        Ok(this)
    }

    /// The queue pair's numbers.
    #[must_use]
    pub const fn numbers(&self) -> QpNumbers {
        self.numbers
    }

    /// The completion queue of its sends and receives.
    #[must_use]
    pub const fn cq(&self) -> CqHandle {
        self.cq
    }

    /// The queue pair, for multicast attachments.
    #[must_use]
    pub const fn handle(&self) -> QpHandle {
        self.qp
    }

    /// What it was made from.
    #[must_use]
    pub const fn spec(&self) -> &DatagramQpSpec {
        &self.spec
    }

    /// Sends and receives that completed with an error so far.
    #[must_use]
    pub const fn failures(&self) -> (u64, u64) {
        (self.failed_sends, self.failed_receives)
    }

    /// Whether everything is where it belongs when nothing is under way: all sends done that tell of
    /// it, all receives posted. What has completed must have been polled.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.sends.is_at_rest() && self.receives.are_at_rest() && self.completions.is_empty()
    }

    /// Messages that can be sent now. Of a long queue only one send in a few tells that it is done, and
    /// so are those before it; as long as nothing is sent, some that are done may not count.
    #[must_use]
    pub fn free_sends(&self) -> usize {
        self.sends.free()
    }

    /// Whether a message can be sent. Once it cannot, [`Self::poll`] makes room when sends complete.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.sends.free() != 0
    }

    /// Sends a message. UD and special QPs need a destination; proxy and tunnel QPs have only one, so
    /// they take `None`.
    ///
    /// # Errors
    /// [`HcaError::QueueFull`] unless [`Self::can_send`], [`HcaError::InvalidParameter`] if the
    /// message is too long, and those of [`Hca::post_send`].
    pub fn send(
        &mut self,
        hca: &mut dyn Hca,
        destination: Option<&UdDestination>,
        message: &[u8],
    ) -> Result<(), HcaError> {
        let len = u32::try_from(message.len())
            .ok()
            .filter(|len| *len <= self.spec.max_message)
            .ok_or(HcaError::InvalidParameter)?;
        if !self.can_send() {
            return Err(HcaError::QueueFull);
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.sends.is_signalled());
        let mut request = SendRequest {
            wr_id: self.sends.next(),
            op: SendOp::Send,
            payload: Payload::Inline(message),
            flags,
            destination: destination.copied(),
        };
        if self.inline {
            hca.post_send(self.qp, &request)?;
        } else {
            let addr = self.send_buffer();
            hca.dma_write(addr, message)?;
            let gather = [Sge {
                addr,
                len,
                lkey: self.receives.lkey(),
            }];
            request.payload = Payload::Gather(&gather);
            hca.post_send(self.qp, &request)?;
        }
        self.sends.post();
        Ok(())
    }

    /// The next received message. Also takes note of completed sends, and gives the receive buffers of
    /// messages before it back; a queue pair in the error state, which flushes them, gets none.
    pub fn poll(&mut self, hca: &mut dyn Hca) -> Option<Datagram> {
        loop {
            let Arrival { received, addr } = self.next_arrival(hca)?;
            let mut bytes = vec![0; received.len];
            if self.copy_out(hca, addr, &mut bytes) {
                return Some(Datagram {
                    source: received.source,
                    multicast: received.multicast,
                    bytes,
                });
            }
        }
    }

    /// As [`Self::poll`], with the message copied to the start of `buffer` and nothing allocated. Of
    /// a message longer than the buffer only the start is copied; [`Received::len`] is the whole
    /// length all the same. Bytes behind a shorter message stay as they are.
    pub fn poll_into(&mut self, hca: &mut dyn Hca, buffer: &mut [u8]) -> Option<Received> {
        loop {
            let Arrival { received, addr } = self.next_arrival(hca)?;
            let fitting = received.len.min(buffer.len());
            if self.copy_out(hca, addr, &mut buffer[..fitting]) {
                return Some(received);
            }
        }
    }

    /// Asks for an [`hca_api::HcaEvent::Completion`] when [`Self::poll`] has something to do next.
    /// `true` if it has already; then no event may come.
    pub fn arm(&self, hca: &mut dyn Hca) -> bool {
        let armed = hca.arm_cq(self.cq, ArmKind::Next);
        !self.completions.is_empty() || armed.unwrap_or(false)
    }

    /// Destroys the queue pair and everything with it.
    pub fn close(self, hca: &mut dyn Hca) {
        Undo {
            memory: Some(self.memory),
            pd: Some(self.pd),
            region: Some(self.region),
            cq: Some(self.cq),
            qp: Some(self.qp),
        }
        .run(hca);
    }

    /// The next message that arrived. The next call may give its buffer back, so it must be copied out
    /// before.
    fn next_arrival(&mut self, hca: &mut dyn Hca) -> Option<Arrival> {
        loop {
            if let Some(completion) = self.completions.next() {
                if let Some(arrival) = self.complete(&completion) {
                    return Some(arrival);
                }
                continue;
            }
            self.receives.replenish(hca);
            if !self.completions.take(hca, self.cq) {
                return None;
            }
        }
    }

    fn complete(&mut self, completion: &Completion) -> Option<Arrival> {
        let succeeded = completion.status == CompletionStatus::Success;
        if self.sends.complete(completion.wr_id) {
            self.failed_sends += u64::from(!succeeded);
            return None;
        }
        // The names of receives were made from the numbers of slots.
        let slot = u32::try_from(completion.wr_id).unwrap_or_default();
        self.receives.filled(slot);
        if completion.status == CompletionStatus::Flushed {
            self.receives.end();
        }
        let len = completion.byte_len.checked_sub(GRH_SPACE);
        let message = completion.source.zip(len).filter(|_| succeeded);
        self.failed_receives += u64::from(message.is_none());
        let (source, len) = message?;
        Some(Arrival {
            received: Received {
                source,
                multicast: completion.flags.contains(CompletionFlags::MULTICAST),
                len: len.min(self.spec.max_message) as usize,
            },
            addr: self.receives.buffer(slot) + u64::from(GRH_SPACE),
        })
    }

    fn copy_out(&mut self, hca: &dyn Hca, addr: u64, to: &mut [u8]) -> bool {
        let copied = hca.dma_read(addr, to).is_ok();
        self.failed_receives += u64::from(!copied);
        copied
    }

    /// Where the next message that is sent lies, if it is not given with its request.
    fn send_buffer(&self) -> u64 {
        let sends = self.receives.buffer(self.spec.receives);
        sends + self.sends.next_slot() * u64::from(self.spec.max_message)
    }
}

/// Makes the queue pair, with receives that the provider takes when it needs them if it can.
fn create_qp(
    hca: &mut dyn Hca,
    spec: &DatagramQpSpec,
    inline: bool,
    pd: PdHandle,
    cq: CqHandle,
    place: Place,
) -> Result<(QpHandle, QpNumbers, Receives), HcaError> {
    let made_with = |receives| QpSpec {
        kind: spec.kind,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr: spec.sends,
            max_recv_wr: spec.receives,
            max_send_sge: u32::from(!inline),
            max_recv_sge: 1,
            max_inline: if inline { spec.max_message } else { 0 },
        },
        signal_all: false,
        receives,
        qpn: None,
        block_multicast_loopback: spec.block_multicast_loopback,
    };
    let (receives, source) = Receives::pulled(place, spec.receives);
    match hca.create_qp(made_with(source)) {
        Ok((qp, numbers)) => Ok((qp, numbers, receives)),
        Err(HcaError::Unsupported) => {
            let (qp, numbers) = hca.create_qp(made_with(ReceiveMode::Posted))?;
            let receives = Receives::posted(place, spec.receives, qp);
            Ok((qp, numbers, receives))
        }
        Err(error) => Err(error),
    }
}

/// Completions that were taken from the queue together, and that are looked at one by one.
#[derive(Debug)]
struct Completions {
    batch: Box<[Completion; POLL_BATCH]>,
    next: usize,
    end: usize,
}

impl Completions {
    fn new() -> Self {
        Self {
            batch: Box::new([Completion::BLANK; POLL_BATCH]),
            next: 0,
            end: 0,
        }
    }

    const fn is_empty(&self) -> bool {
        self.next == self.end
    }

    fn next(&mut self) -> Option<Completion> {
        let completion = *self.batch[..self.end].get(self.next)?;
        self.next += 1;
        Some(completion)
    }

    /// Takes the next ones from the queue, after all of those before. `false` if it is empty.
    fn take(&mut self, hca: &mut dyn Hca, cq: CqHandle) -> bool {
        let taken = hca.poll_cq(cq, &mut self.batch[..]).unwrap_or(0);
        self.next = 0;
        self.end = taken.min(POLL_BATCH);
        taken != 0
    }
}

const fn receive_len(spec: &DatagramQpSpec) -> u32 {
    spec.max_message.saturating_add(GRH_SPACE)
}

fn memory_len(spec: &DatagramQpSpec, inline: bool) -> usize {
    // There is no memory of no bytes.
    let receives = (spec.receives as usize * receive_len(spec) as usize).max(1);
    if inline {
        receives
    } else {
        receives + spec.sends as usize * spec.max_message as usize
    }
}

/// What to destroy, in the order of the fields from the last one on.
#[derive(Debug, Default)]
struct Undo {
    memory: Option<DmaBuffer>,
    pd: Option<PdHandle>,
    region: Option<MrHandle>,
    cq: Option<CqHandle>,
    qp: Option<QpHandle>,
}

impl Undo {
    /// Destroys everything. Errors mean that the device failed or was reset, which took the objects
    /// with it.
    fn run(self, hca: &mut dyn Hca) {
        let _ = self.qp.map(|qp| hca.destroy_qp(qp));
        let _ = self.cq.map(|cq| hca.destroy_cq(cq));
        let _ = self.region.map(|region| hca.deregister_mr(region));
        let _ = self.pd.map(|pd| hca.dealloc_pd(pd));
        if let Some(memory) = self.memory {
            hca.free_dma(memory);
        }
    }
}
