//! RC and UC queue pairs, shared receive queues and memory windows of virtual functions.

use hca_api::{
    AlternatePath, CompletionOp, CompletionStatus, CqHandle, FastRegister, MrKeys, MwBind, MwType,
    PageList, PdHandle, QpHandle, RKey, RemoteAddress, SrqHandle, SrqSpec,
};
use ib_wire::Mtu;
use ib_wire::packet::{FlushPlacement, Packet};

use super::*;

const OK: CompletionStatus = CompletionStatus::Success;
const RIGHTS: AccessFlags = AccessFlags::all()
    .difference(AccessFlags::ZERO_BASED)
    .difference(AccessFlags::REMOTE_INVALIDATE)
    .difference(AccessFlags::FLUSH_PERSISTENT);

/// A connected queue pair with a region of 64 bytes and a shared receive queue.
#[derive(Clone, Copy, Debug)]
struct End {
    id: FunctionId,
    pd: PdHandle,
    cq: CqHandle,
    srq: SrqHandle,
    qp: QpHandle,
    qpn: Qpn,
    addr: u64,
    keys: MrKeys,
}

impl End {
    const fn sge(&self) -> Sge {
        Sge {
            addr: self.addr,
            len: 8,
            lkey: self.keys.lkey,
        }
    }

    const fn remote(&self, rkey: RKey) -> RemoteAddress {
        let addr = self.addr + 32;
        RemoteAddress { addr, rkey }
    }

    const fn binding(&self, window: RKey) -> MwBind {
        MwBind {
            window,
            variant: 7,
            region: self.keys.lkey,
            addr: self.addr,
            len: 64,
            access: AccessFlags::REMOTE_WRITE,
        }
    }
}

/// The path to another port, with a source GID that is another function's.
fn path(dlid: u16) -> AddressVector {
    AddressVector {
        port: PORT,
        dlid: Lid::new(dlid),
        sl: Sl::default(),
        path_bits: 0,
        static_rate: None,
        grh: Some(GlobalRoute {
            remote_gid: Gid([1; 16]),
            sgid_index: GidIndex(5),
            flow_label: 0,
            hop_limit: 1,
            traffic_class: 0,
        }),
    }
}

fn init(pkey_index: u16) -> QpModify {
    QpModify {
        port: Some(PORT),
        pkey_index: Some(PKeyIndex(pkey_index)),
        access: Some(RIGHTS),
        ..to_state(QpState::Init, None)
    }
}

fn to_receive(kind: QpKind, primary: AddressVector, dest_qpn: Qpn) -> QpModify {
    let is_reliable = kind == QpKind::Rc;
    QpModify {
        primary: Some(primary),
        path_mtu: Some(Mtu::MTU_1024),
        dest_qpn: Some(dest_qpn),
        rq_psn: Some(Psn::default()),
        max_dest_rd_atomic: is_reliable.then_some(4),
        min_rnr_timer: is_reliable.then_some(12),
        ..to_state(QpState::ReadyToReceive, None)
    }
}

fn to_send(kind: QpKind) -> QpModify {
    let is_reliable = kind == QpKind::Rc;
    QpModify {
        timeout: is_reliable.then_some(14),
        retry_count: is_reliable.then_some(1),
        rnr_retry: is_reliable.then_some(1),
        max_rd_atomic: is_reliable.then_some(4),
        ..to_state(QpState::ReadyToSend, Some(Psn::default()))
    }
}

