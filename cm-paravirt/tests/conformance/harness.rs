//! A PF with its VFs, and peers made of messages.
use cm_paravirt::{
    CmParavirt, Config, Egress, GidOwner, IdentityCheck, Ingress, PeerAddress, State, VfIdentity,
};
use ib_vtime::{Duration, Instant};
use ib_wire::cm::{self, CmRej, CmRep, CmReq, CmRtu, CmSidrRep, CmSidrReq, RejReason};
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{CommId, Gid, Guid, Lid, PKey, PortNum, Qpn, ServiceId, Sl, SubnetPrefix, Tid};
use vf_tunnel::{DropReason, VfId};

/// The LID that all VFs share.
pub(crate) const OWN_LID: u16 = 5;
/// The LID of the peer in most tests.
pub(crate) const PEER_LID: u16 = 9;
pub(crate) const STRANGER_LID: u16 = 10;
pub(crate) const PKEY: PKey = PKey::DEFAULT_FULL;
pub(crate) const FOREIGN_PKEY: PKey = PKey::new(0x8123);

pub(crate) fn vf(number: u16) -> VfId {
    VfId::new(number).expect("a VF's number")
}

fn port_gid(guid: u64) -> Gid {
    Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(guid))
}

pub(crate) fn vf_gid(number: u16) -> Gid {
    port_gid(0x0002_c903_0000_0100 + u64::from(number))
}

pub(crate) fn vf_ca(number: u16) -> Guid {
    Guid::new(0x0002_c903_00ff_0000 + u64::from(number))
}

pub(crate) fn pf_gid() -> Gid {
    port_gid(0x0002_c903_0000_0100)
}

pub(crate) fn peer_gid(lid: u16) -> Gid {
    port_gid(0x0011_7500_0000_0000 + u64::from(lid))
}

pub(crate) fn peer_ca(lid: u16) -> Guid {
    Guid::new(0x0011_7500_00ff_0000 + u64::from(lid))
}

pub(crate) fn at(lid: u16) -> PeerAddress {
    PeerAddress {
        port: PortNum(1),
        lid: Lid::new(lid),
        qpn: Qpn::GSI,
        sl: Sl::default(),
        gid: None,
    }
}

/// A message with its two ids, everything else zero.
pub(crate) fn message(attribute: AttributeId, local: u32, remote: u32) -> Mad {
    let mut header = cm::header(attribute);
    header.tid = Tid::new(0x0123_4567_89ab_cdef);
    let mut mad = Mad::new(header);
    let rtu: &mut CmRtu = mad.view_mut();
    rtu.local_comm_id = CommId::new(local);
    rtu.remote_comm_id = CommId::new(remote);
    mad
}

fn req(id: u32, ca: Guid, from: (u16, Gid), to: (u16, Gid)) -> Mad {
    let mut mad = message(AttributeId::CM_REQ, id, 0);
    let req: &mut CmReq = mad.view_mut();
    req.local_ca_guid = ca;
    req.local_qpn = Qpn::from_low_bits(id);
    req.pkey = PKEY;
    req.primary.local_lid = Lid::new(from.0);
    req.primary.local_gid = from.1;
    req.primary.remote_lid = Lid::new(to.0);
    req.primary.remote_gid = to.1;
    mad
}

/// A VF's REQ to a peer.
pub(crate) fn vf_req(number: u16, id: u32, lid: u16) -> Mad {
    req(
        id,
        vf_ca(number),
        (OWN_LID, vf_gid(number)),
        (lid, peer_gid(lid)),
    )
}

/// A peer's REQ to a VF.
pub(crate) fn peer_req(lid: u16, id: u32, number: u16) -> Mad {
    req(
        id,
        peer_ca(lid),
        (lid, peer_gid(lid)),
        (OWN_LID, vf_gid(number)),
    )
}

/// A VF's REQ to another VF of the same PF.
pub(crate) fn sibling_req(number: u16, id: u32, to: u16) -> Mad {
    req(
        id,
        vf_ca(number),
        (OWN_LID, vf_gid(number)),
        (OWN_LID, vf_gid(to)),
    )
}

