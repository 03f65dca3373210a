//! What the hot paths and the tables allocate: nothing for a message of a known connection, a bounded number of bytes
//! for a member of a group.
#![expect(
    unsafe_code,
    reason = "only a global allocator sees every allocation, and its trait is unsafe"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, HcaConfig};
use hca_api::{
    AccessFlags, Adapter, AddressSpace, AddressVector, Completion, CompletionOp, CompletionStatus,
    CqHandle, FunctionId, FunctionManager, FunctionSpec, Hca, HcaError, HostMemory, MrKind, MrSpec,
    Payload, PortState, PulledReceives, QpCaps, QpHandle, QpKind, QpModify, QpNumbers, QpSpec,
    QpState, ReceiveMode, RecvRequest, ResourceCounts, SendFlags, SendOp, SendRequest, Sge,
    UdAddress, UdDestination, VirtualPort,
};
use hca_functions::Functions;
use ib_vtime::Instant;
use ib_wire::cm::{self, CmReq, CmRtu};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, SaMad};
use ib_wire::{
    CommId, Gid, Guid, Lid, PKey, PKeyIndex, PortNum, Psn, QKey, Qpn, Sl, SubnetPrefix, Tid,
};
use mcast_agg::{McastAgg, Output, Requester};
use pf_context::inspect::Inspect;
use pf_context::{Cause, EgressLimit, Limits, Passed, PortConfig, PortMux, VfConfig, WireSource};
use vf_tunnel::{SpecialQp, ToPf, VfId, VirtualPKeyIndex};
use vhca::Driven;
use vhca_service::serve::{Lab, Options, Service, TopologySpec};

/// Counts the allocations of each thread, and the bytes that it holds.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

fn allocated(size: usize) {
    // A thread that ends has no counters any more.
    let _ = ALLOCATIONS.try_with(|counter| counter.set(counter.get() + 1));
    let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() + size.cast_signed() as i64));
}

fn freed(size: usize) {
    let _ = BYTES.try_with(|bytes| bytes.set(bytes.get() - size.cast_signed() as i64));
}

// SAFETY: every call goes on to the system's allocator with the arguments that it came with; counting
// allocates nothing, since the counter is constant-initialised and has no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocated(layout.size());
        // SAFETY: the caller's promises are those of this call.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        freed(layout.size());
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        freed(layout.size());
        allocated(size);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const VF: VfId = match VfId::new(1) {
    Some(vf) => vf,
    None => unreachable!(),
};
/// Objects that a VF may have.
const MANY: u32 = 20_000;
const PEER: Lid = Lid::new(20);
const NOW: Instant = Instant::from_millis(1);
const SOURCE: WireSource = WireSource {
    slid: PEER,
    sqpn: Qpn::GSI,
    sl: Sl::from_low_bits(0),
    pkey: PKey::DEFAULT_FULL,
    path_bits: 0,
    grh: None,
};

fn guid() -> Guid {
    Guid::new(0x0002_c903_0000_0101)
}

fn mux() -> PortMux {
    let egress = EgressLimit {
        mads_per_second: 0,
        ..EgressLimit::default()
    };
    let mut limits = Limits {
        egress,
        ..Limits::default()
    };
    limits.tids.per_vf = MANY;
    limits.cm.ids_per_vf = MANY;
    let mut mux = PortMux::new(PortConfig {
        limits,
        ..PortConfig::default()
    });
    let config = VfConfig {
        guid: Some(guid()),
        ..VfConfig::default()
    };
    mux.add_vf(VF, config).expect("a VF");
    mux
}

fn frame(mad: Mad) -> ToPf {
    let mut frame = ToPf::zeroed();
    frame.header.av.flags_port = 1;
    frame.header.av.dlid = PEER;
    frame.header.remote_qpn = Qpn::GSI;
    frame.header.remote_qkey = QKey::GSI;
    frame.mad = mad;
    frame
}