impl Rig {
    fn open_connected(&mut self, id: FunctionId, kind: QpKind) -> End {
        let opened: Result<_, HcaError> = self.on(id, |hca| {
            let (pd, cq) = (hca.alloc_pd()?, hca.create_cq(16)?);
            let addr = hca.allocate_dma(64)?.addr;
            let keys = hca.register_mr(&MrSpec {
                pd,
                kind: MrKind::Virtual { addr, len: 64 },
                access: RIGHTS,
                key: None,
            })?;
            let srq = hca.create_srq(SrqSpec {
                pd,
                max_wr: 4,
                max_sge: 1,
                limit: 0,
                receives: ReceiveMode::Posted,
            })?;
            let (qp, numbers) = hca.create_qp(QpSpec {
                kind,
                pd,
                send_cq: cq,
                recv_cq: cq,
                srq: Some(srq),
                caps: QpCaps {
                    max_send_wr: 4,
                    max_recv_wr: 0,
                    max_send_sge: 1,
                    max_recv_sge: 0,
                    max_inline: 8,
                },
                signal_all: true,
                receives: ReceiveMode::Posted,
                qpn: None,
                block_multicast_loopback: false,
            })?;
            Ok(End {
                id,
                pd,
                cq,
                srq,
                qp,
                qpn: numbers.external,
                addr,
                keys,
            })
        });
        opened.unwrap()
    }

    /// Makes a connection of the two virtual functions.
    fn connect(&mut self, kind: QpKind) -> [End; 2] {
        let ends = [VF1, VF2].map(|id| self.open_connected(id, kind));
        for (own, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let within = AddressVector {
                grh: None,
                ..path(3)
            };
            let receive = to_receive(kind, within, peer.qpn);
            for change in [init(0), receive, to_send(kind)] {
                self.modify(&own, &change).unwrap();
            }
        }
        ends
    }

    fn modify(&mut self, end: &End, change: &QpModify) -> Result<(), HcaError> {
        self.on(end.id, |hca| hca.modify_qp(end.qp, change))
    }

    fn post(&mut self, end: &End, op: SendOp<'_>, sge: Sge) -> Result<(), HcaError> {
        let gather = [sge];
        let request = SendRequest {
            wr_id: 1,
            op,
            payload: Payload::Gather(match op {
                SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => &[],
                _ => &gather,
            }),
            flags: SendFlags::empty(),
            destination: None,
        };
        self.on(end.id, |hca| hca.post_send(end.qp, &request))
    }

    /// Carries packets within the adapter, and returns the completions of a queue pair.
    fn completions(&mut self, end: &End) -> Vec<(CompletionOp, CompletionStatus)> {
        while self.device.poll_transmit(Instant::ZERO, PORT).is_some() {}
        let mut done = [Completion::BLANK; 8];
        let count = self.on(end.id, |hca| hca.poll_cq(end.cq, &mut done));
        let done = &done[..count.unwrap()];
        done.iter().map(|done| (done.op, done.status)).collect()
    }

    fn run(&mut self, end: &End, op: SendOp<'_>) -> CompletionStatus {
        self.post(end, op, end.sge()).unwrap();
        let done = self.completions(end);
        assert_eq!(done.len(), 1, "{op:?}");
        done[0].1
    }

    fn set_byte(&mut self, end: &End, byte: u8) {
        self.on(end.id, |hca| hca.dma_write(end.addr, &[byte; 8]))
            .unwrap();
    }

    fn bytes(&mut self, end: &End, offset: u64) -> [u8; 8] {
        let mut bytes = [0; 8];
        self.on(end.id, |hca| hca.dma_read(end.addr + offset, &mut bytes))
            .unwrap();
        bytes
    }
}

#[test]
fn vfs_write_read_and_count_in_each_others_memory() {
    let mut rig = Rig::new();
    let [a, b] = rig.connect(QpKind::Rc);
    rig.set_byte(&a, 1);
    let remote = b.remote(b.keys.rkey);
    assert_eq!(rig.run(&a, SendOp::RdmaWrite(remote)), OK);
    assert_eq!(rig.bytes(&b, 32), [1; 8]);
    let add = SendOp::FetchAdd {
        remote,
        add: u64::from_ne_bytes([1; 8]),
    };
    assert_eq!(rig.run(&a, add), OK);
    assert_eq!(rig.run(&a, SendOp::RdmaRead(remote)), OK);
    let flush = SendOp::Flush {
        remote,
        len: Some(8),
        placement: FlushPlacement::GLOBAL,
    };
    assert_eq!(rig.run(&a, flush), OK);
    assert_eq!(rig.bytes(&a, 0), [2; 8]);
    let own = SendOp::RdmaWrite(a.remote(a.keys.rkey));
    assert_eq!(rig.run(&a, own), CompletionStatus::RemoteAccess);
}

