//! Tables with long names and large numbers.

use emulated_hca::SwitchConfig;
use emulated_hca::hca::Device;
use pf_context::inspect::{
    CmRow, GroupRow, GuidRow, Inspect, PKeyRow, PortRow, Rows, SidrRow, SubscriptionRow, TidRow,
    VfRow,
};

use super::*;

/// As long as a node's description can be.
const LONG: &str = "compute-rack-0417-chassis-12-node-003.cluster.example.org HCA-1";

/// A GID whose text is as long as one's can be.
const GID: Gid = Gid([
    0xfe, 0x80, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc,
]);

/// The rows of a mux, with values as a large and busy service has them.
#[derive(Debug)]
struct Busy(PortMux);

impl Busy {
    fn rows<R: 'static>(
        rows: impl Iterator<Item = R>,
        change: impl Fn(&mut R),
    ) -> Rows<'static, R> {
        let mut rows: Vec<R> = rows.collect();
        rows.iter_mut().for_each(change);
        Box::new(rows.into_iter())
    }
}

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

impl Inspect for Busy {
    fn vfs(&self, now: Instant) -> Rows<'_, VfRow> {
        Self::rows(self.0.inspect(PortNum(1)).vfs(now), |row| {
            row.vf = vf(254);
            row.guid = Some(vf_guid(254));
            row.reason = "waiting_for_hardware";
            // A trillion MADs.
            for _ in 0..40 {
                let same = row.statistics.clone();
                row.statistics.add(&same);
            }
            for used in [&mut row.usage.tids, &mut row.usage.cm_ids] {
                used.live = used.limit;
            }
        })
    }

    fn ports(&self) -> Rows<'_, PortRow> {
        Self::rows(core::iter::once(self.0.inspect(PortNum(1)).port()), |row| {
            row.sizes.tids = 254 * 4096;
            row.sizes.cm_ids = 254 * 16_384;
            row.sizes.mcast_members = 254 * 1024;
        })
    }

    fn tids(&self, now: Instant) -> Rows<'_, TidRow> {
        Self::rows(self.0.inspect(PortNum(1)).tids(now), |row| {
            row.vf = vf(254);
            row.transaction.class = MgmtClass::SUBN_DIRECTED_ROUTE;
            row.transaction.method = Method::GET_TRACE_TABLE;
            row.transaction.peer.lid = Lid::new(0xbfff);
            row.transaction.idle = WEEK;
        })
    }

    fn cm(&self, now: Instant) -> Rows<'_, CmRow> {
        Self::rows(self.0.inspect(PortNum(1)).cm(now), |row| {
            row.connection.vf = vf(254);
            row.connection.lid = Lid::new(0xbfff);
            row.connection.gid = GID;
            row.connection.remote_id = Some(vf_tunnel::RemoteCommId(CommId::new(1)));
            row.connection.idle = Some(WEEK);
            row.connection.remaining = Some(WEEK);
        })
    }

    fn sidr(&self) -> Rows<'_, SidrRow> {
        Box::new(core::iter::empty())
    }

    fn groups(&self) -> Rows<'_, GroupRow> {
        Self::rows(self.0.inspect(PortNum(1)).groups(), |row| {
            row.mgid = GID;
            row.joined = JoinState::FULL_MEMBER | JoinState::SEND_ONLY_NON_MEMBER;
            row.members = (1..=254).map(|n| (vf(n), row.joined)).collect();
        })
    }

    fn subscriptions(&self) -> Rows<'_, SubscriptionRow> {
        let row = SubscriptionRow {
            port: PortNum(1),
            info: ib_wire::notice::InformInfo {
                gid: GID,
                ..ib_wire::notice::InformInfo::default()
            },
            at_sa: true,
            holders: (1..=254).map(vf).collect(),
            waiting: 254,
            under_way: None,
        };
        Box::new(core::iter::once(row))
    }

    fn guids(&self) -> Rows<'_, GuidRow> {
        Self::rows(self.0.inspect(PortNum(1)).guids(), |row| {
            row.guid = Some(vf_guid(254));
            row.gid = Some(GID);
            row.state = "waiting_for_hardware";
            row.retry_at = Some(Instant::ZERO + WEEK);
        })
    }

    fn pkeys(&self) -> Rows<'_, PKeyRow> {
        Self::rows(self.0.inspect(PortNum(1)).pkeys(), |row| {
            row.pkey = PKey::DEFAULT_FULL;
        })
    }
}

#[test]
fn no_line_of_a_table_is_longer_than_120_characters_however_long_names_and_numbers_are() {
    let mut topology = Topology::fat_tree(8, 128);
    let long = |place: usize| format!("{place:03}{}", &LONG[3..]);
    for (place, hca) in topology.hcas.iter_mut().enumerate() {
        hca.description = long(place);
    }
    for (place, switch) in topology.switches.iter_mut().enumerate() {
        *switch = SwitchConfig {
            description: long(place),
            ..switch.clone()
        };
    }
    let (mut fabric, built) = topology.build::<Device>(1);
    let device = fabric.device_mut(built.hcas[0]).unwrap();
    device.receive(NOW, PortNum(1), Frame::new(&[0; 64]));
    add_queue_pairs(&mut fabric, built.hcas[0], 0xff_ffff);
    let rows = Busy(mux());
    let pf = |place: usize| NamedPf {
        name: LONG,
        node: built.hcas[place],
        rows: &rows,
    };
    let vmm = VmmRow {
        host: LONG.to_owned(),
        vf: 254,
        pid: Some(4_194_304),
        uid: Some(65_534),
        since: Some(WEEK),
        shared: 1 << 40,
        touched: 1 << 40,
        resets: 100_000,
        socket: format!("/run/vhca/vf/{LONG}/254.sock"),
        ..VmmRow::default()
    };
    let scene = Scene {
        pfs: &[pf(0), pf(1)],
        vmms: &vec![vmm],
        fabric: &fabric,
        service: &ServiceFacts::default(),
        now: NOW + WEEK,
    };
    let text = |subject, is_wide| {
        let reply = written(&scene, page(&scene, subject, Filter::default()));
        printed(&reply, Format::Text, is_wide, false)
    };
    for subject in Subject::ALL {
        let shown = text(subject, false);
        let longest = shown.lines().max_by_key(|line| line.chars().count());
        let longest = longest.unwrap();
        assert!(
            longest.chars().count() <= 120,
            "{}: {longest}\n{}",
            longest.chars().count(),
            shown.lines().next().unwrap()
        );
        assert!(shown.lines().count() > 1);
        let wide = text(subject, true);
        assert!(wide.contains(&LONG[3..]), "{wide}");
    }
}
