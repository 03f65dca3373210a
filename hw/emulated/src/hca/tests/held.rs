//! Functions that are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use hca_api::DmaFault;
use hca_api::SpecialQp::Gsi;

use super::*;

/// Memory that counts accesses while nobody may access it.
#[derive(Debug)]
struct Watched {
    memory: HostMemory,
    watch: Arc<Watch>,
}

#[derive(Debug, Default)]
struct Watch {
    is_held: AtomicBool,
    accesses: AtomicU32,
}

impl Watched {
    fn note(&self) {
        if self.watch.is_held.load(Ordering::Relaxed) {
            self.watch.accesses.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl AddressSpace for Watched {
    fn read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault> {
        self.note();
        self.memory.read(addr, buf)
    }

    fn write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault> {
        self.note();
        self.memory.write(addr, bytes)
    }

    fn update_u64(
        &mut self,
        addr: u64,
        update: &mut dyn FnMut(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        self.note();
        self.memory.update_u64(addr, update)
    }

    fn allocate(&mut self, len: usize) -> Result<DmaBuffer, HcaError> {
        self.memory.allocate(len)
    }

    fn free(&mut self, buffer: DmaBuffer) {
        self.memory.free(buffer);
    }
}

/// An adapter with a VF that is watched, and one that sends to it.
struct Rig {
    device: Device,
    watch: Arc<Watch>,
    own: Peer,
    other: Peer,
}

impl Rig {
    fn new() -> Self {
        let mut device = device(5);
        let watch = Arc::<Watch>::default();
        let memory = Watched {
            memory: HostMemory::new(),
            watch: Arc::clone(&watch),
        };
        add_vf_in(&mut device, VF1, Box::new(memory));
        add_vf(&mut device, VF2);
        let own = open(&mut device, VF1, QpKind::Ud);
        let other = open(&mut device, VF2, QpKind::Ud);
        Self {
            device,
            watch,
            own,
            other,
        }
    }

    fn hold(&mut self, held: bool) {
        if !held {
            self.watch.is_held.store(false, Ordering::Relaxed);
        }
        self.device.hold(VF1, held);
        self.watch.is_held.store(held, Ordering::Relaxed);
    }

    /// Sends a message from the other VF.
    fn send(&mut self, message: &[u8]) {
        let destination = to(vector(5), self.own.numbers.real, QKEY);
        let sent = self
            .other
            .send(&mut self.device, Some(destination), message);
        sent.unwrap();
        let _ = self.other.poll_one(&mut self.device);
    }
}

#[test]
fn a_thousand_pauses_amid_traffic_touch_no_memory_and_lose_nothing() {
    let mut rig = Rig::new();
    let gsi = |function| QpKind::Tunnel {
        function,
        special: Gsi,
        port: PORT,
    };
    let proxy = QpKind::Proxy {
        special: Gsi,
        port: PORT,
    };
    let proxy = open(&mut rig.device, VF1, proxy);
    let tunnel = open(&mut rig.device, PF, gsi(VF1));
    for round in 0..1000_u32 {
        let [a, b, ..] = round.to_le_bytes();
        for slot in [1, 2, 3] {
            rig.own.post_recv(&mut rig.device, slot);
        }
        proxy.post_recv(&mut rig.device, 1);
        rig.send(&[a, b, 1]);
        rig.hold(true);
        rig.send(&[a, b, 2]);
        rig.send(&[a, b, 3]);
        tunnel.send(&mut rig.device, None, &[a, b]).unwrap();
        assert_eq!(rig.own.poll_one(&mut rig.device).wr_id, 1);
        assert_eq!(proxy.outcomes(&mut rig.device), []);
        rig.hold(false);
        let done = rig.own.poll(&mut rig.device);
        assert_eq!(
            done.iter().map(|done| done.wr_id).collect::<Vec<_>>(),
            [2, 3]
        );
        for slot in [1_u8, 2, 3] {
            let received = rig.own.received(&mut rig.device, slot.into(), GRH + 3);
            assert_eq!(received[GRH..], [a, b, slot]);
        }
        assert_eq!(proxy.poll_one(&mut rig.device).byte_len, 42);
        let _ = tunnel.poll(&mut rig.device);
    }
    assert_eq!(rig.watch.accesses.load(Ordering::Relaxed), 0);
    assert_eq!(rig.device.drops().get(DropReason::Held), 0);
}

#[test]
fn messages_beyond_the_bound_are_dropped_and_counted() {
    const SENT: u64 = 1000;
    let mut rig = Rig::new();
    rig.hold(true);
    for _ in 0..SENT {
        rig.send(&[7; 1024]);
    }
    let dropped = rig.device.drops().get(DropReason::Held);
    assert!(dropped > SENT - 256 && dropped < SENT, "{dropped}");
    for slot in 1..=15 {
        rig.own.post_recv(&mut rig.device, slot);
    }
    rig.hold(false);
    assert_eq!(rig.own.poll(&mut rig.device).len(), 15);
    let no_receive = rig.device.drops().get(DropReason::NoReceive);
    assert_eq!(no_receive + dropped + 15, SENT);
    // Nothing is held any more.
    rig.own.post_recv(&mut rig.device, 1);
    rig.send(&[1]);
    assert_eq!(rig.own.poll_one(&mut rig.device).wr_id, 1);
}

#[test]
fn a_reset_forgets_what_waits_for_a_held_function() {
    let mut rig = Rig::new();
    rig.own.post_recv(&mut rig.device, 1);
    rig.hold(true);
    rig.send(&[1]);
    rig.device
        .function(PF)
        .unwrap()
        .reset_function(VF1)
        .unwrap();
    rig.hold(false);
    assert_eq!(rig.watch.accesses.load(Ordering::Relaxed), 0);
    assert_eq!(rig.device.drops().get(DropReason::NoReceive), 0);
}