#[test]
fn receives_of_a_shared_queue_are_taken_and_its_limit_is_an_event_of_its_function() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let mut rig = Rig::new();
        let [a, b] = rig.connect(kind);
        let receive = RecvRequest {
            wr_id: 1,
            scatter: &[b.sge()],
        };
        rig.on(b.id, |hca| {
            hca.post_srq_recv(b.srq, &receive)?;
            hca.modify_srq(b.srq, 1, None)
        })
        .unwrap();
        rig.set_byte(&a, 3);
        assert_eq!(rig.run(&a, SendOp::Send), OK);
        assert_eq!(rig.completions(&b), [(CompletionOp::Recv, OK)]);
        assert_eq!(rig.bytes(&b, 0), [3; 8]);
        let limit = HcaEvent::Async(AsyncEvent::SrqLimitReached(b.srq));
        let events = |rig: &mut Rig, id| {
            rig.on(id, |hca| core::iter::from_fn(|| hca.poll_event()).collect())
        };
        let of_a: Vec<_> = events(&mut rig, a.id);
        assert!(!of_a.contains(&limit));
        assert!(events(&mut rig, b.id).contains(&limit));
        let left = rig.on(b.id, |hca| hca.query_srq(b.srq)).unwrap();
        assert_eq!((left.limit, left.max_wr), (0, 4));
    }
}

#[test]
fn a_window_of_either_type_opens_a_part_of_a_region_to_the_peer() {
    for kind in [MwType::Type1, MwType::Type2] {
        let mut rig = Rig::new();
        let [a, b] = rig.connect(QpKind::Rc);
        let window = rig.on(b.id, |hca| hca.alloc_mw(b.pd, kind)).unwrap();
        let bind = SendOp::BindWindow(b.binding(window.rkey));
        assert_eq!(rig.run(&b, bind), OK);
        let bound = RKey(window.rkey.0 & !0xff | 7);
        assert_eq!(rig.run(&a, SendOp::RdmaWrite(b.remote(bound))), OK);
        let freed = rig.on(a.id, |hca| hca.dealloc_mw(window.handle));
        assert_eq!(freed, Err(HcaError::InvalidHandle));
        let freed = rig.on(b.id, |hca| hca.dealloc_mw(window.handle));
        assert_eq!(freed, Ok(()));
        let gone = rig.run(&a, SendOp::RdmaWrite(b.remote(bound)));
        assert_eq!(gone, CompletionStatus::RemoteAccess);
    }
}

#[test]
fn a_vf_uses_no_key_of_anothers() {
    let protection = CompletionStatus::LocalProtection;
    let mut rig = Rig::new();
    for case in 0..3 {
        let [a, b] = rig.connect(QpKind::Rc);
        let remote = b.remote(b.keys.rkey);
        let (op, sge, expected) = match case {
            0 => (SendOp::RdmaWrite(remote), b.sge(), protection),
            1 => (SendOp::RdmaRead(remote), b.sge(), protection),
            _ => {
                let window = rig.on(a.id, |hca| hca.alloc_mw(a.pd, MwType::Type1));
                let bind = SendOp::BindWindow(b.binding(window.unwrap().rkey));
                (bind, a.sge(), CompletionStatus::MwBind)
            }
        };
        rig.post(&a, op, sge).unwrap();
        let done = rig.completions(&a);
        assert_eq!(done.first().map(|done| done.1), Some(expected), "{case}");
        for id in [VF1, VF2] {
            rig.pf(|pf| pf.reset_function(id)).unwrap();
        }
    }
}

