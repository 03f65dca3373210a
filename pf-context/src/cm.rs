//! The communication manager's machine, which all ports of an adapter share.
//!
//! A VF numbers its connections on all ports together, and automatic path migration moves a connection
//! from one port to the other. So there is one machine and one table of wire ids for the adapter, and a
//! VF's GIDs on all ports are its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cm_paravirt::{CmParavirt, GidOwner, SidrEntry, SidrTaken, Transmit};
use ib_wire::mad::AttributeId;
use ib_wire::{Gid, PortNum, SubnetPrefix};
use mad_mux::steering::{GidTable, Owner};
use vf_tunnel::VfId;

use crate::mux::PortMux;

/// What the ports of an adapter share of the communication manager.
#[derive(Clone, Debug)]
pub(crate) struct AdapterCm {
    pub(crate) machine: CmParavirt,
    pub(crate) gids: AdapterGids,
}

/// The GIDs of the ports that share a machine; none if a port has one for itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdapterGids(BTreeMap<PortNum, GidTable>);

impl AdapterGids {
    /// The VF that has a GID on another port.
    pub(crate) fn owner_elsewhere(&self, port: PortNum, gid: Gid) -> Option<VfId> {
        self.elsewhere(port)
            .find_map(|table| match table.owner(gid) {
                // The PF has other software on each port.
                Ok(Owner::Vf(vf)) => Some(vf),
                Ok(Owner::Pf) | Err(_) => None,
            })
    }

    /// A VF's GIDs on other ports, under both prefixes that are valid for each.
    pub(crate) fn of_vf_elsewhere(&self, port: PortNum, vf: VfId) -> impl Iterator<Item = Gid> {
        self.elsewhere(port).flat_map(move |table| {
            let own = table
                .iter()
                .filter(move |(_, owner)| *owner == Owner::Vf(vf));
            own.flat_map(|(guid, _)| {
                [table.prefix(), SubnetPrefix::DEFAULT].map(|prefix| Gid::from_parts(prefix, guid))
            })
        })
    }

    fn elsewhere(&self, port: PortNum) -> impl Iterator<Item = &GidTable> {
        let others = self.0.iter().filter(move |(other, _)| **other != port);
        others.map(|(_, table)| table)
    }

    /// Whether the port shares its machine with others.
    pub(crate) fn are_of_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Whether a port before this one shares the machine: that one tells what they have together.
    pub(crate) fn begin_before(&self, port: PortNum) -> bool {
        self.0.keys().any(|other| *other < port)
    }
}

/// A port's share of the adapter's machine. A clone is a machine of its own.
#[derive(Debug)]
pub(crate) struct SharedCm(Arc<Mutex<AdapterCm>>);

impl SharedCm {
    pub(crate) fn new(machine: CmParavirt) -> Self {
        Self(Arc::new(Mutex::new(AdapterCm {
            machine,
            gids: AdapterGids::default(),
        })))
    }

    /// The machine, for one port at a time. Ports of an adapter are served one after another, so nobody
    /// waits.
    pub(crate) fn lock(&self) -> MutexGuard<'_, AdapterCm> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for SharedCm {
    fn clone(&self) -> Self {
        Self(Arc::new(Mutex::new(self.lock().clone())))
    }
}

impl PortMux {
    /// Makes the port one of the adapter that another port belongs to, under a number of its own. Only
    /// before either port has a VF.
    pub(crate) fn join_adapter(&mut self, first: &Self, number: PortNum) {
        self.cm = SharedCm(Arc::clone(&first.cm.0));
        self.number = number;
        self.set_lmc(self.port.lmc);
        first.tell_gids();
        self.tell_gids();
    }

    /// Tells the adapter's other ports whose the port's GIDs are now.
    pub(crate) fn tell_gids(&self) {
        let mut cm = self.cm.lock();
        cm.gids.0.insert(self.number, self.gids.clone());
    }

    /// What a peer is to be told by this port of a VF that was reset.
    pub(crate) fn next_farewell(&self) -> Option<Transmit> {
        self.cm.lock().machine.poll_transmit(self.number)
    }

    /// Ids of exchanges that this port leads to.
    pub(crate) fn cm_ids(&self) -> usize {
        let cm = self.cm.lock();
        if cm.gids.are_of_several() {
            cm.machine.len_of_port(self.number)
        } else {
            cm.machine.len()
        }
    }

    /// Bytes of the machine's tables, which the adapter's first port tells.
    pub(crate) fn cm_bytes(&self) -> usize {
        let cm = self.cm.lock();
        if cm.gids.begin_before(self.number) {
            0
        } else {
            cm.machine.state_bytes()
        }
    }

