use emulated_hca::Topology;
use hca_api::{AsyncEvent, HcaError, HcaEvent};
use ib_vtime::Duration;
use ib_wire::Guid;
use pf_context::context::PfConfig;
use vf_pci::Bar;

use vf_pci::PciEvent;

use super::*;
use crate::Driven;
use crate::Slice;
use crate::world::{VfError, vf_spec};

/// A function whose registers do what the tests need: a write to BAR 2 raises the vector that is written,
/// one to configuration space asks for a reset, and a read tells how often the VF was reset.
#[derive(Debug, Default)]
struct Bell {
    wanted: Vec<PciEvent>,
    resets: u8,
}

impl PciFunction for Bell {
    fn bars(&self) -> &[Bar] {
        &[]
    }

    fn interrupt_vectors(&self) -> u16 {
        256
    }

    fn has_driver(&self) -> bool {
        true
    }

    fn config_read(&self, _: u16, out: &mut [u8]) {
        out.fill(self.resets);
    }

    fn config_write(&mut self, now: Instant, hca: &mut dyn Hca, _: u16, _: &[u8]) {
        self.reset(now, hca);
    }

    fn bar_read(&mut self, _: u8, _: u64, out: &mut [u8]) {
        out.fill(0);
    }

    fn bar_write(&mut self, _: Instant, _: &mut dyn Hca, _: u8, _: u64, bytes: &[u8]) {
        let vectors = bytes.iter().map(|byte| u16::from(*byte));
        let events = vectors.map(|vector| PciEvent::Interrupt { vector });
        self.wanted.extend(events);
    }

    fn handle_hca_event(&mut self, _: Instant, _: &mut dyn Hca, event: &HcaEvent) {
        if *event == HcaEvent::Async(AsyncEvent::FunctionReset) {
            self.resets += 1;
        }
    }

    fn poll(&mut self, _: Instant, _: &mut dyn Hca) -> bool {
        false
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn poll_event(&mut self) -> Option<PciEvent> {
        (!self.wanted.is_empty()).then(|| self.wanted.remove(0))
    }

    fn reset(&mut self, _: Instant, _: &mut dyn Hca) {
        self.wanted.push(PciEvent::ResetWanted);
    }
}

const VF: VfId = VfId::new(3).expect("3 is the number of a VF");

/// A PF host with one VF that has a device.
fn with_device() -> (World, HostFunction) {
    let (fabric, built) = Topology::three_switches().build(1);
    let mut world = World::new(fabric, 1);
    let host = world.add_pf_host(built.hcas[0], &PfConfig::new(1)).unwrap();
    let spec = vf_spec(Guid::new(0x0014_0500_0000_0003));
    world.add_idle_vf(host, VF, spec).unwrap();
    let at = world.add_device(host, VF, Box::<Bell>::default()).unwrap();
    world.run_for(Duration::from_millis(1));
    (world, at)
}

fn vectors(world: &mut World, at: HostFunction) -> Vec<u16> {
    std::iter::from_fn(|| world.poll_interrupt(at)).collect()
}

#[test]
fn a_vector_raised_twice_is_told_once() {
    let (mut world, at) = with_device();
    let bytes = [9, 4, 9];
    world.with_device(at, |bell, hca, now| bell.bar_write(now, hca, 2, 0, &bytes));
    assert_eq!(world.poll_interrupting(), None);
    assert_eq!(world.poll_timeout(), Some(world.now()));
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.poll_interrupting(), Some(at));
    assert_eq!(vectors(&mut world, at), [4, 9]);
    assert_eq!(world.poll_interrupting(), None);
    assert_eq!(vectors(&mut world, at), [0_u16; 0]);
}

#[test]
fn a_reset_that_the_function_wants_releases_what_the_vf_owns_and_is_told() {
    let (mut world, at) = with_device();
    let pd = world.with_hca(at, |hca| hca.alloc_pd()).unwrap();
    world.with_device(at, |bell, hca, now| bell.config_write(now, hca, 0, &[0]));
    world.run_for(Duration::from_millis(1));
    let gone = world.with_hca(at, |hca| hca.dealloc_pd(pd));
    assert_eq!(gone, Err(HcaError::InvalidHandle));
    let view = world.device(at).unwrap();
    let mut resets = [0];
    view.function().config_read(0, &mut resets);
    assert_eq!((resets, view.resets()), ([1], 1));
}

#[test]
fn a_vf_has_one_user() {
    let (mut world, at) = with_device();
    let again = world.add_device(at.host, VF, Box::<Bell>::default());
    assert_eq!(again, Err(PlaceError::InUse(VF)));
    assert_eq!(world.start_guest(at.host, VF), Err(VfError::InUse(VF)));
    world.remove_vf(at.host, VF).unwrap();
    assert!(world.device(at).is_none());
    let gone = world.add_device(at.host, VF, Box::<Bell>::default());
    assert_eq!(gone, Err(PlaceError::NoVf(VF)));
}

/// A function whose work never ends.
#[derive(Debug)]
struct Busy(Bell);

impl PciFunction for Busy {
    fn bars(&self) -> &[Bar] {
        self.0.bars()
    }

    fn interrupt_vectors(&self) -> u16 {
        self.0.interrupt_vectors()
    }

    fn has_driver(&self) -> bool {
        self.0.has_driver()
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        self.0.config_read(offset, out);
    }

    fn config_write(&mut self, _: Instant, _: &mut dyn Hca, _: u16, _: &[u8]) {}

    fn bar_read(&mut self, _: u8, _: u64, _: &mut [u8]) {}

    fn bar_write(&mut self, _: Instant, _: &mut dyn Hca, _: u8, _: u64, _: &[u8]) {}

    fn handle_hca_event(&mut self, _: Instant, _: &mut dyn Hca, _: &HcaEvent) {}

    fn poll(&mut self, _: Instant, _: &mut dyn Hca) -> bool {
        true
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(Instant::ZERO)
    }

    fn poll_event(&mut self) -> Option<PciEvent> {
        None
    }

    fn reset(&mut self, _: Instant, _: &mut dyn Hca) {}
}

#[test]
fn functions_whose_work_never_ends_keep_nobody_from_having_a_turn() {
    let (mut world, at) = with_device();
    for vf in (10..14).filter_map(VfId::new) {
        let spec = vf_spec(Guid::new(0x0014_0500_0000_0000 + u64::from(vf.get())));
        world.add_idle_vf(at.host, vf, spec).unwrap();
        let busy = Box::new(Busy(Bell::default()));
        world.add_device(at.host, vf, busy).unwrap();
    }
    let pd = world.with_hca(at, |hca| hca.alloc_pd()).unwrap();
    let now = world.now();
    for _ in 0..20 {
        world.poll_for(now, &mut Slice::of_steps(3));
    }
    // The driver's reset needs the device's turn, then the PF's, and its own again.
    world.with_device(at, |bell, hca, now| bell.config_write(now, hca, 0, &[0]));
    let mut polls = 0;
    loop {
        let view = world.device(at).unwrap();
        let mut resets = [0];
        view.function().config_read(0, &mut resets);
        if resets == [1] {
            break;
        }
        polls += 1;
        assert!(polls < 30, "it has no turn");
        world.poll_for(now, &mut Slice::of_steps(3));
        assert_eq!(world.poll_timeout(), Some(now), "there is more to do");
    }
    let gone = world.with_hca(at, |hca| hca.dealloc_pd(pd));
    assert_eq!(gone, Err(HcaError::InvalidHandle));
    assert!(!world.is_live_locked());
}
