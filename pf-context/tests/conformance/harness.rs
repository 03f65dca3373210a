//! A port with two VFs, and what comes of frames.

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::{Gid, Guid, Lid, PKey, PKeyIndex, QKey, Qpn, Sl, SubnetPrefix, Tid};
use pf_context::{
    Cause, Output, PortConfig, PortEvent, PortMux, Route, VfConfig, VfEvent, VfPKeyEntry,
    WireSource,
};
use vf_tunnel::{DropReason, PhysicalPKeyIndex, SpecialQp, ToPf, VfId, VirtualPKeyIndex};
use zerocopy::IntoBytes;

pub(crate) use vf_tunnel::SpecialQp::{Gsi, Smi};

pub(crate) const PREFIX: SubnetPrefix = SubnetPrefix::DEFAULT;
pub(crate) const OWN: u16 = 8;
pub(crate) const SM: u16 = 1;
/// The LID of a peer that is not the SM, nor of one port with it whatever their LMC.
pub(crate) const PEER: u16 = 0x214;
pub(crate) const OTHER: PKey = PKey::new(0x8123);
pub(crate) const LIMITED: PKey = PKey::new(0x0456);

pub(crate) fn vf(number: u16) -> VfId {
    VfId::new(number).unwrap()
}

pub(crate) fn vf_guid(number: u16) -> Guid {
    Guid::new(0x0002_c903_0000_0100 + u64::from(number))
}

pub(crate) fn vf_gid(number: u16) -> Gid {
    Gid::from_parts(PREFIX, vf_guid(number))
}

pub(crate) fn peer_gid() -> Gid {
    Gid::from_parts(PREFIX, Guid::new(0x0011_7500_0000_0001))
}

pub(crate) fn route(sgid: Gid, dgid: Gid) -> Route {
    Route {
        sgid,
        dgid,
        traffic_class: 3,
        flow_label: 0x4_5678,
        hop_limit: 9,
    }
}

pub(crate) fn mad(class: MgmtClass, method: Method, attribute: AttributeId, tid: u64) -> Mad {
    let mut mad = Mad::new(MadHeader::new(class, method, attribute));
    mad.header.tid = Tid::new(tid);
    mad
}

/// A query of paths by destination, which every VF may send.
pub(crate) fn path_query(tid: u64) -> Mad {
    mad(
        MgmtClass::SUBN_ADM,
        Method::GET,
        AttributeId::PATH_RECORD,
        tid,
    )
}

/// A frame as a guest sends it to QP1 of a LID.
pub(crate) fn frame(dlid: u16, mad: Mad) -> ToPf {
    let mut frame = ToPf::zeroed();
    frame.header.av.flags_port = 1;
    frame.header.av.dlid = Lid::new(dlid);
    frame.header.remote_qpn = Qpn::GSI;
    frame.header.remote_qkey = QKey::GSI;
    frame.mad = mad;
    frame
}

/// The same with a GRH.
pub(crate) fn global_frame(dlid: u16, dgid: Gid, mad: Mad) -> ToPf {
    let mut frame = frame(dlid, mad);
    frame.header.av.grh_path_bits |= 0x80;
    frame.header.av.dgid = dgid;
    frame.header.av.hop_limit = 9;
    frame
}

/// A packet from QP1 of a LID, in the default partition.
pub(crate) fn from(lid: u16) -> WireSource {
    WireSource {
        slid: Lid::new(lid),
        sqpn: Qpn::GSI,
        sl: Sl::default(),
        pkey: PKey::DEFAULT_FULL,
        path_bits: 0,
        grh: None,
    }
}

pub(crate) fn answer(request: &Mad) -> Mad {
    let mut answer = *request;
    answer.header.method = request.header.method.response();
    answer
}

/// What was sent on the wire.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) qp: SpecialQp,
    pub(crate) dlid: u16,
    pub(crate) dqpn: Qpn,
    pub(crate) qkey: QKey,
    pub(crate) pkey: PKey,
    pub(crate) path_bits: u8,
    pub(crate) grh: Option<Route>,
    pub(crate) mad: Mad,
}

/// What a VF got.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) vf: u16,
    pub(crate) slid: u16,
    pub(crate) sqpn: Qpn,
    pub(crate) sl: Sl,
    pub(crate) pkey_index: u16,
    pub(crate) grh: Option<Route>,
    pub(crate) mad: Mad,
}

pub(crate) struct Port {
    pub(crate) mux: PortMux,
    pub(crate) now: Instant,
    cause: u64,
}

/// Physical indices of the port's keys.
pub(crate) const PKEYS: [PKey; 4] = [PKey::DEFAULT_FULL, OTHER, LIMITED, PKey::INVALID];

pub(crate) fn config() -> PortConfig {
    PortConfig {
        seed: 7,
        lid: Lid::new(OWN),
        sm_lid: Lid::new(SM),
        pkeys: PKEYS.to_vec(),
        ..PortConfig::default()
    }
}

pub(crate) fn physical(index: u16) -> Option<VfPKeyEntry> {
    Some(VfPKeyEntry::Index(PhysicalPKeyIndex(PKeyIndex(index))))
}

pub(crate) fn virtual_index(index: u16) -> VirtualPKeyIndex {
    VirtualPKeyIndex(PKeyIndex(index))
}

pub(crate) fn vf_config(number: u16) -> VfConfig {
    VfConfig {
        guid: Some(vf_guid(number)),
        ..VfConfig::default()
    }
}

impl Port {
    /// Two VFs, each with the default partition alone.
    pub(crate) fn new() -> Self {
        Self::with(config(), [vf_config(1), vf_config(2)])
    }

