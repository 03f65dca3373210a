//! The probe succeeds, every value is one that the kernel goes on with, and nothing is left behind.

use hca_api::{PortChange, PortState, ResourceCounts};
use ib_vtime::Duration;
use ib_wire::{Lid, PKey, PortNum};
use mlx4_defs::Opcode;
use mlx4_defs::query::dev_cap_flags;
use vhca_tests::mlx4_driver::{
    Bus, Command, Core, Driver, DriverError, Event, FIRST_LID, NODE_GUID, StrayAccesses,
    function_level_reset, interrupt_vectors, measure_bar, place_bar,
};

use super::bench;

const PORT: PortNum = PortNum(1);

#[test]
fn the_lower_driver_probes_and_leaves_nothing_behind() {
    for ports in 1..=2 {
        let (mut bench, memory) = bench(ports);
        for round in 0..3 {
            let core = Core::probe(&mut bench, memory.clone(), 2).unwrap();
            assert_eq!(core.capabilities().ports.len(), usize::from(ports));
            core.remove(&mut bench).unwrap();
            assert_eq!(memory.allocated_pages(), 0, "round {round}");
            assert_eq!(bench.owned(), ResourceCounts::default());
        }
        assert_eq!(memory.stray_accesses(), StrayAccesses::default());
    }
}

#[test]
fn the_whole_driver_probes_and_leaves_nothing_behind() {
    for ports in 1..=2 {
        let (mut bench, memory) = bench(ports);
        for round in 0..3 {
            let driver = Driver::probe(&mut bench, memory.clone()).unwrap();
            assert_eq!(bench.owned().qps, 2 * u32::from(ports));
            driver.remove(&mut bench).unwrap();
            assert_eq!(memory.allocated_pages(), 0, "round {round}");
            assert_eq!(bench.owned(), ResourceCounts::default());
        }
        assert_eq!(memory.stray_accesses(), StrayAccesses::default());
    }
}

#[test]
fn the_driver_reads_what_the_pf_shows_the_vf() {
    let (mut bench, memory) = bench(2);
    let driver = Driver::probe(&mut bench, memory).unwrap();
    let caps = driver.capabilities();
    assert_eq!(caps.firmware, (2, 42, 5000));
    assert!(caps.has_port_events && caps.reserved_lkey.is_some());
    assert_ne!(caps.flags & dev_cap_flags::UD, 0);
    println!("{caps:?}");
    assert!(caps.max_cqes >= 1280 && caps.max_wqes >= 1 << 10);
    assert_eq!(caps.cq_quota, vhca_tests::mlx4_driver::QUOTA.cqs);
    let (_, node) = driver.node();
    assert_eq!(node.node_guid, NODE_GUID);
    assert_eq!(node.num_ports, 2);
    for (port, lid) in [(PortNum(1), FIRST_LID), (PortNum(2), FIRST_LID + 1)] {
        let cache = driver.port(port);
        assert!(cache.is_active());
        assert_eq!(cache.info.lid, Lid::new(lid));
        assert_eq!(cache.pkeys[0], PKey::DEFAULT_FULL);
        assert!(cache.pkeys[1..].iter().all(|pkey| *pkey == PKey::new(0)));
    }
}

/// Serves the driver until it has an event.
fn next_event(driver: &mut Driver, bench: &mut impl Bus) -> Option<Event> {
    for _ in 0..10 {
        driver.serve(bench).unwrap();
        let event = driver.poll_event();
        if event.is_some() {
            return event;
        }
        bench.wait(Duration::from_millis(1));
    }
    None
}

#[test]
fn a_port_that_goes_down_and_up_raises_one_event_each() {
    let (mut bench, memory) = bench(2);
    let mut driver = Driver::probe(&mut bench, memory).unwrap();
    for (port, other) in [(PORT, PortNum(2)), (PortNum(2), PORT)] {
        let changes = [
            (PortState::Down, PortChange::DOWN, false),
            (PortState::Active, PortChange::ACTIVE, true),
        ];
        for (state, change, active) in changes {
            bench.set_port_state(port, state);
            bench.notify_port(port, change);
            let event = next_event(&mut driver, &mut bench);
            assert_eq!(event, Some(Event::PortChange { port, active }));
            assert_eq!(next_event(&mut driver, &mut bench), None);
            assert_eq!(driver.port(port).is_active(), active);
            assert!(driver.port(other).is_active());
        }
    }
}

