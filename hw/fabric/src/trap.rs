//! What a node tells the subnet manager unasked (IBA 13.4.9, 14.2.5.1, 14.3.7).
//!
//! A trap is sent to the SM's LID and repeated until a TrapRepress answers it. A port sends at most
//! one trap per subnet timeout, first or repeated (PortInfo:SubnetTimeOut, IBA 14.2.5.6).

use core::time::Duration;

use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::notice::{
    CapabilityDetails, KeyDetails, LinkErrorDetails, LinkStateDetails, LocalChanges, MKeyDetails,
    Notice, NoticeDetails, NoticeType, ProducerType, SwitchPKeyDetails, SystemImageGuidDetails,
    TrapNumber,
};
use ib_wire::smp::{CapabilityMask, LidRoutedSmp};
use ib_wire::{Gid, Lid, PKey, PortNum, QKey, Qpn, Sl, Tid};

use crate::{Node, NodeKind};

/// Traps that wait at one node at most; a newer one of the same number and port takes the place of
/// an older one, and what does not fit is not told.
const MAX_PENDING: usize = 32;

/// Which key of a packet was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongKey {
    /// No entry of the port's P_Key table, or not that of the QP, matches: trap 257.
    PKey(PKey),
    /// The Q_Key is not that of the QP: trap 258.
    QKey(QKey),
}

/// A packet that a port refused for its key (IBA 14.2.5.1, NoticeDataDetails for traps 257, 258).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadKey {
    /// The key.
    pub key: WrongKey,
    /// Source LID of the packet.
    pub slid: Lid,
    /// Destination LID of the packet.
    pub dlid: Lid,
    /// Its service level.
    pub sl: Sl,
    /// Source QP.
    pub src_qpn: Qpn,
    /// Destination QP.
    pub dest_qpn: Qpn,
    /// Source and destination GID, if the packet had a GRH.
    pub gids: Option<(Gid, Gid)>,
}

/// A trap that nobody has repressed yet.
#[derive(Clone, Debug)]
struct Pending {
    /// The end port that sends it.
    port: PortNum,
    tid: Tid,
    notice: Notice,
    /// When it wants to be sent next.
    due: Instant,
}

/// The traps of a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traps {
    pending: Vec<Pending>,
    /// Per port, when the next trap may be sent.
    not_before: Vec<(PortNum, Instant)>,
    last_tid: u64,
    /// A trap was added since the node's timer was last set.
    pub(crate) fresh: bool,
}

impl Traps {
    fn not_before(&self, port: PortNum) -> Instant {
        self.not_before
            .iter()
            .find(|(p, _)| *p == port)
            .map_or(Instant::ZERO, |(_, at)| *at)
    }

    fn set_not_before(&mut self, port: PortNum, at: Instant) {
        match self.not_before.iter_mut().find(|(p, _)| *p == port) {
            Some(entry) => entry.1 = at,
            None => self.not_before.push((port, at)),
        }
    }

    /// When the next trap is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.pending
            .iter()
            .map(|trap| trap.due.max(self.not_before(trap.port)))
            .min()
    }
}

impl Node {
    /// Counts a packet that the transport refused for its key, and tells the SM.
    pub fn report_bad_key(&mut self, port: PortNum, bad: &BadKey) {
        let Some(state) = self.port_mut(port) else {
            return;
        };
        let (violations, number, key) = match bad.key {
            WrongKey::PKey(pkey) => (
                &mut state.p_key_violations,
                TrapNumber::BAD_PKEY,
                u32::from(pkey.get()),
            ),
            WrongKey::QKey(qkey) => (
                &mut state.q_key_violations,
                TrapNumber::BAD_QKEY,
                qkey.get(),
            ),
        };
        *violations = violations.saturating_add(1);
        let (gid1, gid2) = bad.gids.unwrap_or_default();
        let mut details = KeyDetails {
            lid1: bad.slid,
            lid2: bad.dlid,
            key: key.into(),
            qp1: bad.src_qpn,
            qp2: bad.dest_qpn,
            gid1,
            gid2,
            ..KeyDetails::default()
        };
        details.set_sl(bad.sl);
        self.trap(port, NoticeType::SECURITY, number, &details);
    }

    /// Tells that a switch refused a packet for its P_Key (trap 259).
    pub(crate) fn trap_switch_bad_pkey(&mut self, details: &SwitchPKeyDetails) {
        self.trap(
            PortNum::SWITCH_MANAGEMENT,
            NoticeType::SECURITY,
            TrapNumber::SWITCH_BAD_PKEY,
            details,
        );
    }

    /// Tells that an SMP had a wrong M_Key (trap 256).
    pub(crate) fn trap_bad_m_key(&mut self, port: PortNum, details: &MKeyDetails) {
        self.trap(port, NoticeType::SECURITY, TrapNumber::BAD_MKEY, details);
    }

    /// Tells that a port of a switch went up or down (trap 128).
    pub(crate) fn trap_link_state(&mut self) {
        let lid = self.end_port(PortNum(0)).map_or(Lid::NONE, |port| port.lid);
        self.trap(
            PortNum::SWITCH_MANAGEMENT,
            NoticeType::URGENT,
            TrapNumber::LINK_STATE_CHANGED,
            &LinkStateDetails {
                lid,
                ..LinkStateDetails::default()
            },
        );
    }

