//! Functions with many objects, and with regions that the adapter takes long to deregister.

use std::collections::BTreeSet;

use hca_api::{
    AvHandle, Completion, CqHandle, DeviceAttributes, DmaBuffer, DmaFault, FunctionAttributes,
    MrHandle, MrKeys, PdHandle, PortAttributes, PortModify, QpAttributes, QpHandle, QpNumbers,
    SrqAttributes, SrqHandle, SrqSpec,
};
use ib_vtime::{Duration, Secret};

use super::*;

/// An adapter that deregisters regions behind the call, and finds those of `ended` gone.
struct Slow<'h> {
    hca: &'h mut dyn Hca,
    ended: &'h BTreeSet<MrHandle>,
}

macro_rules! same {
    ($(fn $name:ident(&self $(, $arg:ident: $ty:ty)*) -> $ret:ty;)*) => {
        $(fn $name(&self $(, $arg: $ty)*) -> $ret {
            self.hca.$name($($arg),*)
        })*
    };
}

macro_rules! same_mut {
    ($(fn $name:ident(&mut self $(, $arg:ident: $ty:ty)*) $(-> $ret:ty)?;)*) => {
        $(fn $name(&mut self $(, $arg: $ty)*) $(-> $ret)? {
            self.hca.$name($($arg),*)
        })*
    };
}