pub(crate) fn set_timeouts(req: &mut Mad, code: u8, retries: u8) {
    let req: &mut CmReq = req.view_mut();
    req.set_remote_cm_response_timeout(code);
    req.set_local_cm_response_timeout(code);
    req.set_max_cm_retries(retries);
}

pub(crate) fn rep(local: u32, remote: u32, ca: Guid) -> Mad {
    let mut mad = message(AttributeId::CM_REP, local, remote);
    let rep: &mut CmRep = mad.view_mut();
    rep.local_ca_guid = ca;
    rep.local_qpn = Qpn::from_low_bits(local);
    mad
}

pub(crate) fn rej(local: u32, remote: u32, what: cm::CmMessage, reason: RejReason) -> Mad {
    let mut mad = message(AttributeId::CM_REJ, local, remote);
    let rej: &mut CmRej = mad.view_mut();
    rej.set_message_rejected(what);
    rej.reason = reason;
    mad
}

/// A REJ for timeout, with the GUID of the CA that gave up.
pub(crate) fn rej_timeout(local: u32, remote: u32, ca: Guid) -> Mad {
    let mut mad = rej(local, remote, cm::CmMessage::OTHER, RejReason::TIMEOUT);
    let rej: &mut CmRej = mad.view_mut();
    rej.set_ari_length(8);
    rej.ari[..8].copy_from_slice(&ca.get().to_be_bytes());
    mad
}

pub(crate) fn sidr_req(id: u32, service: u64) -> Mad {
    let mut mad = message(AttributeId::CM_SIDR_REQ, id, 0);
    let req: &mut CmSidrReq = mad.view_mut();
    req.pkey = PKEY;
    req.reserved = [0; 2];
    req.service_id = ServiceId::new(service);
    mad
}

pub(crate) fn sidr_rep(id: u32) -> Mad {
    let mut mad = message(AttributeId::CM_SIDR_REP, id, 0);
    let rep: &mut CmSidrRep = mad.view_mut();
    rep.qpn = Qpn::from_low_bits(0x1234);
    mad
}

pub(crate) fn local_id(mad: &Mad) -> u32 {
    mad.view::<CmRtu>().local_comm_id.get()
}

pub(crate) fn remote_id(mad: &Mad) -> u32 {
    mad.view::<CmRtu>().remote_comm_id.get()
}

/// What came of a message from the wire.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rx {
    Vf(u16, Mad),
    Answer(Mad),
    ToPf,
    Drop(DropReason),
}

