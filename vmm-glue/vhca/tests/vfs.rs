//! Guests on the VFs of two hosts, in virtual time.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::net::{IpAddr, Ipv6Addr};

use emulated_hca::{Adapters, EndNode, LinkConfig, LinkState, Topology};
use hca_api::{
    AddressVector, FunctionId, FunctionManager, GlobalRoute, PortChange, QpKind, SpecialQp,
    UdAddress, UdDestination,
};
use ib_endpoint::cm::{CmEvent, CmEventKind};
use ib_endpoint::sa_client::{StandingId, Wish};
use ib_endpoint::{DatagramQpSpec, EndPortEvent, MadAddress, SaAnswer, SaEvent, SaRequest};
use ib_vtime::{Duration, Instant};
use ib_wire::cm::{CmSidrRep, CmSidrReq, SidrStatus};
use ib_wire::packet::Packet;
use ib_wire::sa::{JoinState, McMemberRecord, PathRecord};
use ib_wire::smp::PortState;
use ib_wire::{Gid, GidIndex, Guid, PKey, PKeyIndex, PortNum, QKey, Qpn, ServiceId, Sl};
use pf_context::context::{PfConfig, PfEvent};
use subnet_lite::SubnetConfig;
use vf_tunnel::VfId;
use vhca::world::{HostId, HostPortId, Outcome, World, vf_node_guid, vf_spec};

const QKEY: QKey = QKey::new(0x1111);