    /// Tells that the threshold of local link integrity errors, of buffer overruns or of the flow
    /// control watchdog was crossed on a port (traps 129 to 131).
    pub(crate) fn trap_link_error(&mut self, port: PortNum, number: TrapNumber) {
        let lid = self.end_port(port).map_or(Lid::NONE, |port| port.lid);
        let details = LinkErrorDetails {
            lid,
            port,
            ..LinkErrorDetails::default()
        };
        self.trap(port, NoticeType::URGENT, number, &details);
    }

    /// Tells that a port's capability mask (no bit set) or something else changed (trap 144).
    pub(crate) fn trap_local_changes(&mut self, port: PortNum, changes: LocalChanges) {
        let Some(end_port) = self.end_port(port) else {
            return;
        };
        let mask = end_port.capabilities;
        let other = changes != LocalChanges::default();
        let announced = if other {
            CapabilityMask::IS_OTHER_LOCAL_CHANGES_NOTICE_SUPPORTED
        } else {
            CapabilityMask::IS_CAPABILITY_MASK_NOTICE_SUPPORTED
        };
        if !mask.contains(announced) {
            return;
        }
        let mut details = CapabilityDetails {
            lid: end_port.lid,
            capability_mask: mask,
            changes,
            ..CapabilityDetails::default()
        };
        details.set_other_local_changes(other);
        self.trap(
            port,
            NoticeType::INFORMATIONAL,
            TrapNumber::CAPABILITY_MASK_CHANGED,
            &details,
        );
    }

    /// Tells that the system image GUID changed (trap 145).
    pub(crate) fn trap_system_image_guid(&mut self, port: PortNum) {
        let details = SystemImageGuidDetails {
            lid: self.end_port(port).map_or(Lid::NONE, |port| port.lid),
            system_image_guid: self.system_image_guid,
            ..SystemImageGuidDetails::default()
        };
        self.trap(
            port,
            NoticeType::INFORMATIONAL,
            TrapNumber::SYSTEM_IMAGE_GUID_CHANGED,
            &details,
        );
    }

    fn trap<D: NoticeDetails>(
        &mut self,
        port: PortNum,
        kind: NoticeType,
        number: TrapNumber,
        details: &D,
    ) {
        let producer = match self.kind() {
            NodeKind::ChannelAdapter => ProducerType::CA,
            NodeKind::Switch => ProducerType::SWITCH,
        };
        let port = self.end_port_number(port);
        let now = self.now();
        let Some(state) = self.port(port) else {
            return;
        };
        // Without an SM there is nobody to tell; the one that comes reads everything anyway.
        if !state
            .capabilities
            .contains(CapabilityMask::IS_TRAP_SUPPORTED)
            || !state.sm_lid.is_unicast()
            || !state.lid.is_unicast()
        {
            return;
        }
        let notice = Notice::generic(kind, producer, number, state.lid, details);
        let traps = &mut self.traps;
        traps.fresh = true;
        traps.last_tid += 1;
        let trap = Pending {
            port,
            tid: Tid::new(traps.last_tid),
            notice,
            due: now,
        };
        let same = traps
            .pending
            .iter()
            .position(|p| p.port == port && p.notice.trap_number == number);
        if let Some(at) = same {
            traps.pending[at] = trap;
        } else if traps.pending.len() < MAX_PENDING {
            traps.pending.push(trap);
        }
    }

    /// Takes a TrapRepress: the trap with its transaction id and number is not repeated. `false` if
    /// there is no such trap.
    pub(crate) fn repress_trap(&mut self, port: PortNum, mad: &Mad) -> bool {
        let port = self.end_port_number(port);
        let smp: &LidRoutedSmp = mad.view();
        let number = smp.attribute::<Notice>().trap_number;
        let waiting = self.traps.pending.len();
        self.traps.pending.retain(|trap| {
            trap.port != port || trap.tid != mad.header.tid || trap.notice.trap_number != number
        });
        self.traps.pending.len() < waiting
    }

    /// Gives up what a port that went down had to tell.
    pub(crate) fn forget_traps(&mut self, port: PortNum) {
        self.traps.pending.retain(|trap| trap.port != port);
    }

    /// The next trap that is due: the end port that sends it, and the SMP.
    pub(crate) fn poll_trap(&mut self) -> Option<(PortNum, Mad)> {
        let now = self.now();
        // The one that waits longest: else one that repeats would starve those behind it.
        let (at, port) = (self.traps.pending.iter().enumerate())
            .filter(|(_, trap)| trap.due <= now && self.traps.not_before(trap.port) <= now)
            .min_by_key(|(_, trap)| trap.due)
            .map(|(at, trap)| (at, trap.port))?;
        let timeout = subnet_timeout(self.port(port)?.subnet_timeout);
        let trap = &mut self.traps.pending[at];
        trap.due = now + timeout;
        let mut mad = Mad::new(MadHeader::new(
            MgmtClass::SUBN_LID_ROUTED,
            Method::TRAP,
            AttributeId::NOTICE,
        ));
        mad.header.tid = trap.tid;
        let smp: &mut LidRoutedSmp = mad.view_mut();
        *smp.attribute_mut() = trap.notice;
        self.traps.set_not_before(port, now + timeout);
        Some((port, mad))
    }
}

/// The time that a PortInfo:SubnetTimeOut code stands for: 4.096 µs × 2^code (IBA 14.2.5.6).
fn subnet_timeout(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(31))
}
