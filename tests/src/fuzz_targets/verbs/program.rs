//! A program, its device on a VF, and the adapter that nothing else uses.

use std::collections::BTreeSet;
use std::sync::Arc;

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    AsyncEvent, Consumer, FunctionId, FunctionManager, FunctionSpec, Hca, HcaEvent, HostMemory,
    PortChange, PortState, ResourceCounts, VirtualPort,
};
use ib_vtime::{Duration, Instant};
use ib_wire::{Guid, Lid, Mtu, PKeyIndex, PortNum};
use verbs_link::abi::{CommandHeader, command};
use verbs_link::{Budget, ChannelId, Reply};
use vf_uverbs::{ContextId, ProcessDevice, RingMemory};
use zerocopy::IntoBytes;

use super::shared_memory::SharedMemory;

/// Function of the program.
const VF: FunctionId = FunctionId(1);

/// LID of the port, at which the program reaches itself.
pub(super) const LID: u16 = 7;

/// Most that the program may own.
const QUOTA: ResourceCounts = ResourceCounts {
    pds: 16,
    avs: 16,
    cqs: 16,
    srqs: 8,
    qps: 16,
    mrs: 32,
    mws: 8,
    attachments: 8,
};

/// Bytes that the service spends on the program at most.
const MEMORY: u64 = 512 << 10;

/// Turns of the device after each step: what a hostile program has it do need not end.
const TURNS: usize = 32;

/// A program.
pub(super) struct Program {
    adapter: Device,
    device: ProcessDevice,
    pub(super) memory: Arc<SharedMemory>,
    budget: Budget,
    pub(super) contexts: Vec<ContextId>,
    /// Channels that commands opened.
    pub(super) channels: BTreeSet<ChannelId>,
    pub(super) now: Instant,
    pub(super) commands: usize,
}

impl Program {
    /// Creates a program with one open context.
    pub(super) fn new() -> Self {
        let config = HcaConfig::new(Guid::new(0x0002_c903_0000_0000), "fuzz");
        let mut adapter = Device::new(&config, 7);
        let port = adapter.node_mut().port_mut(PortNum(1)).expect("a port");
        port.state = PortState::Active;
        port.lid = Lid::new(LID);
        port.sm_lid = port.lid;
        port.neighbor_mtu = Mtu::MTU_2048;
        let mut pf = adapter.function(FunctionId::PF).expect("the PF");
        pf.create_function(FunctionSpec {
            id: VF,
            node_guid: Guid::new(0x0014_0500_0000_0001),
            memory: Box::new(HostMemory::new()),
            quota: QUOTA,
        })
        .expect("a VF of the adapter");
        let view = VirtualPort {
            state: PortState::Active,
            pkeys: vec![Some(PKeyIndex(0)), None],
            smi_enabled: false,
        };
        pf.set_virtual_port(VF, PortNum(1), view).expect("a port");
        let mut program = Self {
            adapter,
            device: ProcessDevice::new(),
            memory: Arc::new(SharedMemory::new()),
            budget: Budget::default(),
            contexts: Vec::new(),
            channels: BTreeSet::new(),
            now: Instant::from_millis(1),
            commands: 0,
        };
        program.start();
        program
    }

    /// Takes the device for a new process.
    fn start(&mut self) {
        self.memory = Arc::new(SharedMemory::new());
        self.budget = Budget::new(MEMORY, None);
        let claimed = self.device.claim(self.memory.clone(), self.budget.clone());
        assert!(claimed, "nobody has it");
        self.open();
    }

    pub(super) fn with<T>(
        &mut self,
        call: impl FnOnce(&mut ProcessDevice, &mut dyn Hca) -> T,
    ) -> T {
        let mut hca = self.adapter.function(VF).expect("the VF");
        call(&mut self.device, &mut hca)
    }

    /// Calls something with the PF, whose port has a GID without a subnet manager.
    pub(super) fn with_pf<T>(&mut self, call: impl FnOnce(&mut dyn Hca) -> T) -> T {
        call(&mut self.adapter.function(FunctionId::PF).expect("the PF"))
    }

    /// Opens a file and its context.
    pub(super) fn open(&mut self) {
        if let Ok(context) = self.device.open() {
            self.contexts.push(context);
            self.ask(context, command::GET_CONTEXT, &0_u64, 8);
        }
    }

    /// Closes a file.
    pub(super) fn close(&mut self, context: ContextId) {
        self.contexts.retain(|open| *open != context);
        self.with(|device, hca| device.close(hca, context));
    }

    /// Ends the process: the PF resets the function, and another process has it.
    pub(super) fn restart(&mut self) {
        self.device.release();
        assert!(self.device.is_resetting() && !self.device.is_free());
        self.reset();
        assert!(self.device.is_free());
        self.contexts.clear();
        self.channels.clear();
        self.start();
    }