const MGID: Gid = Gid([0xff, 0x12, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// The service of `udaddy -s`: rdma_cm's UDP port space, port 7174.
const UDADDY: ServiceId = ServiceId::new(0x0111_1c06);

const LIMIT: Duration = Duration::from_secs(20);

fn vf(n: u16) -> VfId {
    VfId::new(n).unwrap()
}

#[test]
fn a_vf_has_a_node_guid_of_openib_that_is_always_the_same() {
    let adapter = Guid::new(0x0002_c903_0000_1000);
    for (number, expected) in [(1, 0x0014_05e9_cb63_074f), (100, 0x0014_05c1_8ea0_7dc2)] {
        let guid = vf_node_guid(adapter, vf(number));
        assert_eq!(guid, Guid::new(expected), "VF {number}");
    }
}

/// A subnet of a management host and two hosts that share their adapters.
struct Subnet {
    world: World,
    manager: HostId,
    hosts: [HostId; 2],
    vfs: u16,
    news: Vec<(HostId, PfEvent)>,
    wishes: Vec<(HostPortId, StandingId)>,
}

impl Subnet {
    /// With so many VFs on each host. The manager runs on a host of its own, or on the first of the
    /// two.
    fn new(vfs: u16, own_manager: bool) -> Self {
        let mut plan = Topology::two_switches(2);
        plan.link = LinkConfig {
            latency: Duration::from_nanos(100),
            timed: true,
            ..LinkConfig::default()
        };
        let (fabric, built) = plan.build(1);
        let mut world = World::new(fabric, 1);
        let hosts = [1, 2].map(|at| {
            let config = PfConfig::new(at as u64);
            world.add_pf_host(built.hcas[at], &config).unwrap()
        });
        let manager = if own_manager {
            world.add_host(built.hcas[0]).unwrap()
        } else {
            hosts[0]
        };
        let at = manager.port(1);
        world.start_manager(at, SubnetConfig::default()).unwrap();
        for (h, host) in (1..).zip(hosts) {
            for n in 1..=vfs {
                let guid = Guid::new(0x2000 + h * 0x400 + u64::from(n));
                world.add_vf(host, vf(n), vf_spec(guid)).unwrap();
            }
        }
        let mut this = Self {
            world,
            manager,
            hosts,
            vfs,
            news: Vec::new(),
            wishes: Vec::new(),
        };
        this.bring_up();
        this
    }

    /// Waits until every guest's port is active.
    fn bring_up(&mut self) {
        let all: Vec<HostPortId> = self.ports().collect();
        let outcome = self.world.run_until(LIMIT, |world| {
            let mut views = all.iter().map(|port| world.port(*port).view());
            views.all(|view| view.state == PortState::ACTIVE && view.sa_address().is_some())
        });
        for host in self.hosts {
            while let Some((_, event)) = self.world.poll_vf_news(host) {
                self.news.push((host, event));
            }
        }
        assert_eq!(outcome, Outcome::Reached, "{:#?}", self.news);
    }

    /// The ports of the guests.
    fn ports(&self) -> impl Iterator<Item = HostPortId> + use<> {
        let vfs = self.vfs;
        let of = move |host: HostId| (1..=vfs).map(move |n| host.vf(vf(n)).port(1));
        self.hosts.into_iter().flat_map(of)
    }

    fn wait(&mut self, condition: impl FnMut(&mut World) -> bool) {
        assert_eq!(self.world.run_until(LIMIT, condition), Outcome::Reached);
    }

    fn wait_event<T>(
        &mut self,
        at: HostPortId,
        mut pick: impl FnMut(&EndPortEvent) -> Option<T>,
    ) -> T {
        let mut found = None;
        self.wait(|world| {
            while let Some(event) = world.poll_event(at) {
                found = pick(&event);
                if found.is_some() {
                    return true;
                }
            }
            false
        });
        found.unwrap()
    }

    fn wait_cm(&mut self, at: HostPortId, is_it: impl Fn(&CmEventKind) -> bool) -> CmEvent {
        self.wait_event(at, |event| match event {
            EndPortEvent::Cm(event) if is_it(&event.kind) => Some(event.clone()),
            _ => None,
        })
    }

    fn query(&mut self, at: HostPortId, request: SaRequest) -> SaAnswer {
        let now = self.world.now();
        let asked = self.world.port_mut(at).query(now, request);
        self.wait_event(at, |event| match event {
            EndPortEvent::Sa(SaEvent::Answered { query, result }) if *query == asked => {
                Some(result.clone())
            }
            _ => None,
        })
        .unwrap()
    }

    fn gid(&self, at: HostPortId) -> Gid {
        self.world.port(at).view().gid(GidIndex(0)).unwrap()
    }

    /// Requests that the SA has received.
    fn sa_requests(&self) -> u64 {
        let manager = self.world.manager(self.manager).unwrap();
        manager.sa().stats().requests
    }

    /// Members of the tests' group, as the SA has them.
    fn members(&self) -> usize {
        let sa = self.world.manager(self.manager).unwrap().sa();
        let mut groups = sa.groups();
        let group = groups.find(|group| group.record.mgid == MGID);
        group.map_or(0, |group| group.members.len())
    }

    fn join(&mut self, guest: HostPortId) {
        let mut record = McMemberRecord {
            mgid: MGID,
            port_gid: self.gid(guest),
            qkey: QKEY,
            pkey: PKey::DEFAULT_FULL,
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        let mask = McMemberRecord::CREATE;
        let now = self.world.now();
        let wish = Wish::Membership { record, mask };
        let wish = self.world.port_mut(guest).wish(now, wish);
        self.wishes.push((guest, wish));
        self.wait_event(guest, |event| {
            matches!(event, EndPortEvent::Sa(SaEvent::Granted { .. })).then_some(())
        });
    }

    /// The number of a VF's proxy QP1.
    fn proxy_qpn(&mut self, host: HostId, vf: VfId) -> Qpn {
        let node = self.world.host(host).node();
        let pf = self.world.fabric_mut().hca(node, FunctionId::PF).unwrap();
        let numbers = pf.proxy_qp(vf.into(), SpecialQp::Gsi, PortNum(1)).unwrap();
        numbers.unwrap().real
    }

    fn path(&mut self, from: HostPortId, to: HostPortId) -> PathRecord {
        let request = SaRequest::path_by_gids(self.gid(from), self.gid(to), None);
        self.query(from, request).record().unwrap()
    }

    fn resolve(&mut self, from: HostPortId, to: HostPortId) {
        let path = self.path(from, to);
        let service = ServiceId::new(7);
        let request = CmSidrReq {
            pkey: PKey::DEFAULT_FULL,
            service_id: service,
            ..CmSidrReq::default()
        };
        let listening = self.world.port_mut(to).cm().listen(service, u64::MAX);
        let listening = listening.unwrap();
        let now = self.world.now();
        let cm = self.world.port_mut(from).cm();
        let timeout = Duration::from_millis(100);
        let asked = cm
            .send_sidr_req(now, &by(&path), &request, timeout, 3)
            .unwrap();
        let heard = self.wait_cm(to, |kind| {
            matches!(kind, CmEventKind::SidrReqReceived { .. })
        });
        let now = self.world.now();
        let cm = self.world.port_mut(to).cm();
        cm.send_sidr_rep(now, heard.conn, &CmSidrRep::default())
            .unwrap();
        let heard = self.wait_cm(from, |kind| {
            matches!(kind, CmEventKind::SidrRepReceived { .. })
        });
        assert_eq!(heard.conn, asked);
        let now = self.world.now();
        let cm = self.world.port_mut(to).cm();
        cm.destroy(now, listening).unwrap();
    }
}

/// What rdma_cm writes first into the private data of a SIDR_REQ: IP version 4 or 6 in byte 1, the destination
/// in bytes 20 to 35 (IBA annex A11.4).
fn rdma_cm_request(destination: IpAddr) -> CmSidrReq {
    let mut request = CmSidrReq {
        pkey: PKey::DEFAULT_FULL,
        service_id: UDADDY,
        ..CmSidrReq::default()
    };
    let header = &mut request.private_data;
    match destination {
        IpAddr::V4(address) => {
            header[1] = 4 << 4;
            header[32..36].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => {
            header[1] = 6 << 4;
            header[20..36].copy_from_slice(&address.octets());
        }
    }
    request
}

impl Subnet {
    /// Has the native host, which sends no GRH within its subnet, ask for the UD service at an address behind
    /// a VF's LID. Gives the guest that was asked, or `None` and the status of who answered instead.
    fn ask_without_grh(
        &mut self,
        behind: HostPortId,
        destination: IpAddr,
    ) -> (Option<HostPortId>, SidrStatus) {
        let native = self.manager.port(1);
        let path = self.path(native, behind);
        let to = MadAddress {
            sl: path.sl(),
            ..MadAddress::gsi(path.dlid)
        };
        let now = self.world.now();
        let timeout = Duration::from_millis(100);
        let request = rdma_cm_request(destination);
        let cm = self.world.port_mut(native).cm();
        let asked = cm.send_sidr_req(now, &to, &request, timeout, 3).unwrap();
        let guests: Vec<HostPortId> = self.ports().collect();
        let mut found = (None, None);
        self.wait(|world| {
            for &guest in &guests {
                while let Some(event) = world.poll_event(guest) {
                    if let EndPortEvent::Cm(event) = event
                        && let CmEventKind::SidrReqReceived { from, .. } = &event.kind
                    {
                        assert_eq!(from.grh, None);
                        found.0 = Some(guest);
                        let now = world.now();
                        let rep = CmSidrRep::default();
                        let cm = world.port_mut(guest).cm();
                        cm.send_sidr_rep(now, event.conn, &rep).unwrap();
                    }
                }
            }
            while let Some(event) = world.poll_event(native) {
                if let EndPortEvent::Cm(event) = event
                    && let CmEventKind::SidrRepReceived { rep, .. } = &event.kind
                {
                    assert_eq!(event.conn, asked);
                    found.1 = Some(rep.status);
                }
            }
            found.1.is_some()
        });
        (found.0, found.1.unwrap())
    }
}

#[test]
fn c102_a_native_host_of_the_subnet_reaches_the_ud_services_of_vfs() {
    let mut subnet = Subnet::new(2, true);
    let host = subnet.hosts[0];
    let guests = [1, 2].map(|n| host.vf(vf(n)).port(1));
    for guest in guests {
        let cm = subnet.world.port_mut(guest).cm();
        cm.listen(UDADDY, u64::MAX).unwrap();
    }
    let addresses: [IpAddr; 2] = ["192.0.2.7", "192.0.2.8"].map(|text| text.parse().unwrap());
    let first = guests[0];
    let nobody = (None, SidrStatus::UNSUPPORTED_SERVICE_ID);
    // The PF's own software answers for what no VF has.
    assert_eq!(subnet.ask_without_grh(first, addresses[0]), nobody);
    for (n, address) in (1..).zip(addresses) {
        let entry = address.to_string().parse().unwrap();
        let context = subnet.world.context_mut(host);
        context.set_sidr(vf(n), &[entry]).unwrap();
    }
    for (guest, address) in guests.into_iter().zip(addresses) {
        let reached = (Some(guest), SidrStatus::OK);
        assert_eq!(subnet.ask_without_grh(first, address), reached);
        // The link-local address that its IPoIB interface gives itself.
        let identifier = subnet.gid(guest).interface_id().get() | 0x02 << 56;
        let local = Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(identifier));
        assert_eq!(subnet.ask_without_grh(first, local.into()), reached);
    }
    let context = subnet.world.context_mut(host);
    let taken = context.set_sidr(vf(2), &["192.0.2.7".parse().unwrap()]);
    assert_eq!(
        taken.map_err(|error| error.to_string()),
        Err("192.0.2.7 is already given to vf:1".to_owned())
    );
    context.set_sidr(vf(2), &[]).unwrap();
    assert_eq!(subnet.ask_without_grh(first, addresses[1]), nobody);
}

/// QP1 at the end of a path, addressed by GID: one LID is that of many VFs.
fn by(path: &PathRecord) -> MadAddress {
    MadAddress {
        sl: path.sl(),
        grh: Some(GlobalRoute {
            remote_gid: path.dgid,
            sgid_index: GidIndex(0),
            flow_label: path.flow_label(),
            hop_limit: path.hop_limit(),
            traffic_class: path.traffic_class,
        }),
        ..MadAddress::gsi(path.dlid)
    }
}

#[test]
fn guests_of_one_host_and_of_two_find_paths_and_each_other() {
    let mut subnet = Subnet::new(2, true);
    let [a, b] = subnet.hosts;
    let a1 = a.vf(vf(1)).port(1);
    for to in [a.vf(vf(2)).port(1), b.vf(vf(1)).port(1)] {
        let path = subnet.path(a1, to);
        let lid = |at: HostPortId| subnet.world.port(at).view().lid;
        assert_eq!((path.slid, path.dlid), (lid(a1), lid(to)));
        subnet.resolve(a1, to);
        subnet.resolve(to, a1);
    }
}

#[test]
fn a_subnet_manager_on_the_qp0_of_a_pf_host_serves_its_own_guests_and_others() {
    let mut subnet = Subnet::new(1, false);
    let [a, b] = subnet.hosts.map(|host| host.vf(vf(1)).port(1));
    subnet.resolve(a, b);
    subnet.resolve(b, a);
}

#[test]
fn each_vf_gets_its_guid_and_tells_why_its_port_waits_until_then() {
    let mut subnet = Subnet::new(3, true);
    let host = subnet.hosts[0];
    let took = subnet.world.now() - Instant::ZERO;
    assert!(
        took < Duration::from_secs(1),
        "no guest had to wait for {took:?}"
    );
    let news = std::mem::take(&mut subnet.news);
    for n in 1..=3 {
        let chain: Vec<&str> = news
            .iter()
            .filter_map(|(of, event)| match event {
                PfEvent::VfPort { vf: at, reason, .. } if *of == host && *at == vf(n) => {
                    Some(reason.as_str())
                }
                _ => None,
            })
            .collect();
        assert_eq!(chain.first(), Some(&"physical_down"));
        assert!(chain.contains(&"waiting_for_sa"), "{chain:?}");
        assert_eq!(chain.last(), Some(&"up"));
    }
    let mut gids: Vec<Gid> = subnet.ports().map(|port| subnet.gid(port)).collect();
    gids.sort_unstable();
    gids.dedup();
    assert_eq!(gids.len(), 6, "each has a GID of its own");
}

#[test]
fn a_group_of_many_guests_is_one_membership_of_each_host_at_the_sa() {
    let mut subnet = Subnet::new(4, true);
    let before = subnet.sa_requests();
    let guests: Vec<HostPortId> = subnet.ports().collect();
    for guest in &guests {
        subnet.join(*guest);
    }
    assert_eq!(subnet.sa_requests() - before, 2);
    assert_eq!(subnet.members(), 2);
    // All but one of a host leave: its port stays a member.
    let leave = |subnet: &mut Subnet, guest: HostPortId, wish| {
        let now = subnet.world.now();
        assert!(subnet.world.port_mut(guest).withdraw(now, wish));
        subnet.wait_event(guest, |event| {
            matches!(event, EndPortEvent::Sa(SaEvent::Withdrawn { .. })).then_some(())
        });
    };
    let wishes = std::mem::take(&mut subnet.wishes);
    for (guest, wish) in &wishes[..3] {
        leave(&mut subnet, *guest, *wish);
    }
    assert_eq!((subnet.sa_requests() - before, subnet.members()), (2, 2));
    leave(&mut subnet, wishes[3].0, wishes[3].1);
    // The guest was answered at once; the SA hears of it then.
    subnet.world.run_for(Duration::from_millis(1));
    assert_eq!((subnet.sa_requests() - before, subnet.members()), (3, 1));
}

#[test]
fn a_guest_is_asked_to_register_again_once_the_sa_has_heard_of_its_guid() {
    let mut subnet = Subnet::new(2, true);
    let (host, manager) = (subnet.hosts[0], subnet.manager);
    let guest = host.vf(vf(1)).port(1);
    // What it heard when the subnet came up.
    while subnet.world.poll_event(guest).is_some() {}
    // The SA cannot be reached: the PF gives up after ten tries in a second.
    let cable = subnet.world.host(manager).node().port(1);
    let node = subnet.world.host(host).node();
    let fabric = subnet.world.fabric_mut();
    fabric.set_link(fabric.link_at(cable).unwrap(), LinkState::Down);
    let device = fabric.device_mut(node).unwrap();
    let port = device.node_mut().port_mut(PortNum(1)).unwrap();
    port.note(PortChange::CLIENT_REREGISTER);
    let asked = subnet.world.now();
    subnet.wait_event(guest, |event| match event {
        EndPortEvent::Port(change) => change.contains(PortChange::CLIENT_REREGISTER).then_some(()),
        _ => None,
    });
    let waited = subnet.world.now() - asked;
    assert!((900..1100).contains(&waited.as_millis()), "{waited:?}");
}

#[test]
fn a_reset_takes_a_guests_memberships_away_and_leaves_its_siblings() {
    let mut subnet = Subnet::new(2, true);
    let host = subnet.hosts[0];
    let [first, second] = [1, 2].map(|n| host.vf(vf(n)).port(1));
    subnet.join(first);
    subnet.join(second);
    let held = |subnet: &Subnet| subnet.world.context(host).ports()[0].mux().sizes();
    assert_eq!(held(&subnet).mcast_members, 2);
    subnet.world.reset_vf(host, vf(1)).unwrap();
    assert_eq!(held(&subnet).mcast_members, 1);
    subnet.wait_event(first, |event| (*event == EndPortEvent::Dead).then_some(()));
    assert_eq!(subnet.members(), 1);
    subnet.world.start_guest(host, vf(1)).unwrap();
    subnet.bring_up();
    subnet.resolve(first, second);
    subnet.join(first);
    assert_eq!(held(&subnet).mcast_members, 2);
}

#[test]
fn c077_a_datagram_to_a_siblings_or_a_strangers_proxy_qp_is_not_delivered() {
    let mut subnet = Subnet::new(2, true);
    let [a, b] = subnet.hosts;
    let attacker = a.vf(vf(1));
    let spec = DatagramQpSpec {
        kind: QpKind::Ud,
        port: PortNum(1),
        pkey_index: PKeyIndex(0),
        qkey: QKEY,
        receives: 1,
        sends: 16,
        max_message: 2048,
        block_multicast_loopback: false,
    };
    let socket = subnet.world.open_socket(attacker, spec).unwrap();
    for (host, victim) in [(a, vf(2)), (b, vf(1))] {
        let at = host.vf(victim).port(1);
        let node = subnet.world.host(host).node();
        let before = subnet.world.port_mut(at).gsi().counters().received;
        let drops = subnet.world.fabric().device(node).unwrap().drops().total();
        let dlid = subnet.world.port(at).view().lid;
        let qpn = subnet.proxy_qpn(host, victim);
        let vector = AddressVector {
            port: PortNum(1),
            dlid,
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        };
        let to = UdDestination {
            address: UdAddress::Vector(vector),
            qpn,
            qkey: QKEY,
            pkey_index: None,
        };
        subnet.world.send(socket, &to, &[0x5a; 312]).unwrap();
        subnet.world.run_for(Duration::from_millis(1));
        let after = subnet.world.port_mut(at).gsi().counters().received;
        assert_eq!(after, before, "nothing reached the guest");
        let dropped = subnet.world.fabric().device(node).unwrap().drops().total() - drops;
        assert_eq!(dropped, 1);
    }
}

#[test]
fn a_capture_shows_both_directions_of_a_tunnel() {
    let mut subnet = Subnet::new(1, true);
    let [a, b] = subnet.hosts.map(|host| host.vf(vf(1)).port(1));
    subnet.world.capture();
    subnet.path(a, b);
    let qpn = subnet.proxy_qpn(a.host, vf(1));
    let frames = std::iter::from_fn(|| subnet.world.poll_frame());
    let tunnelled: Vec<bool> = frames
        .filter_map(|frame| {
            let packet = Packet::parse(&frame.bytes).unwrap();
            let transport = packet.transport()?;
            let source = transport.extended.deth?.src_qp;
            let is_its = source == qpn || transport.bth.dest_qp == qpn;
            (is_its && transport.payload.len() == 312).then_some(source == qpn)
        })
        .collect();
    assert_eq!(tunnelled, [true, false], "the question and the answer");
}

/// A port's GUIDCap is eight bits wide: entry 0 is the port's own, and entries 1 to 254 its VFs'.
#[test]
fn c230_each_of_254_vfs_of_a_port_gets_an_alias_guid_of_its_own() {
    let subnet = Subnet::new(254, true);
    let mut gids: Vec<Gid> = subnet.ports().map(|port| subnet.gid(port)).collect();
    gids.sort_unstable();
    gids.dedup();
    assert_eq!(gids.len(), 2 * 254);
}

#[test]
fn c231_a_pf_that_shuts_down_leaves_nothing_at_the_sa() {
    let mut subnet = Subnet::new(2, true);
    let guests: Vec<HostPortId> = subnet.ports().collect();
    for guest in &guests {
        subnet.join(*guest);
    }
    assert_eq!(subnet.members(), 2);
    let host = subnet.hosts[0];
    subnet.world.shut_down(host).unwrap();
    subnet.wait(|world| world.context(host).is_quiet());
    assert_eq!(subnet.members(), 1, "that of the other host");
    // The SM takes them out of the hardware in its own time.
    subnet.wait(|world| {
        let node = world.host(host).node();
        let port = world.fabric().port(node.port(1)).unwrap();
        (1..=2).all(|n| port.guid_at(GidIndex(n)).is_none_or(Guid::is_none))
    });
    // The ids of what is over rest for a while.
    subnet.world.run_for(Duration::from_secs(60));
    let due = subnet.world.context(host).poll_timeout();
    assert_eq!(due, None, "no timer is left");
}