fn message(attribute: AttributeId, local: u32, remote: u32) -> Mad {
    let mut mad = Mad::new(cm::header(attribute));
    let ids: &mut CmRtu = mad.view_mut();
    ids.local_comm_id = CommId::new(local);
    ids.remote_comm_id = CommId::new(remote);
    mad
}

/// A VF's MAD as it leaves.
#[track_caller]
fn send(mux: &mut PortMux, mad: Mad) -> Mad {
    let mut frame = frame(mad);
    let passed = mux.from_vf_in_place(NOW, Cause(1), VF, SpecialQp::Gsi, &mut frame);
    assert!(matches!(passed, Passed::ToWire(_)), "{passed:?}");
    frame.mad
}

/// A peer's MAD as the VF gets it.
#[track_caller]
fn receive(mux: &mut PortMux, mut mad: Mad) -> Mad {
    let passed = mux.from_wire_in_place(NOW, Cause(2), SpecialQp::Gsi, &SOURCE, &mut mad);
    assert!(
        matches!(passed, Passed::ToVf(to) if to.vf == VF),
        "{passed:?}"
    );
    mad
}

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn messages_of_a_known_connection_pass_both_ways_without_an_allocation() {
    let mut mux = mux();
    let mut req = message(AttributeId::CM_REQ, 7, 0);
    let fields: &mut CmReq = req.view_mut();
    fields.pkey = PKey::DEFAULT_FULL;
    fields.primary.local_gid = Gid::from_parts(SubnetPrefix::DEFAULT, guid());
    let wire = send(&mut mux, req).view::<CmRtu>().local_comm_id.get();
    receive(&mut mux, message(AttributeId::CM_REP, 8, wire));
    send(&mut mux, message(AttributeId::CM_RTU, 7, 8));
    let made = allocations(|| {
        for _ in 0..1000 {
            let sent = send(&mut mux, message(AttributeId::CM_RTU, 7, 8));
            assert_eq!(sent.view::<CmRtu>().local_comm_id.get(), wire);
            let got = receive(&mut mux, message(AttributeId::CM_APR, 8, wire));
            assert_eq!(got.view::<CmRtu>().remote_comm_id.get(), 7);
        }
    });
    assert_eq!(made, 0);
}

#[test]
fn a_transaction_that_is_repeated_and_answered_allocates_nothing() {
    let mut mux = mux();
    let mad = |method, tid| {
        let header = MadHeader::new(MgmtClass::DEV_MGT, method, AttributeId::new(0x10));
        let mut mad = Mad::new(header);
        mad.header.tid = tid;
        mad
    };
    let guest = Tid::new(0x1234_5678_9abc_def0);
    let wire = send(&mut mux, mad(Method::GET, guest)).header.tid;
    let mut ask_again = |times| {
        for _ in 0..times {
            assert_eq!(send(&mut mux, mad(Method::GET, guest)).header.tid, wire);
            let got = receive(&mut mux, mad(Method::GET_RESP, wire));
            assert_eq!(got.header.tid, guest);
        }
    };
    // The VF's first answer makes its list of answered transactions.
    ask_again(1);
    assert_eq!(allocations(|| ask_again(1000)), 0);
}

/// Makes so many VFs members of an IPoIB group, and grants the port's own join.
fn join_all(agg: &mut McastAgg, group: u8, vfs: u16) {
    for number in 1..=vfs {
        let port_gid = Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(u64::from(number)));
        let mut record = McMemberRecord {
            mgid: Gid([
                0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, group,
            ]),
            port_gid,
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
        let from = Requester {
            id: VfId::new(number).expect("a VF").into(),
            guid: port_gid.interface_id(),
            pkeys: &[PKey::DEFAULT_FULL],
            pkey_index: VirtualPKeyIndex(PKeyIndex(0)),
        };
        agg.request(NOW, &from, &mut SaMad::new(Method::SET, mask, &record));
        while let Some(output) = agg.poll_output() {
            if let Output::SaRequest { token, request } = output {
                let mut granted: McMemberRecord = request.record();
                granted.mlid = Lid::new(0xc000 + u16::from(group));
                granted.pkey = PKey::DEFAULT_FULL;
                let mut answer = SaMad::new(Method::GET_RESP, ComponentMask::NONE, &granted);
                answer.header.tid = request.header.tid;
                agg.handle_response(NOW, token, &answer);
            }
        }
    }
}