#[test]
fn a_vf_names_no_connection_or_shared_queue_that_is_anothers() {
    const NONE: Option<HcaError> = Some(HcaError::InvalidHandle);

    let mut rig = Rig::new();
    let [a, b] = rig.connect(QpKind::Rc);
    let receive = RecvRequest {
        wr_id: 1,
        scatter: &[],
    };
    rig.on(b.id, |hca| {
        assert_eq!(hca.query_srq(a.srq).err(), NONE);
        assert_eq!(hca.modify_srq(a.srq, 1, None).err(), NONE);
        assert_eq!(hca.destroy_srq(a.srq).err(), NONE);
        assert_eq!(hca.post_srq_recv(a.srq, &receive).err(), NONE);
        assert_eq!(hca.alloc_mw(a.pd, MwType::Type1).err(), NONE);
        assert_eq!(hca.query_qp(a.qp).err(), NONE);
        let busy = [hca.destroy_srq(b.srq), hca.dealloc_pd(b.pd)];
        assert_eq!(busy, [Err(HcaError::InUse); 2]);
        let joined = hca.attach_multicast(b.qp, MGID, Lid::NONE);
        assert_eq!(joined, Err(HcaError::InvalidQpKind));
    });
    let mut addressed = SendRequest {
        wr_id: 1,
        op: SendOp::Send,
        payload: Payload::Inline(&[]),
        flags: SendFlags::empty(),
        destination: Some(at_port(a.qpn)),
    };
    let posted = rig.on(b.id, |hca| hca.post_send(b.qp, &addressed));
    assert_eq!(posted, Err(HcaError::InvalidParameter));
    addressed.destination = None;
    addressed.op = SendOp::FastRegister(FastRegister {
        key: b.keys.rkey,
        iova: 0,
        len: 8,
        pages: PageList::InMemory(b.addr),
        page_shift: 12,
        access: RIGHTS,
    });
    let posted = rig.on(b.id, |hca| hca.post_send(b.qp, &addressed));
    assert_eq!(posted, Err(HcaError::Unsupported));
}

/// The index is the function's own, and so is the GID, whatever the consumer asks for.
#[test]
fn a_connection_has_the_gid_and_the_pkey_of_its_function() {
    for kind in [QpKind::Rc, QpKind::Uc] {
        let mut rig = Rig::new();
        let end = rig.open_connected(VF1, kind);
        let beyond = rig.modify(&end, &init(2));
        assert_eq!(beyond, Err(HcaError::InvalidIndex));
        rig.modify(&end, &init(0)).unwrap();
        let mut receive = to_receive(kind, path(9), Qpn::from_low_bits(77));
        let elsewhere = AddressVector {
            port: PortNum(2),
            ..path(9)
        };
        receive.primary = Some(elsewhere);
        assert_eq!(rig.modify(&end, &receive), Err(HcaError::InvalidPort));
        receive.primary = Some(path(9));
        receive.alternate = Some(AlternatePath {
            address: path(9),
            pkey_index: PKeyIndex(0),
            timeout: 14,
        });
        assert_eq!(rig.modify(&end, &receive), Err(HcaError::Unsupported));
        receive.alternate = None;
        for change in [receive, to_send(kind)] {
            rig.modify(&end, &change).unwrap();
        }
        rig.post(&end, SendOp::Send, end.sge()).unwrap();
        let frame = rig.device.poll_transmit(Instant::ZERO, PORT).unwrap();
        assert_eq!(frame.bth().unwrap().pkey, PKey::new(0x8001));
        assert_eq!(
            Packet::parse(frame.bytes())
                .unwrap()
                .grh
                .unwrap()
                .sgid
                .interface_id(),
            ALIAS
        );
        let shown = rig.on(VF1, |hca| hca.query_qp(end.qp)).unwrap();
        let route = shown.primary.and_then(|path| path.grh).unwrap();
        assert_eq!(
            (shown.pkey_index, route.sgid_index),
            (PKeyIndex(0), GidIndex(0))
        );
    }
}