impl Hca for Slow<'_> {
    fn deregister_mr(&mut self, mr: MrHandle) -> Result<(), HcaError> {
        match self.ended.contains(&mr) {
            true => self.hca.deregister_mr(mr),
            false => Err(HcaError::Pending),
        }
    }

    same! {
        fn attributes(&self) -> DeviceAttributes;
        fn function(&self) -> FunctionAttributes;
        fn query_port(&self, port: PortNum) -> Result<PortAttributes, HcaError>;
        fn query_gid(&self, port: PortNum, index: GidIndex) -> Result<Gid, HcaError>;
        fn query_pkey(&self, port: PortNum, index: PKeyIndex) -> Result<PKey, HcaError>;
        fn dma_read(&self, addr: u64, buf: &mut [u8]) -> Result<(), DmaFault>;
        fn peek_cq(&self, cq: CqHandle, at_most: usize) -> Result<usize, HcaError>;
        fn query_srq(&self, srq: SrqHandle) -> Result<SrqAttributes, HcaError>;
        fn query_qp(&self, qp: QpHandle) -> Result<QpAttributes, HcaError>;
    }

    same_mut! {
        fn modify_port(&mut self, port: PortNum, change: &PortModify) -> Result<(), HcaError>;
        fn allocate_dma(&mut self, len: usize) -> Result<DmaBuffer, HcaError>;
        fn free_dma(&mut self, buffer: DmaBuffer);
        fn dma_write(&mut self, addr: u64, bytes: &[u8]) -> Result<(), DmaFault>;
        fn set_bus_master(&mut self, enabled: bool);
        fn alloc_pd(&mut self) -> Result<PdHandle, HcaError>;
        fn dealloc_pd(&mut self, pd: PdHandle) -> Result<(), HcaError>;
        fn register_mr(&mut self, spec: &MrSpec<'_>) -> Result<MrKeys, HcaError>;
        fn create_av(&mut self, pd: PdHandle, to: &AddressVector) -> Result<AvHandle, HcaError>;
        fn destroy_av(&mut self, av: AvHandle) -> Result<(), HcaError>;
        fn create_cq(&mut self, entries: u32) -> Result<CqHandle, HcaError>;
        fn resize_cq(&mut self, cq: CqHandle, entries: u32) -> Result<(), HcaError>;
        fn destroy_cq(&mut self, cq: CqHandle) -> Result<(), HcaError>;
        fn poll_cq(&mut self, cq: CqHandle, out: &mut [Completion]) -> Result<usize, HcaError>;
        fn arm_cq(&mut self, cq: CqHandle, kind: ArmKind) -> Result<bool, HcaError>;
        fn create_srq(&mut self, spec: SrqSpec) -> Result<SrqHandle, HcaError>;
        fn modify_srq(&mut self, srq: SrqHandle, limit: u32, max: Option<u32>) -> Result<(), HcaError>;
        fn destroy_srq(&mut self, srq: SrqHandle) -> Result<(), HcaError>;
        fn post_srq_recv(&mut self, srq: SrqHandle, receive: &RecvRequest<'_>) -> Result<(), HcaError>;
        fn reserve_qpns(&mut self, count: u32, align: u32) -> Result<Qpn, HcaError>;
        fn release_qpns(&mut self, first: Qpn, count: u32) -> Result<(), HcaError>;
        fn create_qp(&mut self, spec: QpSpec) -> Result<(QpHandle, QpNumbers), HcaError>;
        fn modify_qp(&mut self, qp: QpHandle, change: &QpModify) -> Result<(), HcaError>;
        fn destroy_qp(&mut self, qp: QpHandle) -> Result<(), HcaError>;
        fn post_send(&mut self, qp: QpHandle, request: &SendRequest<'_>) -> Result<(), HcaError>;
        fn post_recv(&mut self, qp: QpHandle, request: &RecvRequest<'_>) -> Result<(), HcaError>;
        fn attach_multicast(&mut self, qp: QpHandle, group: Gid, lid: Lid) -> Result<(), HcaError>;
        fn detach_multicast(&mut self, qp: QpHandle, group: Gid, lid: Lid) -> Result<(), HcaError>;
        fn process_local_mad(&mut self, port: PortNum, view: MadView, mad: &Mad) -> Result<LocalMad, HcaError>;
        fn draw_secret(&mut self) -> Result<Secret, HcaError>;
        fn poll_event(&mut self) -> Option<HcaEvent>;
    }
}

impl Rig {
    fn slow<T>(
        &mut self,
        ended: &BTreeSet<MrHandle>,
        call: impl FnOnce(&mut Functions, &mut Slow<'_>) -> T,
    ) -> T {
        let mut hca = self.device.function(PF).unwrap();
        let hca = &mut hca;
        call(&mut self.functions, &mut Slow { hca, ended })
    }

    fn owned(&mut self) -> [u32; 4] {
        let owned = self.device.function(PF).unwrap().resources(PF).unwrap();
        [owned.qps, owned.mrs, owned.cqs, owned.pds]
    }
}

#[test]
fn regions_of_a_function_that_was_reset_are_asked_for_again_until_the_adapter_finds_them_gone() {
    const PAUSE: Duration = Duration::from_millis(5);

    let mut rig = Rig::new();
    let before = rig.owned();
    rig.open_ud(VF1);
    let [first, second] = rig.on(VF1, |hca| {
        let pd = hca.alloc_pd().unwrap();
        let addr = hca.allocate_dma(64).unwrap().addr;
        let spec = MrSpec {
            pd,
            kind: MrKind::Virtual { addr, len: 64 },
            access: AccessFlags::LOCAL_WRITE,
            key: None,
        };
        [(); 2].map(|()| hca.register_mr(&spec).unwrap().handle)
    });
    let mut ended = BTreeSet::new();
    // It is still the function's while the deregistration is under way.
    let pending = rig.slow(&ended, |functions, hca| {
        let mut vf = functions.function(hca, VF1).unwrap();
        vf.deregister_mr(first)
    });
    assert_eq!(pending, Err(HcaError::Pending));
    let counts = rig.pf(|pf| pf.resources(VF1)).unwrap();
    assert_eq!(counts.mrs, 3, "with that of the queue pair");
    rig.slow(&ended, |functions, hca| {
        let mut pf = functions.function(hca, PF).unwrap();
        pf.reset_function(VF1)
    })
    .unwrap();
    let left = |rig: &mut Rig| {
        let owned = rig.owned();
        [0, 1, 2, 3].map(|kind: usize| owned[kind] - before[kind])
    };
    assert_eq!(left(&mut rig), [0, 3, 1, 2]);
    let mut now = Instant::ZERO;
    let turn = |rig: &mut Rig, now, ended: &BTreeSet<MrHandle>| {
        rig.slow(ended, |functions, hca| functions.handle_timeout(hca, now));
        rig.functions.poll_timeout()
    };
    ended.insert(second);
    assert_eq!(rig.functions.poll_timeout(), Some(now + PAUSE));
    assert_eq!(turn(&mut rig, now, &ended), Some(now + PAUSE), "not yet");
    now += PAUSE;
    assert_eq!(turn(&mut rig, now, &ended), Some(now + PAUSE));
    assert_eq!(left(&mut rig), [0, 2, 1, 2], "the one that is gone");
    now += PAUSE;
    ended.extend((0..1000).map(MrHandle));
    assert_eq!(turn(&mut rig, now, &ended), None);
    assert_eq!(left(&mut rig), [0; 4]);
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