#[test]
fn c146_memory_of_a_group_with_1024_members_is_bounded() {
    /// Bytes for each member, and for each group besides.
    const MEMBER: i64 = 32;
    const GROUP: i64 = 1024;
    let prefix = SubnetPrefix::DEFAULT;
    let mut agg = McastAgg::new(mcast_agg::Config::default(), prefix, guid(), 1);
    for group in 1..=8 {
        let before = BYTES.get();
        join_all(&mut agg, group, 1024);
        let held = BYTES.get() - before;
        assert_eq!(agg.sizes().members, usize::from(group) * 1024);
        assert!(held <= GROUP + 1024 * MEMBER, "group {group}: {held} bytes");
        // Members that ask again, as Linux does after each reregistration, take nothing more.
        let before = BYTES.get();
        join_all(&mut agg, group, 1024);
        assert_eq!(BYTES.get(), before);
    }
}

/// Asserts that a table holds about as many bytes as it says.
#[track_caller]
fn assert_about(said: usize, held: i64) {
    let said = i64::try_from(said).expect("a size");
    assert!(
        said > 0 && (said - held).abs() <= held / 8,
        "{said} are said, {held} held"
    );
}

#[test]
fn the_tables_hold_as_many_bytes_as_they_say() {
    let mut mux = mux();
    let empty = mux.state_bytes();
    let before = BYTES.get();
    for tid in 1..=u64::from(MANY) {
        let header = MadHeader::new(MgmtClass::DEV_MGT, Method::GET, AttributeId::new(0x10));
        let mut mad = Mad::new(header);
        mad.header.tid = Tid::new(tid);
        send(&mut mux, mad);
    }
    assert_about(mux.state_bytes().tids - empty.tids, BYTES.get() - before);

    let before = BYTES.get();
    for id in 1..=MANY {
        let mut req = message(AttributeId::CM_REQ, id, 0);
        let fields: &mut CmReq = req.view_mut();
        fields.pkey = PKey::DEFAULT_FULL;
        fields.primary.local_gid = Gid::from_parts(SubnetPrefix::DEFAULT, guid());
        send(&mut mux, req);
    }
    assert_about(
        mux.state_bytes().cm_ids - empty.cm_ids,
        BYTES.get() - before,
    );

    let prefix = SubnetPrefix::DEFAULT;
    let mut agg = McastAgg::new(mcast_agg::Config::default(), prefix, guid(), 1);
    // The first group makes room for the exchange with the SA as well, which is of one size.
    join_all(&mut agg, 1, 200);
    let (said, before) = (agg.bytes(), BYTES.get());
    for group in 2..=200 {
        join_all(&mut agg, group, 200);
    }
    assert_about(agg.bytes() - said, BYTES.get() - before);
}

/// Returns the bytes that a service holds with so many VFs on each of four hosts, once all are up and at rest.
fn held_by_service(vfs: u16, options: &Options) -> i64 {
    let before = BYTES.get();
    let options = Options {
        topology: TopologySpec::TwoSwitch,
        vfs,
        ..options.clone()
    };
    let mut service = Service::new(Lab::build(&options, 1).expect("a service"));
    let end = Instant::from_millis(20_000);
    let mut now = Instant::ZERO;
    while now < end {
        service.poll(now);
        now = service.poll_timeout().map_or(end, |next| next.max(now));
    }
    for host in service.lab().inventory.pf_hosts() {
        let mut rows = Inspect::vfs(service.lab().world().context(host.id), end);
        assert!(rows.all(|row| row.up));
    }
    BYTES.get() - before
}