#[test]
fn a_machine_reset_frees_everything_and_the_next_kernel_probes() {
    let (mut bench, memory) = bench(1);
    for round in 0..3 {
        let driver = Driver::probe(&mut bench, memory.clone()).unwrap();
        bench.reset();
        assert_eq!(bench.owned(), ResourceCounts::default());
        driver.abandon(&mut bench);
        assert_eq!(memory.allocated_pages(), 0, "round {round}");
    }
    assert_eq!(memory.stray_accesses(), StrayAccesses::default());
}

#[test]
fn a_function_level_reset_frees_everything_and_the_next_kernel_probes() {
    let (mut bench, memory) = bench(1);
    for _ in 0..3 {
        let driver = Driver::probe(&mut bench, memory.clone()).unwrap();
        function_level_reset(&mut bench).unwrap();
        assert_eq!(bench.owned(), ResourceCounts::default());
        driver.abandon(&mut bench);
    }
    assert_eq!(memory.allocated_pages(), 0);
    assert_eq!(memory.stray_accesses(), StrayAccesses::default());
}

#[test]
fn a_kernel_that_vanished_without_a_word_is_followed_by_one_that_probes() {
    let (mut bench, memory) = bench(1);
    for _ in 0..3 {
        // Its memory stays its own: a kdump kernel does not touch it.
        drop(Driver::probe(&mut bench, memory.clone()).unwrap());
    }
    assert!(Driver::probe(&mut bench, memory).is_ok());
}

#[test]
fn a_vf_that_the_pf_reset_tells_its_driver_which_restarts() {
    let (mut bench, memory) = bench(1);
    let mut driver = Driver::probe(&mut bench, memory.clone()).unwrap();
    bench.reset_by_pf();
    bench.wait(Duration::from_secs(6));
    assert_eq!(driver.serve(&mut bench), Err(DriverError::Internal));
    let driver = driver.restart(&mut bench).unwrap();
    driver.remove(&mut bench).unwrap();
    assert_eq!(memory.allocated_pages(), 0);
    assert_eq!(bench.owned(), ResourceCounts::default());
}

#[test]
fn a_command_ends_while_its_vector_is_masked_and_interrupts_when_it_is_not() {
    let (mut bench, memory) = bench(1);
    let mut core = Core::probe(&mut bench, memory, 2).unwrap();
    let nop = Command::new(Opcode::NOP, 0x1f);
    core.set_masked(&mut bench, 0, true);
    core.post(&mut bench, &nop).unwrap();
    bench.wait(Duration::from_millis(1));
    assert_eq!(core.is_answered(&mut bench), Ok(true));
    assert!(core.is_pending(&mut bench, 0) && !core.is_pending(&mut bench, 1));
    assert_eq!(bench.take_interrupt(), None);
    core.set_masked(&mut bench, 0, false);
    core.finish(&mut bench, &nop).unwrap();
    assert!(!core.is_pending(&mut bench, 0));
    core.use_polling();
    core.execute(&mut bench, &nop).unwrap();
    assert_eq!(bench.take_interrupt(), None);
    core.remove(&mut bench).unwrap();
}

#[test]
fn registers_are_measured_and_placed_by_configuration_space() {
    let (mut bench, _) = bench(1);
    let vectors = bench.interrupt_vectors();
    assert_eq!(interrupt_vectors(&mut bench), Some(vectors));
    for (bar, low) in [(2, 0x18), (4, 0x20)] {
        let size = measure_bar(&mut bench, bar);
        assert_eq!(bench.bar_size(bar), Some(size));
        let address = 0x12_0000_0000 + 16 * size;
        place_bar(&mut bench, bar, address);
        let mut halves = [[0; 4]; 2];
        bench.config_read(low, &mut halves[0]);
        bench.config_read(low + 4, &mut halves[1]);
        let [low, high] = halves.map(u32::from_le_bytes);
        assert_eq!(u64::from(high) << 32 | u64::from(low & !0xf), address);
    }
}