    /// Resets the function as the PF does, and passes the event on to the device.
    pub(super) fn reset(&mut self) {
        let mut pf = self.adapter.function(FunctionId::PF).expect("the PF");
        pf.reset_function(VF).expect("the VF");
        let now = self.now;
        let reset = HcaEvent::Async(AsyncEvent::FunctionReset);
        self.with(|device, hca| {
            while let Some(event) = hca.poll_event() {
                device.handle_hca_event(now, hca, &event);
            }
            device.handle_hca_event(now, hca, &reset);
        });
        let _ = self.device.take_reset_request();
        assert_eq!(self.owned(), ResourceCounts::default());
    }

    /// Reports a change of the port.
    pub(super) fn notify(&mut self, change: PortChange) {
        let port = PortNum(1);
        let mut pf = self.adapter.function(FunctionId::PF).expect("the PF");
        pf.notify(VF, AsyncEvent::Port { port, change })
            .expect("a port of the adapter");
    }

    /// Writes a command as libibverbs does. Returns the answer, unless it is refused.
    pub(super) fn ask(
        &mut self,
        context: ContextId,
        number: u32,
        payload: &(impl IntoBytes + zerocopy::Immutable),
        room: usize,
    ) -> Option<Vec<u8>> {
        let bytes = encoded(number, payload.as_bytes(), room);
        let reply = self.command(context, &bytes)?;
        Some(reply.answer)
    }

    /// Writes any bytes to a file.
    pub(super) fn command(&mut self, context: ContextId, bytes: &[u8]) -> Option<Reply> {
        let reply = self.with(|device, hca| device.command(hca, context, bytes));
        let reply = reply.ok()?;
        self.commands += 1;
        self.channels.extend(reply.opened);
        Some(reply)
    }

    /// Allocates memory of the program.
    pub(super) fn allocate(&mut self, len: usize) -> u64 {
        self.with(|_, hca| hca.allocate_dma(len).expect("memory of the program").addr)
    }

    /// Advances the clock.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.adapter.handle_timeout(self.now);
    }

    /// Polls the device a bounded number of times, and reads the events.
    pub(super) fn settle(&mut self) {
        for _ in 0..TURNS {
            let now = self.now;
            let mut more = self.with(|device, hca| {
                let mut more = false;
                while let Some(event) = hca.poll_event() {
                    device.handle_hca_event(now, hca, &event);
                    more = true;
                }
                more | device.poll(now, hca)
            });
            while self.adapter.poll_transmit(now, PortNum(1)).is_some() {
                more = true;
            }
            if !more {
                break;
            }
        }
        while let Some(event) = self.device.poll_event() {
            assert!(
                self.channels.contains(&event.channel),
                "a channel of its own"
            );
            assert!(matches!(event.bytes.len(), 8 | 16));
        }
    }

    fn owned(&mut self) -> ResourceCounts {
        let pf = self.adapter.function(FunctionId::PF).expect("the PF");
        pf.resources(VF).expect("the VF")
    }

    /// Checks the bounds after a step.
    pub(super) fn check(&mut self) {
        self.settle();
        let owned = self.owned();
        let within = owned.qps <= QUOTA.qps
            && owned.cqs <= QUOTA.cqs
            && owned.mrs <= QUOTA.mrs
            && owned.avs <= QUOTA.avs
            && owned.pds <= QUOTA.pds
            && owned.srqs <= QUOTA.srqs
            && owned.mws <= QUOTA.mws
            && owned.attachments <= QUOTA.attachments;
        assert!(within, "{owned:?}");
        let queue_pairs = u32::try_from(self.device.queue_pairs()).expect("a few");
        assert_eq!(queue_pairs, owned.qps, "none is forgotten");
        assert!(self.budget.used() <= MEMORY, "{:?}", self.budget);
    }

    /// Closes everything: nothing is left, whatever was done.
    pub(super) fn end(mut self) {
        self.memory.set_restless(0);
        for context in self.contexts.clone() {
            self.close(context);
        }
        self.settle();
        assert_eq!(self.owned(), ResourceCounts::default());
        // All of the memory can be had again.
        self.open();
        self.restart();
        for context in self.contexts.clone() {
            self.close(context);
        }
        self.device.release();
        self.reset();
        assert_eq!(
            self.budget.used(),
            0,
            "nothing is charged to a process that is gone"
        );
        assert_eq!(self.device.poll_timeout(), None);
        assert!(self.device.is_free());
    }

    /// Returns an index of a ring as the program reads it.
    pub(super) fn index(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.memory.read(offset, &mut bytes);
        u32::from_ne_bytes(bytes)
    }
}

/// Returns the bytes of a command of the form that libibverbs uses most.
pub(super) fn encoded(number: u32, payload: &[u8], room: usize) -> Vec<u8> {
    let words = |bytes: usize| u16::try_from(bytes / 4).unwrap_or(u16::MAX);
    let header = CommandHeader {
        command: number.into(),
        in_words: words(size_of::<CommandHeader>() + payload.len()).into(),
        out_words: words(room).into(),
    };
    [header.as_bytes(), payload].concat()
}