#[test]
fn an_idle_vf_takes_at_most_64_kib_in_all() {
    const MOST: i64 = 64 << 10;
    const MORE: u16 = 16;
    let cases = [
        ("idle", Options::default()),
        (
            "a guest's",
            Options {
                guests: true,
                ..Options::default()
            },
        ),
        (
            "offered to a VMM",
            Options {
                vfio_user: Some("unused".into()),
                ..Options::default()
            },
        ),
    ];
    for (case, options) in cases {
        let more = held_by_service(2 + MORE, &options) - held_by_service(2, &options);
        let each = more / (4 * i64::from(MORE));
        println!("{case}: {each} bytes");
        assert!((1..=MOST).contains(&each), "{case}: {each} bytes");
    }
}

#[test]
fn an_allocation_is_counted() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(5)))), 1);
    let before = BYTES.get();
    let held = std::hint::black_box(vec![0_u8; 100]);
    assert_eq!(BYTES.get() - before, 100);
    drop(held);
    assert_eq!(BYTES.get(), before);
}

const PORT: PortNum = PortNum(1);
const KEY: QKey = QKey::new(0x1234);

/// Receives of one place, of which a consumer counts the ones that it adds.
#[derive(Debug)]
struct Counted {
    added: Arc<AtomicU64>,
    taken: u64,
    place: Sge,
}

impl PulledReceives for Counted {
    fn pull(&mut self, memory: &dyn AddressSpace, scatter: &mut Vec<Sge>) -> Option<u64> {
        if self.pending(memory) == 0 {
            return None;
        }
        scatter.push(self.place);
        self.taken += 1;
        Some(self.taken)
    }

    fn pending(&self, _: &dyn AddressSpace) -> usize {
        let added = self.added.load(Ordering::Relaxed);
        usize::try_from(added - self.taken).expect("a few")
    }
}

/// A datagram queue pair.
struct End {
    qp: QpHandle,
    numbers: QpNumbers,
    cq: CqHandle,
    place: Sge,
    /// Receives that were added, if they are pulled.
    added: Option<Arc<AtomicU64>>,
}

fn open_end(hca: &mut dyn Hca, is_pulled: bool) -> Result<End, HcaError> {
    let addr = hca.allocate_dma(1024)?.addr;
    let pd = hca.alloc_pd()?;
    let keys = hca.register_mr(&MrSpec {
        pd,
        kind: MrKind::Virtual { addr, len: 1024 },
        access: AccessFlags::LOCAL_WRITE,
        key: None,
    })?;
    let cq = hca.create_cq(64)?;
    let place = Sge {
        addr,
        len: 512,
        lkey: keys.lkey,
    };
    // Some are there when the queue pair gets ready; of later ones an adapter hears when it looks.
    let added = is_pulled.then(|| Arc::new(AtomicU64::new(4)));
    let receives = added.clone().map_or(ReceiveMode::Posted, |added| {
        ReceiveMode::Pulled(Box::new(Counted {
            added,
            taken: 0,
            place,
        }))
    });
    let (qp, numbers) = hca.create_qp(QpSpec {
        kind: QpKind::Ud,
        pd,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        caps: QpCaps {
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        },
        signal_all: true,
        receives,
        qpn: None,
        block_multicast_loopback: false,
    })?;
    let init = QpModify {
        state: Some(QpState::Init),
        port: Some(PORT),
        pkey_index: Some(PKeyIndex(0)),
        qkey: Some(KEY),
        ..QpModify::default()
    };
    let to = |state, sq_psn| QpModify {
        state: Some(state),
        sq_psn,
        ..QpModify::default()
    };
    hca.modify_qp(qp, &init)?;
    hca.modify_qp(qp, &to(QpState::ReadyToReceive, None))?;
    hca.modify_qp(qp, &to(QpState::ReadyToSend, Some(Psn::default())))?;
    Ok(End {
        qp,
        numbers,
        cq,
        place,
        added,
    })
}

fn poll_one(hca: &mut dyn Hca, end: &End, op: CompletionOp) {
    let mut done = [Completion::BLANK; 4];
    assert_eq!(hca.poll_cq(end.cq, &mut done), Ok(1));
    assert_eq!(
        (done[0].op, done[0].status),
        (op, CompletionStatus::Success)
    );
}

