//! Shared memory and a program for the tests of this crate.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    Consumer, FunctionId, FunctionManager, FunctionSpec, Hca, HostMemory, PortState,
    ResourceCounts, VirtualPort,
};
use hca_functions::Functions;
use ib_vtime::Instant;
use ib_wire::{Guid, Lid, Mtu, PKeyIndex, PortNum};
use verbs_link::abi::{CommandHeader, command};
use verbs_link::{Budget, Errno, Reply};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{ContextId, ProcessDevice, RingMemory};

/// Returns a command with a payload, whose answer has so many bytes of room.
pub(crate) fn command_bytes(
    number: u32,
    payload: &(impl IntoBytes + Immutable),
    room: usize,
) -> Vec<u8> {
    let payload = payload.as_bytes();
    let words = |bytes: usize| u16::try_from(bytes / 4).unwrap();
    let header = CommandHeader {
        command: number.into(),
        in_words: words(size_of::<CommandHeader>() + payload.len()).into(),
        out_words: words(room).into(),
    };
    [header.as_bytes(), payload].concat()
}

/// LID of the port.
pub(crate) const LID: u16 = 5;

/// Shared memory on the heap, with the pages that were touched.
#[derive(Debug)]
pub(crate) struct HeapRings(Mutex<(Vec<u8>, BTreeSet<usize>)>);

impl HeapRings {
    pub(crate) fn new(len: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new((vec![0; len], BTreeSet::new()))))
    }

    /// Calls something with bytes whose pages exist from then on.
    fn part<T>(&self, offset: u64, len: usize, call: impl FnOnce(&mut [u8]) -> T) -> T {
        let at = usize::try_from(offset).unwrap();
        let (bytes, pages) = &mut *self.0.lock().unwrap();
        pages.extend(at / 4096..(at + len).div_ceil(4096));
        call(&mut bytes[at..at + len])
    }

    pub(crate) fn store_at(&self, offset: u64, bytes: &[u8]) {
        self.write(offset, bytes);
    }
}

impl RingMemory for HeapRings {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().0.len() as u64
    }

    fn load(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.read(offset, &mut bytes);
        u32::from_ne_bytes(bytes)
    }

    fn store(&self, offset: u64, value: u32) {
        self.write(offset, &value.to_ne_bytes());
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) {
        self.part(offset, bytes.len(), |part| bytes.copy_from_slice(part));
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.part(offset, bytes.len(), |part| part.copy_from_slice(bytes));
    }

    fn clear(&self, offset: u64, len: u64) {
        let at = usize::try_from(offset).unwrap();
        let len = usize::try_from(len).unwrap();
        self.part(offset, len, |part| part.fill(0));
        let gone = at / 4096..(at + len).div_ceil(4096);
        let pages = &mut self.0.lock().unwrap().1;
        pages.retain(|page| !gone.contains(page));
    }

    fn resident(&self) -> u64 {
        self.0.lock().unwrap().1.len() as u64 * 4096
    }
}

/// Function of a device on functions in software.
const VF: FunctionId = FunctionId(1);

fn activate(adapter: &mut Device) {
    let port = adapter.node_mut().port_mut(PortNum(1)).unwrap();
    port.state = PortState::Active;
    port.lid = Lid::new(LID);
    port.neighbor_mtu = Mtu::MTU_2048;
}

/// A process with its device on an adapter whose port is active.
pub(crate) struct Process {
    pub(crate) adapter: Device,
    /// Functions in software, if the device is on one of these.
    functions: Option<Functions>,
    pub(crate) device: ProcessDevice,
    pub(crate) rings: Arc<HeapRings>,
    pub(crate) context: ContextId,
    pub(crate) budget: Budget,
}

impl Process {
    /// A process with an open context.
    pub(crate) fn new() -> Self {
        Self::with_budget(Budget::new(1 << 20, None), 1 << 20)
    }

    /// The same with a budget, and with so many bytes for rings.
    pub(crate) fn with_budget(budget: Budget, bytes: usize) -> Self {
        let guid = Guid::new(0x0002_c903_0000_1000);
        let mut adapter = Device::new(&HcaConfig::new(guid, "test"), 7);
        activate(&mut adapter);
        let rings = HeapRings::new(bytes);
        let mut device = ProcessDevice::new();
        assert!(device.claim(rings.clone(), budget.clone()));
        let context = device.open().unwrap();
        let mut process = Self {
            adapter,
            functions: None,
            device,
            rings,
            context,
            budget,
        };
        let reply = process.command(command::GET_CONTEXT, &0_u64, 8).unwrap();
        assert!(reply.opened.is_some());
        process
    }

    pub(crate) fn with<T>(
        &mut self,
        call: impl FnOnce(&mut ProcessDevice, &mut dyn Hca) -> T,
    ) -> T {
        let mut hca = self.adapter.function(FunctionId::PF).unwrap();
        match &mut self.functions {
            None => call(&mut self.device, &mut hca),
            Some(functions) => call(&mut self.device, &mut functions.function(hca, VF).unwrap()),
        }
    }

    /// Puts a device that nothing uses yet on a virtual function in software over the adapter.
    pub(crate) fn in_software(mut self) -> Self {
        let mut functions = Functions::new(1, 9);
        let guid = Guid::new(0x0002_c903_0000_2000);
        let mut adapter = Device::with_memory(&HcaConfig::new(guid, "test"), 7, functions.memory());
        activate(&mut adapter);
        let physical = adapter.function(FunctionId::PF).unwrap();
        let mut pf = functions.function(physical, FunctionId::PF).unwrap();
        let many = 100;
        pf.create_function(FunctionSpec {
            id: VF,
            node_guid: guid,
            memory: Box::new(HostMemory::new()),
            quota: ResourceCounts {
                pds: many,
                avs: many,
                cqs: many,
                srqs: many,
                qps: many,
                mrs: many,
                mws: many,
                attachments: many,
            },
        })
        .unwrap();
        let view = VirtualPort {
            state: PortState::Active,
            pkeys: vec![Some(PKeyIndex(0))],
            smi_enabled: false,
        };
        pf.set_virtual_port(VF, PortNum(1), view).unwrap();
        self.adapter = adapter;
        self.functions = Some(functions);
        self
    }

    /// Writes a command with room for `room` bytes of an answer.
    pub(crate) fn command(
        &mut self,
        number: u32,
        payload: &(impl IntoBytes + Immutable),
        room: usize,
    ) -> Result<Reply, Errno> {
        let bytes = command_bytes(number, payload, room);
        let context = self.context;
        self.with(|device, hca| device.command(hca, context, &bytes))
    }

    /// The same for an answer that is a layout, and the provider's part behind it.
    pub(crate) fn ask<A, B>(
        &mut self,
        number: u32,
        payload: &(impl IntoBytes + Immutable),
    ) -> (A, B)
    where
        A: FromBytes + KnownLayout + Immutable + Unaligned,
        B: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let room = size_of::<A>() + size_of::<B>();
        let reply = self.command(number, payload, room).unwrap();
        let (core, rest) = A::read_from_prefix(&reply.answer).unwrap();
        (core, B::read_from_bytes(rest).unwrap())
    }

    /// Runs the device until nothing is due.
    pub(crate) fn settle(&mut self) {
        self.with(
            |device, hca| {
                while device.take_turn(Instant::ZERO, hca, &mut || false) {}
            },
        );
    }
}
