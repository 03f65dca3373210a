//! The mlx4 driver's probe of a VF: it succeeds, and every value is one that the kernel goes on with.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

use vf_proxy::mlx4::{Mlx4Config, Mlx4Function};
use vhca_tests::mlx4_driver::{Bench, Core, GuestMemory, StrayAccesses};

const PAGES: usize = 2048;

fn bench(memory: &GuestMemory, ports: u8) -> Bench {
    let function = Box::new(Mlx4Function::new(&Mlx4Config::default()));
    Bench::new(memory, ports, function)
}

#[test]
fn the_lower_driver_probes_and_leaves_nothing_behind() {
    for ports in 1..=2 {
        let memory = GuestMemory::new(PAGES);
        let mut bench = bench(&memory, ports);
        for round in 0..3 {
            let core = Core::probe(&mut bench, &memory, 2).unwrap();
            assert_eq!(core.capabilities().ports.len(), usize::from(ports));
            core.remove(&mut bench).unwrap();
            assert_eq!(memory.allocated_pages(), 0, "round {round}");
            let owned = bench.owned();
            assert_eq!(owned, hca_api::ResourceCounts::default());
        }
        assert_eq!(memory.stray_accesses(), StrayAccesses::default());
    }
}