/// Returns the allocations of a thousand datagrams from one virtual function of an adapter to another.
fn allocations_of_datagrams(adapter: &mut impl Adapter, is_pulled: bool) -> u64 {
    const FROM: FunctionId = FunctionId(1);
    const TO: FunctionId = FunctionId(2);
    for id in [FROM, TO] {
        let mut pf = adapter.function(FunctionId::PF).expect("the PF");
        let quota = ResourceCounts {
            pds: 4,
            avs: 4,
            cqs: 4,
            srqs: 4,
            qps: 4,
            mrs: 4,
            mws: 4,
            attachments: 4,
        };
        let spec = FunctionSpec {
            id,
            node_guid: Guid::new(0x2000 + u64::from(id.0)),
            memory: Box::new(HostMemory::new()),
            quota,
        };
        pf.create_function(spec).expect("a VF");
        let view = VirtualPort {
            state: PortState::Active,
            pkeys: vec![Some(PKeyIndex(0))],
            smi_enabled: false,
        };
        pf.set_virtual_port(id, PORT, view).expect("a view");
    }
    let [from, to] = [FROM, TO].map(|id| {
        let mut hca = adapter.function(id).expect("a VF");
        open_end(&mut hca, is_pulled).expect("a queue pair")
    });
    let vector = AddressVector {
        port: PORT,
        dlid: PEER,
        sl: Sl::default(),
        path_bits: 0,
        static_rate: None,
        grh: None,
    };
    let gather = [Sge {
        len: 256,
        ..from.place
    }];
    let mut pass = || {
        let mut hca = adapter.function(TO).expect("a VF");
        match &to.added {
            Some(added) => {
                added.fetch_add(1, Ordering::Relaxed);
                // Before the next message its queue is read: polled empty, as consumers do.
                let polled = hca.poll_cq(to.cq, &mut [Completion::BLANK]);
                assert_eq!(polled, Ok(0));
            }
            None => {
                let scatter = &[to.place];
                let request = RecvRequest { wr_id: 1, scatter };
                hca.post_recv(to.qp, &request).expect("posted");
            }
        }
        drop(hca);
        let mut hca = adapter.function(FROM).expect("a VF");
        let request = SendRequest {
            wr_id: 2,
            op: SendOp::Send,
            payload: Payload::Gather(&gather),
            flags: SendFlags::empty(),
            destination: Some(UdDestination {
                address: UdAddress::Vector(vector),
                qpn: to.numbers.real,
                qkey: KEY,
                pkey_index: None,
            }),
        };
        hca.post_send(from.qp, &request).expect("posted");
        poll_one(&mut hca, &from, CompletionOp::Send);
        drop(hca);
        let mut hca = adapter.function(TO).expect("a VF");
        poll_one(&mut hca, &to, CompletionOp::Recv);
    };
    (0..100).for_each(|_| pass());
    allocations(|| (0..1000).for_each(|_| pass()))
}

/// Functions in software cost a request what the adapter's own cost, and no memory besides.
#[test]
fn a_datagram_between_virtual_functions_in_software_allocates_nothing() {
    let config = HcaConfig::new(Guid::new(0x1000), "host");
    let prepare = |device: &mut Device| {
        let port = device.node_mut().port_mut(PORT).expect("the port");
        port.state = PortState::Active;
        port.lid = PEER;
    };
    for is_pulled in [false, true] {
        let mut device = Device::new(&config, 1);
        prepare(&mut device);
        assert_eq!(allocations_of_datagrams(&mut device, is_pulled), 0);
        let mut functions = Functions::new(8, 7);
        let mut device = Device::with_memory(&config, 1, functions.memory());
        prepare(&mut device);
        let mut hca = device.function(FunctionId::PF).expect("the PF");
        let mut adapter = functions.on(&mut hca);
        assert_eq!(allocations_of_datagrams(&mut adapter, is_pulled), 0);
    }
}
