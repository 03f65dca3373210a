//! The service under test, driven by the wall clock, and what its guests do.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use std::time::Duration;

use ib_endpoint::cm::{CmEvent, CmEventKind, ConnId, Rendezvous, State};
use ib_endpoint::sa_client::Wish;
use ib_endpoint::{EndPortEvent, PortPath, SaEvent, SaRequest};
use ib_wire::cm::CmRep;
use ib_wire::sa::{JoinState, McMemberRecord, PathRecord};
use ib_wire::smp::PortState;
use ib_wire::{Gid, GidIndex, Guid, PKey, PortNum, QKey, Qpn, ServiceId};
use pf_context::CountedClass;
use pf_context::inspect::{Counted, Inspect, VfRow};
use vf_tunnel::VfId;
use vhca::world::{HostPortId, World};
use vhca::{RunEnd, Runner};
use vhca_service::serve::{IbsimNode, Lab, Options, Service};
use vhca_tests::live::PATIENCE;

use super::simulator::Simulator;

/// How often something outside is looked at.
const GLANCE: Duration = Duration::from_millis(5);

/// The group of the tests, in a form that `saquery` prints likewise.
const MGID: &str = "ff12:4200::1";

/// CM response timeouts in the REQ: 4.096 µs × 2^16 = 268 ms.
const RESPONSE_TIMEOUT: u8 = 16;

const SERVICE: ServiceId = ServiceId::new(0x0100_0000_0000_4242);

/// A guest: the name of its host, and the number of its VF.
pub(crate) type Guest<'a> = (&'a str, u16);

/// PF hosts at nodes of a simulator.
pub(crate) struct Hosts {
    runner: Runner<Service>,
    /// What was announced and not asked for yet.
    told: Vec<String>,
}

impl Hosts {
    /// Starts attaching.
    pub(crate) fn start(attach: &[String], vfs: u16, local_guids: bool) -> Self {
        let options = Options {
            attach: attach.iter().map(|spec| spec.parse().unwrap()).collect(),
            vfs,
            local_guids,
            ..Options::default()
        };
        let mut service = Service::new(Lab::build(&options, 1).unwrap());
        let now = service.lab().world().now();
        for node in IbsimNode::all(now, &options) {
            service.add_way_in(node);
        }
        Self {
            runner: Runner::new(service).unwrap(),
            told: Vec::new(),
        }
    }

    fn run(&mut self, what: &str, mut condition: impl FnMut(&mut Service) -> bool) {
        let end = self.runner.run_until(PATIENCE, &mut condition).unwrap();
        if end != RunEnd::Reached {
            panic!("waited in vain for {what}: {:#?}", self.rows());
        }
    }

    fn service(&mut self) -> &mut Service {
        self.runner.driven().unwrap()
    }

    fn world(&mut self) -> &mut World {
        self.service().lab_mut().world_mut()
    }

    fn rows(&mut self) -> Vec<VfRow> {
        rows(self.service())
            .into_iter()
            .map(|(_, row)| row)
            .collect()
    }

    /// Waits for something about the VFs, as `vhca show vfs` has them.
    pub(crate) fn wait(&mut self, what: &str, condition: impl Fn(&[VfRow]) -> bool) {
        self.run(what, |service| {
            let rows: Vec<VfRow> = rows(service).into_iter().map(|(_, row)| row).collect();
            condition(&rows)
        });
    }

    /// Waits until all VFs are up, and their guests know.
    pub(crate) fn wait_up(&mut self, vfs: usize) {
        self.run("the VFs", |service| rows(service).len() == vfs);
        self.start_guests();
        self.run("VFs that are up", |service| {
            let rows = rows(service);
            rows.len() == vfs
                && rows.iter().all(|(host, row)| {
                    let at = guest_port(service, (host, row.vf.get()));
                    let view = service.lab().world().port(at).view();
                    row.up && view.sa_address().is_some()
                })
        });
    }

    /// Starts a guest on each VF that has none. (What the guests of the service itself hear is for the
    /// service alone.)
    fn start_guests(&mut self) {
        for (host, row) in rows(self.service()) {
            let lab = self.service().lab_mut();
            let id = lab.inventory.host(&host).unwrap().id;
            let world = lab.world_mut();
            if !world.host(id).guests().any(|vf| vf == row.vf) {
                world.start_guest(id, row.vf).unwrap();
            }
        }
    }

    /// Waits until a host's port is active.
    pub(crate) fn wait_port(&mut self, host: &str) {
        self.run("an active port", |service| {
            let lab = service.lab();
            let at = lab.inventory.host(host).map(|host| host.id.port(1));
            at.is_some_and(|at| lab.world().port(at).view().state == PortState::ACTIVE)
        });
    }

    /// Lets the service go on for a while.
    pub(crate) fn go_on(&mut self, time: Duration) {
        self.runner.run_until(time, |_| false).unwrap();
    }

