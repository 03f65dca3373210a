//! Functions with many objects.

use super::*;

impl Rig {
    fn owned(&mut self) -> [u32; 4] {
        let owned = self.device.function(PF).unwrap().resources(PF).unwrap();
        [owned.qps, owned.mrs, owned.cqs, owned.pds]
    }
}

#[test]
fn a_function_with_many_objects_is_reset_in_turns_and_its_queue_pairs_at_once() {
    const LARGE: FunctionId = FunctionId(3);
    const REGIONS: u32 = 600;

    let mut rig = Rig::new();
    let before = rig.owned();
    let mut large = spec(LARGE);
    large.quota.mrs = REGIONS;
    rig.pf(|pf| pf.create_function(large)).unwrap();
    rig.show(LARGE, false);
    let fill = |rig: &mut Rig| {
        let qp = rig.open_ud(LARGE);
        rig.on(LARGE, |hca| {
            let pd = hca.alloc_pd().unwrap();
            let addr = hca.allocate_dma(64).unwrap().addr;
            // The queue pair has one, too.
            for _ in 1..REGIONS {
                let spec = MrSpec {
                    pd,
                    kind: MrKind::Virtual { addr, len: 64 },
                    access: AccessFlags::LOCAL_WRITE,
                    key: None,
                };
                hca.register_mr(&spec).unwrap();
            }
        });
        qp
    };
    fill(&mut rig);
    rig.pf(|pf| pf.reset_function(LARGE)).unwrap();
    let counts = rig.pf(|pf| pf.resources(LARGE));
    assert_eq!(counts, Ok(ResourceCounts::default()));
    let [qps, mrs, ..] = rig.owned();
    assert_eq!((qps, mrs - before[1]), (before[0], REGIONS - 256));
    // It is used again meanwhile, and reset once more.
    fill(&mut rig);
    rig.pf(|pf| pf.reset_function(LARGE)).unwrap();
    rig.pf(|pf| pf.destroy_function(LARGE)).unwrap();
    let mut turns = 0;
    while rig.functions.poll_timeout() == Some(Instant::ZERO) {
        let mut hca = rig.device.function(PF).unwrap();
        rig.functions.handle_timeout(&mut hca, Instant::ZERO);
        turns += 1;
    }
    assert_eq!((rig.owned(), turns), (before, 2));
}