    /// Whose a GID is: on this port, or, if it is none of this port's, on another.
    pub(crate) fn cm_owner(&self, elsewhere: &AdapterGids, gid: Gid) -> GidOwner {
        let of_vf = |vf| {
            if self.vfs.active(vf).is_some() {
                GidOwner::Vf(vf)
            } else {
                GidOwner::VfDown(vf)
            }
        };
        match self.gids.owner(gid) {
            Ok(Owner::Vf(vf)) => of_vf(vf),
            Ok(Owner::Pf) if self.has_pf_software() => GidOwner::Vf(VfId::PF),
            Ok(Owner::Pf) => GidOwner::Pf,
            Err(_) => elsewhere
                .owner_elsewhere(self.number, gid)
                .map_or(GidOwner::Unknown, of_vf),
        }
    }

    /// The GIDs on other ports that a VF may claim as its own in a message, if that claims any.
    pub(crate) fn gids_elsewhere(
        &self,
        adapter: &AdapterGids,
        vf: VfId,
        message: AttributeId,
    ) -> Vec<Gid> {
        let claims = [AttributeId::CM_REQ, AttributeId::CM_LAP].contains(&message);
        let own = claims.then(|| adapter.of_vf_elsewhere(self.number, vf));
        // Another subnet's manager may have given it a GUID that somebody has here.
        let free = |gid: &Gid| self.gids.owner(*gid).is_err();
        own.into_iter().flatten().filter(free).collect()
    }

    /// Gives a VF these addresses and services, at which it gets SIDR requests without a GRH, instead of
    /// those that it had. They are the VF's on all ports of the adapter, and until it is removed.
    ///
    /// # Errors
    /// [`SidrTaken`]; nothing has changed then.
    pub fn set_sidr(&mut self, vf: VfId, entries: &[SidrEntry]) -> Result<(), SidrTaken> {
        self.cm.lock().machine.sidr_table_mut().set(vf, entries)
    }
}

#[cfg(test)]
mod tests {
    use cm_paravirt::State;
    use ib_vtime::{Duration, Instant};
    use ib_wire::cm::{self, CmLap, CmRep, CmReq, CmRtu};
    use ib_wire::mad::Mad;
    use ib_wire::{CommId, Guid, Lid, PKey, QKey, Qpn, Sl};
    use vf_tunnel::{DropReason, SpecialQp, ToPf};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::config::{PortConfig, VfConfig};
    use crate::output::{Cause, Output, WireSource};

    /// LIDs of the adapter's ports and of the peer's, each pair in a subnet of its own.
    const OWN: [u16; 2] = [5, 6];
    const PEER: [u16; 2] = [20, 21];

    fn vf(number: u16) -> VfId {
        VfId::new(number).unwrap()
    }

    fn gid(port: usize, number: u16) -> Gid {
        let prefix = SubnetPrefix::new(0xfec0_0000_0000_0000 + port as u64);
        let guid = 0x0014_0500_0000_0000 + port as u64 * 0x100 + u64::from(number);
        Gid::from_parts(prefix, Guid::new(guid))
    }

    fn peer_gid(port: usize) -> Gid {
        gid(port, 0xff)
    }

    /// An adapter of two ports, each in a subnet of its own, with two VFs.
    struct Adapter {
        ports: [PortMux; 2],
        now: Instant,
    }

    impl Adapter {
        fn new() -> Self {
            let mut ports = [0, 1].map(|port| {
                PortMux::new(PortConfig {
                    seed: 7 + port as u64,
                    lid: Lid::new(OWN[port]),
                    subnet_prefix: gid(port, 0).prefix(),
                    guid: gid(port, 0).interface_id(),
                    ..PortConfig::default()
                })
            });
            let [first, second] = &mut ports;
            second.join_adapter(first, PortNum(2));
            for (index, port) in ports.iter_mut().enumerate() {
                for number in [1, 2] {
                    let config = VfConfig {
                        guid: Some(gid(index, number).interface_id()),
                        port: PortNum(1 + u8::try_from(index).unwrap()),
                        ..VfConfig::default()
                    };
                    port.add_vf(vf(number), config).unwrap();
                }
            }
            Self {
                ports,
                now: Instant::from_millis(1),
            }
        }

        fn output(&mut self, port: usize) -> Output {
            let output = self.ports[port].poll_output().unwrap().1;
            assert!(self.ports[port].poll_output().is_none());
            output
        }