/// The second index has no P_Key, and there is no third one.
#[test]
fn a_connection_that_drains_keeps_to_the_tables_of_its_function() {
    let mut rig = Rig::new();
    let [end, _] = rig.connect(QpKind::Rc);
    let drain = QpState::SendQueueDrain;
    rig.modify(&end, &to_state(drain, None)).unwrap();
    for (port, pkey_index, expected) in [
        (None, 0, Ok(())),
        (None, 1, Err(HcaError::InvalidIndex)),
        (None, 2, Err(HcaError::InvalidIndex)),
        (Some(PortNum(2)), 0, Err(HcaError::InvalidIndex)),
        (Some(PortNum(9)), 0, Err(HcaError::InvalidPort)),
    ] {
        let change = QpModify {
            port,
            pkey_index: Some(PKeyIndex(pkey_index)),
            primary: Some(AddressVector {
                port: port.unwrap_or(PORT),
                ..path(9)
            }),
            ..to_state(drain, None)
        };
        assert_eq!(rig.modify(&end, &change), expected, "{port:?} {pkey_index}");
        let pf = rig.device.function(PF).unwrap();
        let physical = pf.query_qp(end.qp).unwrap();
        let route = physical.primary.and_then(|path| path.grh).unwrap();
        assert_eq!(
            (physical.port, physical.pkey_index),
            (Some(PORT), PKeyIndex(1))
        );
        assert_eq!(route.sgid_index, GidIndex(1));
    }
}

#[test]
fn a_connection_is_made_while_the_port_is_active_and_has_the_pkey_and_ends_when_it_is_not() {
    use PortState::{Active, Down};

    let mut rig = Rig::new();
    for (state, pkey, made) in [
        (Down, Some(1), Err(HcaError::InvalidPort)),
        (Active, None, Err(HcaError::InvalidIndex)),
        (Active, Some(0), Ok(())),
    ] {
        let [a, b] = rig.connect(QpKind::Rc);
        rig.set_view(a.id, state, pkey);
        let states = [a, b].map(|end| rig.on(end.id, |hca| hca.query_qp(end.qp).unwrap().state));
        assert_eq!(states, [QpState::Error, QpState::ReadyToSend]);
        let events: Vec<_> = rig.on(a.id, |hca| {
            core::iter::from_fn(|| hca.poll_event()).collect()
        });
        assert!(events.contains(&HcaEvent::Async(AsyncEvent::QpFatal(a.qp))));
        rig.modify(&a, &to_state(QpState::Reset, None)).unwrap();
        rig.modify(&a, &init(0)).unwrap();
        let receive = to_receive(QpKind::Rc, path(3), b.qpn);
        assert_eq!(rig.modify(&a, &receive), made);
        rig.set_view(a.id, Active, Some(1));
        for id in [VF1, VF2] {
            rig.pf(|pf| pf.reset_function(id)).unwrap();
        }
    }
}

#[test]
fn a_reset_leaves_no_connection_of_a_vf_in_the_adapter() {
    let mut rig = Rig::new();
    let owned = |rig: &mut Rig| rig.device.function(PF).unwrap().resources(PF);
    let before = owned(&mut rig);
    for _ in 0..3 {
        let [a, b] = rig.connect(QpKind::Rc);
        let window = rig.on(b.id, |hca| hca.alloc_mw(b.pd, MwType::Type2));
        let bind = SendOp::BindWindow(b.binding(window.unwrap().rkey));
        assert_eq!(rig.run(&b, bind), OK);
        let counts = rig.pf(|pf| pf.resources(VF2)).unwrap();
        assert_eq!((counts.qps, counts.srqs, counts.mws), (1, 1, 1));
        for end in [a, b] {
            rig.pf(|pf| pf.reset_function(end.id)).unwrap();
            let counts = rig.pf(|pf| pf.resources(end.id));
            assert_eq!(counts, Ok(ResourceCounts::default()));
        }
        assert_eq!(owned(&mut rig), before);
    }
}
