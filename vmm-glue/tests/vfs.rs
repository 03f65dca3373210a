//! Guests on the VFs of two hosts, in virtual time.
#![expect(clippy::unwrap_used, reason = "a test ends where it fails")]

use emulated_hca::{LinkConfig, Topology};
use hca_api::GlobalRoute;
use ib_endpoint::cm::{CmEvent, CmEventKind};
use ib_endpoint::{EndPortEvent, MadAddress, SaAnswer, SaEvent, SaRequest};
use ib_vtime::Duration;
use ib_wire::cm::{CmSidrRep, CmSidrReq};
use ib_wire::sa::PathRecord;
use ib_wire::smp::PortState;
use ib_wire::{Gid, GidIndex, Guid, PKey, ServiceId};
use pf_context::context::PfConfig;
use subnet_lite::SubnetConfig;
use vf_tunnel::VfId;
use vhca::world::{HostId, HostPortId, Outcome, World, vf_spec};

const LIMIT: Duration = Duration::from_secs(20);

fn vf(n: u16) -> VfId {
    VfId::new(n).unwrap()
}

/// A subnet of a management host and two hosts that share their adapters.
struct Subnet {
    world: World,
    hosts: [HostId; 2],
    vfs: u16,
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
                let guid = Guid::new(0x2000 + h * 0x100 + u64::from(n));
                world.add_vf(host, vf(n), vf_spec(guid)).unwrap();
            }
        }
        let mut this = Self { world, hosts, vfs };
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
        let mut news = Vec::new();
        for host in self.hosts {
            news.extend(std::iter::from_fn(|| self.world.poll_vf_news(host)));
        }
        assert_eq!(outcome, Outcome::Reached, "{news:#?}");
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