        /// VF 1 sends by a port to the peer's port there. Gives what goes out.
        fn sends(&mut self, port: usize, mad: Mad) -> Result<Mad, DropReason> {
            let mut frame = ToPf::zeroed();
            frame.header.av.flags_port = 1 + u8::try_from(port).unwrap();
            frame.header.av.dlid = Lid::new(PEER[port]);
            frame.header.remote_qpn = Qpn::GSI;
            frame.header.remote_qkey = QKey::GSI;
            frame.mad = mad;
            let (now, qp) = (self.now, SpecialQp::Gsi);
            self.ports[port].from_vf(now, Cause(1), vf(1), qp, &frame);
            match self.output(port) {
                Output::ToWire(_, mad) => Ok(mad),
                Output::Dropped { reason, .. } => Err(reason),
                other => panic!("{other:?}"),
            }
        }

        /// The peer sends by a port. Gives what VF 1 gets there.
        fn hears(&mut self, port: usize, mad: &Mad) -> Result<Mad, DropReason> {
            let source = WireSource {
                slid: Lid::new(PEER[port]),
                sqpn: Qpn::GSI,
                sl: Sl::default(),
                pkey: PKey::DEFAULT_FULL,
                grh: None,
                path_bits: 0,
            };
            let (now, qp) = (self.now, SpecialQp::Gsi);
            self.ports[port].from_wire(now, Cause(1), qp, &source, mad.as_bytes());
            match self.output(port) {
                Output::ToVf(to, mad) if to.vf == vf(1) => Ok(mad),
                Output::Dropped { reason, .. } => Err(reason),
                other => panic!("{other:?}"),
            }
        }

        fn cm_ids(&self) -> [usize; 2] {
            [0, 1].map(|port| self.ports[port].sizes().cm_ids)
        }
    }

    fn message(attribute: AttributeId, local: u32, remote: u32) -> Mad {
        let mut mad = Mad::new(cm::header(attribute));
        let rtu: &mut CmRtu = mad.view_mut();
        rtu.local_comm_id = CommId::new(local);
        rtu.remote_comm_id = CommId::new(remote);
        mad
    }

    fn ids(mad: &Mad) -> (u32, u32) {
        let rtu: &CmRtu = mad.view();
        (rtu.local_comm_id.get(), rtu.remote_comm_id.get())
    }

    /// A REQ of the first port's path with an alternate one by the second.
    fn req(id: u32, by_vf: bool) -> Mad {
        let mut mad = message(AttributeId::CM_REQ, id, 0);
        let req: &mut CmReq = mad.view_mut();
        req.pkey = PKey::DEFAULT_FULL;
        for (port, path) in [&mut req.primary, &mut req.alternate]
            .into_iter()
            .enumerate()
        {
            let mut ends = [(gid(port, 1), OWN[port]), (peer_gid(port), PEER[port])];
            if !by_vf {
                ends.reverse();
            }
            (path.local_gid, path.local_lid) = (ends[0].0, Lid::new(ends[0].1));
            (path.remote_gid, path.remote_lid) = (ends[1].0, Lid::new(ends[1].1));
        }
        mad
    }

    /// VF 1 connects under its id 5 to the peer's 77. Gives the wire id.
    fn connect(adapter: &mut Adapter) -> u32 {
        let (wire, _) = ids(&adapter.sends(0, req(5, true)).unwrap());
        let mut rep = message(AttributeId::CM_REP, 77, wire);
        rep.view_mut::<CmRep>().local_ca_guid = Guid::new(9);
        assert_eq!(ids(&adapter.hears(0, &rep).unwrap()), (77, 5));
        let rtu = message(AttributeId::CM_RTU, 5, 77);
        assert_eq!(ids(&adapter.sends(0, rtu).unwrap()), (wire, 77));
        wire
    }

    fn lap(ids: (u32, u32), local: Gid, remote: (Gid, u16)) -> Mad {
        let mut mad = message(AttributeId::CM_LAP, ids.0, ids.1);
        let lap: &mut CmLap = mad.view_mut();
        lap.alternate_local_gid = local;
        (lap.alternate_remote_gid, lap.alternate_remote_lid) = (remote.0, Lid::new(remote.1));
        mad
    }

    #[test]
    fn c107_a_req_with_an_alternate_path_by_the_vfs_other_port_passes() {
        let mut adapter = Adapter::new();
        connect(&mut adapter);
        assert_eq!(adapter.cm_ids(), [1, 0]);
        let mut foreign = req(6, true);
        foreign.view_mut::<CmReq>().alternate.local_gid = gid(1, 2);
        assert_eq!(adapter.sends(0, foreign), Err(DropReason::ForeignIdentity));
    }