impl Rx {
    #[track_caller]
    pub(crate) fn into_vf(self, number: u16) -> Mad {
        match self {
            Self::Vf(got, mad) if got == number => mad,
            other => panic!("not delivered to vf:{number}: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn into_answer(self) -> Mad {
        match self {
            Self::Answer(mad) => mad,
            other => panic!("not answered: {other:?}"),
        }
    }
}

pub(crate) struct Pf {
    pub(crate) machine: CmParavirt,
    pub(crate) now: Instant,
    pub(crate) down: Vec<u16>,
    /// VFs that are not in the partition of what comes from the wire.
    pub(crate) outside: Vec<u16>,
    pub(crate) check: IdentityCheck,
}

impl Default for Pf {
    fn default() -> Self {
        Self::with(Config::default())
    }
}

impl Pf {
    /// As many VFs own a GID.
    pub(crate) const VFS: u16 = 64;

    pub(crate) fn with(config: Config) -> Self {
        Self {
            machine: CmParavirt::new(config, 42),
            now: Instant::from_millis(1_000),
            down: Vec::new(),
            outside: Vec::new(),
            check: IdentityCheck::Strict,
        }
    }

    pub(crate) fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    pub(crate) fn tx(
        &mut self,
        number: u16,
        mut mad: Mad,
        to: PeerAddress,
    ) -> Result<Mad, DropReason> {
        let who = VfIdentity {
            gids: &[vf_gid(number)],
            ca_guid: Some(vf_ca(number)),
            pkeys: &[PKey::INVALID, PKEY],
            check: self.check,
        };
        let verdict = self
            .machine
            .egress(self.now, vf(number), &mut mad, &to, &who);
        match verdict {
            Egress::Forward => Ok(mad),
            Egress::Drop(reason) => Err(reason),
        }
    }

    /// Sends what must pass; gives its local id on the wire.
    #[track_caller]
    pub(crate) fn sends(&mut self, number: u16, mad: Mad, to: PeerAddress) -> u32 {
        local_id(&self.tx(number, mad, to).expect("forwarded"))
    }

    pub(crate) fn rx(&mut self, mad: Mad, from: PeerAddress) -> Rx {
        self.rx_to(mad, from, None)
    }

    pub(crate) fn rx_to(&mut self, mut mad: Mad, from: PeerAddress, dgid: Option<Gid>) -> Rx {
        let down = self.down.clone();
        let owner = |gid: &Gid| match (1..=Self::VFS).find(|&n| vf_gid(n) == *gid) {
            Some(n) if down.contains(&n) => GidOwner::VfDown(vf(n)),
            Some(n) => GidOwner::Vf(vf(n)),
            None if *gid == pf_gid() => GidOwner::Pf,
            None => GidOwner::Unknown,
        };
        let verdict = self.machine.find(self.now, &mut mad, &from, dgid, owner);
        match verdict {
            Ingress::Vf(named) if self.outside.contains(&named.vf.get()) => {
                self.machine.refuse(named, DropReason::PKeyMismatch);
                Rx::Drop(DropReason::PKeyMismatch)
            }
            Ingress::Vf(named) => match self.machine.accept(named, &mut mad, &from) {
                Ok(()) => Rx::Vf(named.vf.get(), mad),
                Err(reason) => Rx::Drop(reason),
            },
            Ingress::Answer => Rx::Answer(mad),
            Ingress::ToPf => Rx::ToPf,
            Ingress::Drop(reason) => Rx::Drop(reason),
        }
    }

    /// A VF connects to a peer. Gives the wire id.
    #[track_caller]
    pub(crate) fn connect(&mut self, number: u16, id: u32, lid: u16, peer: u32) -> u32 {
        let wire = self.sends(number, vf_req(number, id, lid), at(lid));
        self.rx(rep(peer, wire, peer_ca(lid)), at(lid))
            .into_vf(number);
        let rtu = message(AttributeId::CM_RTU, id, peer);
        assert_eq!(self.sends(number, rtu, at(lid)), wire);
        wire
    }

    /// A peer connects to a VF. Gives the wire id.
    #[track_caller]
    pub(crate) fn accept(&mut self, number: u16, id: u32, lid: u16, peer: u32) -> u32 {
        self.rx(peer_req(lid, peer, number), at(lid))
            .into_vf(number);
        let wire = self.sends(number, rep(id, peer, vf_ca(number)), at(lid));
        self.rx(message(AttributeId::CM_RTU, peer, wire), at(lid))
            .into_vf(number);
        wire
    }

    /// Waits until no timer is left: ten minutes, and then for as long as quiet connections last.
    #[track_caller]
    pub(crate) fn drain(&mut self) {
        let end = self.now + Duration::from_secs(600);
        while let Some(at) = self.machine.poll_timeout().filter(|at| *at <= end) {
            self.now = at;
            self.machine.handle_timeout(at);
        }
        let lasts = |state: &State| [State::Established, State::Quiet].contains(state);
        assert!(self.states().iter().all(lasts), "a timer runs too long");
        self.now += self.machine.config().silence + Duration::from_secs(1);
        self.machine.handle_timeout(self.now);
        assert_eq!(self.machine.poll_timeout(), None);
    }

    pub(crate) fn states(&self) -> Vec<State> {
        self.machine
            .connections(self.now)
            .map(|c| c.state)
            .collect()
    }

    pub(crate) fn drops(&self, number: u16, reason: DropReason) -> u64 {
        self.machine
            .vf_statistics(vf(number))
            .map_or(0, |statistics| statistics.drops(reason))
    }
}