    pub(crate) fn with(config: PortConfig, vfs: impl IntoIterator<Item = VfConfig>) -> Self {
        let mut mux = PortMux::new(config);
        for (number, config) in (1..).zip(vfs) {
            mux.add_vf(vf(number), config).unwrap();
        }
        Self {
            mux,
            now: Instant::from_millis(1),
            cause: 0,
        }
    }

    pub(crate) fn next_cause(&mut self) -> Cause {
        self.cause += 1;
        Cause(self.cause)
    }

    /// What the last input is called.
    pub(crate) fn last_cause(&self) -> Cause {
        Cause(self.cause)
    }

    /// What came out, whatever it follows from.
    fn any_outputs(&mut self) -> Vec<(Cause, Output)> {
        core::iter::from_fn(|| self.mux.poll_output()).collect()
    }

    /// What came out, all of it of the last input.
    pub(crate) fn outputs(&mut self) -> Vec<Output> {
        let expected = self.last_cause();
        let outputs = self.any_outputs().into_iter();
        outputs
            .map(|(cause, output)| {
                assert_eq!(cause, expected, "{output:?}");
                output
            })
            .collect()
    }

    pub(crate) fn vf_sends(&mut self, number: u16, frame: &ToPf) -> Vec<Output> {
        self.vf_sends_on(number, Gsi, frame)
    }

    pub(crate) fn vf_sends_on(&mut self, number: u16, qp: SpecialQp, frame: &ToPf) -> Vec<Output> {
        let cause = self.next_cause();
        self.mux.from_vf(self.now, cause, vf(number), qp, frame);
        self.outputs()
    }

    pub(crate) fn tenant_sends(&mut self, tenant: VfId, frame: &ToPf) -> Vec<Output> {
        let cause = self.next_cause();
        self.mux.from_vf(self.now, cause, tenant, Gsi, frame);
        self.outputs()
    }

    pub(crate) fn vf_sends_bytes(&mut self, number: u16, bytes: &[u8]) -> Vec<Output> {
        let cause = self.next_cause();
        self.mux
            .from_vf_bytes(self.now, cause, vf(number), Gsi, bytes);
        self.outputs()
    }

    pub(crate) fn wire_sends(&mut self, source: &WireSource, mad: &Mad) -> Vec<Output> {
        self.wire_sends_bytes(Gsi, source, mad.as_bytes())
    }

    pub(crate) fn wire_sends_bytes(
        &mut self,
        qp: SpecialQp,
        source: &WireSource,
        bytes: &[u8],
    ) -> Vec<Output> {
        let cause = self.next_cause();
        self.mux.from_wire(self.now, cause, qp, source, bytes);
        self.outputs()
    }

    /// As [`Port::wire_sends`], when earlier inputs may have waited for this one.
    pub(crate) fn wire_sends_any(
        &mut self,
        source: &WireSource,
        mad: &Mad,
    ) -> Vec<(Cause, Output)> {
        let cause = self.next_cause();
        self.mux
            .from_wire(self.now, cause, Gsi, source, mad.as_bytes());
        self.any_outputs()
    }

    pub(crate) fn event(&mut self, event: PortEvent) -> Vec<Output> {
        let cause = self.next_cause();
        self.mux.event(self.now, cause, event);
        self.outputs()
    }

    pub(crate) fn reset(&mut self, number: u16) -> Vec<Output> {
        let cause = self.next_cause();
        self.mux.reset_vf(self.now, cause, vf(number));
        self.outputs()
    }

    /// As [`Port::reset`], when earlier inputs may end or go on with it.
    pub(crate) fn reset_any(&mut self, number: u16) -> Vec<(Cause, Output)> {
        let cause = self.next_cause();
        self.mux.reset_vf(self.now, cause, vf(number));
        self.any_outputs()
    }

    /// Lets time pass, timer by timer; gives what came of it.
    pub(crate) fn wait(&mut self, time: Duration) -> Vec<(Cause, Output)> {
        let end = self.now + time;
        let mut outputs = Vec::new();
        while let Some(at) = self.mux.poll_timeout().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.mux.handle_timeout(self.now);
            outputs.extend(core::iter::from_fn(|| self.mux.poll_output()));
        }
        self.now = end;
        outputs
    }
}

#[track_caller]
fn only(outputs: Vec<Output>) -> Output {
    let [output] = <[Output; 1]>::try_from(outputs).expect("one output");
    output
}

#[track_caller]
pub(crate) fn sent(outputs: Vec<Output>) -> Sent {
    match only(outputs) {
        Output::ToWire(send, mad) => Sent {
            qp: send.qp,
            dlid: send.dlid.get(),
            dqpn: send.dqpn,
            qkey: send.qkey,
            pkey: send.pkey,
            path_bits: send.path_bits,
            grh: send.grh,
            mad,
        },
        other => panic!("not sent: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn got(outputs: Vec<Output>) -> Got {
    match only(outputs) {
        Output::ToVf(to, mad) => Got {
            vf: to.vf.get(),
            slid: to.slid.get(),
            sqpn: to.sqpn,
            sl: to.sl,
            pkey_index: to.pkey_index.0.0,
            grh: to.grh,
            mad,
        },
        other => panic!("not delivered: {other:?}"),
    }
}

#[track_caller]
pub(crate) fn dropped(outputs: Vec<Output>) -> DropReason {
    match only(outputs) {
        Output::Dropped { reason, .. } => reason,
        other => panic!("not dropped: {other:?}"),
    }
}

/// The events, in the order of their VFs, of outputs that are nothing else.
#[track_caller]
pub(crate) fn told(outputs: Vec<Output>) -> Vec<(u16, VfEvent)> {
    let event = |output| match output {
        Output::VfEvent { vf, event } => (vf.get(), event),
        other => panic!("no event: {other:?}"),
    };
    outputs.into_iter().map(event).collect()
}