    /// Waits for something that only the simulator's programs tell.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        simulator: &mut Simulator,
        mut condition: impl FnMut(&mut Self, &mut Simulator) -> bool,
    ) {
        let begun = std::time::Instant::now();
        while !condition(self, simulator) {
            let log = || simulator.log();
            assert!(
                begun.elapsed() < PATIENCE,
                "waited in vain for {what}: {}",
                log()
            );
        }
    }

    /// Waits until so many things were announced.
    pub(crate) fn wait_told(&mut self, count: usize) {
        let mut told = std::mem::take(&mut self.told);
        self.run("news", |service| {
            told.extend(announced(service));
            told.len() >= count
        });
        self.told = told;
    }

    /// What was announced since the last call.
    pub(crate) fn announcements(&mut self) -> Vec<String> {
        let mut told = std::mem::take(&mut self.told);
        told.extend(announced(self.service()));
        told
    }

    /// The VFs' GUIDs by host, in order.
    pub(crate) fn guids(&mut self) -> Vec<(String, Guid)> {
        let rows = rows(self.service());
        let guids = rows.into_iter();
        guids.map(|(host, row)| (host, row.guid.unwrap())).collect()
    }

    /// Runs a program of infiniband-diags while the service goes on.
    fn ask(&mut self, simulator: &mut Simulator, program: &str, arguments: &[&str]) -> String {
        let mut question = simulator.ask(program, arguments);
        let begun = std::time::Instant::now();
        loop {
            if let Some(answer) = question.answer() {
                return answer;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{program} {arguments:?} does not end"
            );
            self.go_on(GLANCE);
        }
    }

    /// The alias GUIDs that OpenSM has granted to a host's port.
    pub(crate) fn granted(&mut self, simulator: &mut Simulator, host: &str) -> Vec<Guid> {
        let lid = {
            let service = self.service();
            let host = service.lab().inventory.host(host).unwrap().id;
            service.lab().world().port(host.port(1)).view().lid.get()
        };
        let answer = self.ask(simulator, "saquery", &["GIR", &format!("{lid}/0")]);
        let guids = answer.lines().filter_map(|line| line.split_once("0x"));
        let guids = guids.map(|(_, digits)| u64::from_str_radix(digits, 16).unwrap());
        // The first is the port's own.
        guids
            .skip(1)
            .filter(|guid| *guid != 0)
            .map(Guid::new)
            .collect()
    }

    /// Members of the group, as OpenSM has them: ports, not VFs.
    pub(crate) fn members(&mut self, simulator: &mut Simulator) -> usize {
        let arguments = ["--smkey", "1", "MCMR", "--mgid", MGID];
        let answer = self.ask(simulator, "saquery", &arguments);
        let ports = answer.lines().filter(|line| line.contains("PortGid"));
        let ports: Vec<&str> = ports.collect();
        let different: BTreeSet<&str> = ports.iter().copied().collect();
        assert_eq!(different.len(), ports.len(), "{answer}");
        ports.len()
    }

    /// MADs of a host's guests that went to the SA.
    pub(crate) fn sa_requests(&mut self, host: &str) -> u64 {
        let lab = self.service().lab();
        let context = lab.world().context(lab.inventory.host(host).unwrap().id);
        let rows = Inspect::counters(context, lab.world().now());
        let sent = Counted::Mads(CountedClass::SubnAdm, "to_wire");
        rows.filter(|row| row.vf != VfId::PF && row.counted == sent)
            .map(|row| row.value)
            .sum()
    }

    fn at(&mut self, guest: Guest<'_>) -> HostPortId {
        guest_port(self.service(), guest)
    }

    fn event<T>(
        &mut self,
        at: HostPortId,
        what: &str,
        mut pick: impl FnMut(&EndPortEvent) -> Option<T>,
    ) -> T {
        let mut found = None;
        self.run(what, |service| {
            let world = service.lab_mut().world_mut();
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

    fn cm_event(
        &mut self,
        at: HostPortId,
        what: &str,
        is_it: impl Fn(&CmEventKind) -> bool,
    ) -> CmEvent {
        self.event(at, what, |event| match event {
            EndPortEvent::Cm(event) if is_it(&event.kind) => Some(event.clone()),
            _ => None,
        })
    }

    /// Joins a guest to the group.
    pub(crate) fn join(&mut self, host: &str, vf: u16) {
        let at = self.at((host, vf));
        let world = self.world();
        let mut record = McMemberRecord {
            mgid: Gid::from(MGID.parse::<Ipv6Addr>().unwrap()),
            port_gid: world.port(at).view().gid(GidIndex(0)).unwrap(),
            qkey: QKey::new(0x1111),
            pkey: PKey::DEFAULT_FULL,
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        let mask = McMemberRecord::CREATE;
        let now = world.now();
        world
            .port_mut(at)
            .wish(now, Wish::Membership { record, mask });
        self.event(at, "the membership", |event| {
            matches!(event, EndPortEvent::Sa(SaEvent::Granted { .. })).then_some(())
        });
    }

    /// The path between two guests, as OpenSM gives it.
    fn path(&mut self, from: HostPortId, to: HostPortId) -> PortPath {
        let world = self.world();
        let gid = |at: HostPortId| world.port(at).view().gid(GidIndex(0)).unwrap();
        let request = SaRequest::path_by_gids(gid(from), gid(to), None);
        let now = world.now();
        let asked = world.port_mut(from).query(now, request);
        let answer = self.event(from, "the path", |event| match event {
            EndPortEvent::Sa(SaEvent::Answered { query, result }) if *query == asked => {
                Some(result.clone())
            }
            _ => None,
        });
        let record: PathRecord = answer.unwrap().record().unwrap();
        let view = self.world().port(from).view().clone();
        PortPath::new(PortNum(1), &view, &record).unwrap()
    }

    /// Connects two guests and disconnects them again: REQ, REP, RTU, DREQ, DREP.
    pub(crate) fn connect(&mut self, from: Guest<'_>, to: Guest<'_>) {
        let (a, b) = (self.at(from), self.at(to));
        let listening = self.world().port_mut(b).cm().listen(SERVICE, u64::MAX);
        let listening = listening.unwrap();
        let path = self.path(a, b);
        let mut req = path.request(SERVICE, Qpn::from_low_bits(0x48));
        req.set_remote_cm_response_timeout(RESPONSE_TIMEOUT);
        req.set_local_cm_response_timeout(RESPONSE_TIMEOUT);
        req.set_max_cm_retries(15);
        let now = self.world().now();
        let cm = self.world().port_mut(a).cm();
        let active = cm.send_req(now, &path.gsi(), &req, Rendezvous::ClientServer);
        let active = active.unwrap();
        let heard = self.cm_event(b, "REQ", |kind| {
            matches!(kind, CmEventKind::ReqReceived { .. })
        });
        let passive = heard.conn;
        let rep = CmRep {
            local_qpn: Qpn::from_low_bits(0x49),
            ..CmRep::default()
        };
        let now = self.world().now();
        let cm = self.world().port_mut(b).cm();
        cm.send_rep(now, passive, &rep).unwrap();
        let heard = self.cm_event(a, "REP", |kind| matches!(kind, CmEventKind::RepReceived(_)));
        assert_eq!(heard.conn, active);
        let now = self.world().now();
        self.world()
            .port_mut(a)
            .cm()
            .send_rtu(now, active, b"")
            .unwrap();
        self.cm_event(b, "RTU", |kind| matches!(kind, CmEventKind::RtuReceived(_)));
        for (at, conn) in [(a, active), (b, passive)] {
            assert_eq!(self.cm_state(at, conn), Some(State::Established));
        }
        let now = self.world().now();
        self.world()
            .port_mut(a)
            .cm()
            .send_dreq(now, active, b"")
            .unwrap();
        self.cm_event(b, "DREQ", |kind| {
            matches!(kind, CmEventKind::DreqReceived(_))
        });
        let now = self.world().now();
        self.world()
            .port_mut(b)
            .cm()
            .send_drep(now, passive, b"")
            .unwrap();
        self.cm_event(a, "DREP", |kind| {
            matches!(kind, CmEventKind::DrepReceived(_))
        });
        let now = self.world().now();
        self.world()
            .port_mut(b)
            .cm()
            .destroy(now, listening)
            .unwrap();
    }

    fn cm_state(&mut self, at: HostPortId, conn: ConnId) -> Option<State> {
        let info = self.world().port_mut(at).cm().info(conn);
        info.map(|info| info.state)
    }
}

fn announced(service: &mut Service) -> Vec<String> {
    let all = std::iter::from_fn(|| service.poll_announcement());
    all.map(|announcement| announcement.to_string()).collect()
}

/// The VFs of all hosts, with their hosts' names, in order.
fn rows(service: &Service) -> Vec<(String, VfRow)> {
    let lab = service.lab();
    let mut rows: Vec<(String, VfRow)> = lab
        .inventory
        .pf_hosts()
        .flat_map(|host| {
            let rows = Inspect::vfs(lab.world().context(host.id), lab.world().now());
            rows.map(|row| (host.name.clone(), row))
        })
        .collect();
    rows.sort_by_key(|(host, row)| (host.clone(), row.vf));
    rows
}

fn guest_port(service: &Service, (host, vf): Guest<'_>) -> HostPortId {
    let host = service.lab().inventory.host(host).unwrap().id;
    host.vf(VfId::new(vf).unwrap()).port(1)
}