    #[test]
    fn c106_a_connection_moves_to_the_other_port_and_back_and_ends_there() {
        let mut adapter = Adapter::new();
        let wire = connect(&mut adapter);
        // It has migrated: what follows comes and goes by the other port, under the same ids.
        let back = lap((5, 77), gid(0, 1), (peer_gid(0), PEER[0]));
        assert_eq!(ids(&adapter.sends(1, back).unwrap()), (wire, 77));
        let apr = message(AttributeId::CM_APR, 77, wire);
        assert_eq!(ids(&adapter.hears(1, &apr).unwrap()), (77, 5));
        assert_eq!(adapter.cm_ids(), [0, 1]);
        // And back, where the peer loads the way to the other port anew.
        let again = lap((77, wire), peer_gid(1), (gid(1, 1), OWN[1]));
        assert_eq!(ids(&adapter.hears(0, &again).unwrap()), (77, 5));
        let foreign = lap((77, wire), peer_gid(1), (gid(1, 2), OWN[1]));
        assert_eq!(adapter.hears(0, &foreign), Err(DropReason::TargetMismatch));
        let dreq = message(AttributeId::CM_DREQ, 77, wire);
        assert_eq!(ids(&adapter.hears(0, &dreq).unwrap()), (77, 5));
        let drep = message(AttributeId::CM_DREP, 5, 77);
        assert_eq!(ids(&adapter.sends(1, drep).unwrap()), (wire, 77));
        adapter.now += Duration::from_secs(60);
        adapter.ports[1].handle_timeout(adapter.now);
        assert_eq!(adapter.cm_ids(), [0, 0]);
    }

    #[test]
    fn c096_the_dreq_of_a_connection_that_migrated_comes_by_the_other_port() {
        let mut adapter = Adapter::new();
        let asked = adapter.hears(0, &req(77, false)).unwrap();
        assert_eq!(ids(&asked).0, 77);
        let mut rep = message(AttributeId::CM_REP, 5, 77);
        rep.view_mut::<CmRep>().local_ca_guid = Guid::new(1);
        let (wire, _) = ids(&adapter.sends(0, rep).unwrap());
        let rtu = message(AttributeId::CM_RTU, 77, wire);
        adapter.hears(0, &rtu).unwrap();
        let dreq = message(AttributeId::CM_DREQ, 77, wire);
        assert_eq!(ids(&adapter.hears(1, &dreq).unwrap()), (77, 5));
    }

    #[test]
    fn c111_a_reset_ends_what_a_vf_has_on_all_ports_and_each_port_takes_leave_of_its_peers() {
        let mut adapter = Adapter::new();
        for port in &mut adapter.ports {
            port.policy.signal_reset = true;
        }
        connect(&mut adapter);
        let by_second = {
            let mut mad = req(6, true);
            let req: &mut CmReq = mad.view_mut();
            core::mem::swap(&mut req.primary, &mut req.alternate);
            mad
        };
        adapter.sends(1, by_second).unwrap();
        assert_eq!(adapter.cm_ids(), [1, 1]);
        let now = adapter.now;
        for port in &mut adapter.ports {
            port.reset_vf(now, Cause(1), vf(1));
        }
        for (port, attribute) in [(0, AttributeId::CM_DREQ), (1, AttributeId::CM_REJ)] {
            match adapter.output(port) {
                Output::ToWire(send, mad) => {
                    assert_eq!(mad.header.attribute_id, attribute);
                    assert_eq!(send.dlid, Lid::new(PEER[port]));
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(adapter.cm_ids(), [0, 0]);
    }

    #[test]
    fn c195_the_pfs_software_on_one_port_has_nothing_to_do_with_that_on_another() {
        let mut machine = CmParavirt::new(cm_paravirt::Config::default(), 1);
        let own = [0, 1].map(|port| gid(port, 0));
        let mut wires = Vec::new();
        for (port, own) in (1..).zip(own) {
            let at = usize::from(port) - 1;
            let mut mad = req(5, true);
            let request: &mut CmReq = mad.view_mut();
            request.primary.local_gid = own;
            request.alternate = cm::CmPath::default();
            let to = cm_paravirt::PeerAddress {
                port: PortNum(port),
                lid: Lid::new(PEER[0]),
                qpn: Qpn::GSI,
                sl: Sl::default(),
                gid: None,
            };
            let who = cm_paravirt::VfIdentity {
                gids: &own_gids(at),
                ca_guid: None,
                pkeys: &[PKey::DEFAULT_FULL],
                check: cm_paravirt::IdentityCheck::Strict,
            };
            let sent = machine.egress(Instant::ZERO, VfId::PF, &mut mad, &to, &who);
            assert_eq!(sent, cm_paravirt::Egress::Forward);
            wires.push(ids(&mad).0);
        }
        assert_ne!(
            wires[0], wires[1],
            "the same id on two ports is two exchanges"
        );
        let states: Vec<State> = machine
            .connections(Instant::ZERO)
            .map(|connection| connection.state)
            .collect();
        assert_eq!(states, [State::ReqSent, State::ReqSent]);
    }

    fn own_gids(port: usize) -> [Gid; 1] {
        [gid(port, 0)]
    }
}
