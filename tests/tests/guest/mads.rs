//! Acceptance: the tools of a guest reach the SA and other hosts through the tunnel, as far as policy lets them.

use std::net::Ipv6Addr;
use std::time::Duration;

use hca_api::GlobalRoute;
use ib_endpoint::{MadAddress, Message, Registration, RetryPolicy};
use ib_wire::mad::{BASE_VERSION, Mad, MadHeader, Method, MgmtClass};
use ib_wire::{Gid, GidIndex, Lid, PortNum};
use serde_json::Value;
use vhca_tests::live::{PATIENCE, Process, Shim, wait_for};
use vhca_tests::mlx4_driver::{Bus, Driver, GuestMemory, VmmBus};

use crate::fabric::{Fabric, Manager};
use crate::guest::Guest;

/// For a query of thousands of records.
const TABLE: Duration = Duration::from_secs(180);

/// A fabric with paths enough for a table of more than 64 segments of 200 bytes.
const WIDE: [&str; 8] = [
    "--topology",
    "fat-tree:4:16",
    "--manager",
    "host-0",
    "--pf",
    "host-1",
    "--vfs",
    "1",
];

/// What saquery prints of a table.
fn records(guest: &mut Guest, of: &str) -> String {
    let told = guest.told_within(TABLE, &format!("saquery {of}"));
    assert!(told.contains("dump:"), "{told}");
    told
}

fn asks_the_sa(manager: Manager) {
    let fabric = Fabric::managed_from("host-0", manager, &WIDE);
    let mut guest = fabric.guest("6.1", "host-1", 1);
    let paths = records(&mut guest, "PR").matches("PathRecord dump").count();
    // Of 64 bytes each.
    assert!(paths * 64 > 64 * 200, "{paths} paths");
    for table in ["NR", "PIR", "LR", "SWIR", "MCMR", "GIR"] {
        records(&mut guest, table);
    }
    let classes = guest.told("saquery CPI");
    assert!(classes.contains("Capability mask"), "{classes}");
}

#[test]
fn a_guest_asks_the_embedded_sa_for_tables_of_many_segments() {
    asks_the_sa(Manager::Lite);
}

#[test]
fn a_guest_asks_opensm_for_tables_of_many_segments() {
    asks_the_sa(Manager::OpenSm);
}

#[test]
fn a_guest_pings_a_host_once_it_may_and_manages_no_subnet() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "single", "--vfs", "1"]);
    let mut guest = fabric.guest("6.1", "host-1", 1);
    let mut server = fabric.lab.on(Shim::Vhca, "host-2", &["ibping", "-S"]);
    let _server = Process::start(fabric.dir(), "ibping", &mut server);
    let lid = &fabric.rows("ports", "host-2")[0]["lid"];
    let ping = format!("ibping -c 3 {lid}");

    assert!(
        guest
            .told(&ping)
            .contains("3 packets transmitted, 0 received")
    );
    fabric
        .lab
        .told(&["set", "vf", "host-1/1", "rights", "vendor"]);
    assert!(
        guest
            .told(&ping)
            .contains("3 packets transmitted, 3 received")
    );

    let perf = guest.run(Duration::from_secs(30), "perfquery").unwrap();
    assert_ne!(perf.status, 0, "{}", perf.text);
    fabric
        .lab
        .told(&["set", "vf", "host-1/1", "rights", "perf_mgt", "vendor"]);
    let perf = guest.told("perfquery");
    assert!(perf.contains("PortXmitPkts"), "{perf}");

    // These are SMPs, which a VF may not send.
    for tool in ["sminfo", "smpquery nodeinfo 1", "ibaddr"] {
        let outcome = guest.run(Duration::from_secs(30), tool).unwrap();
        assert_ne!(outcome.status, 0, "{}", outcome.text);
    }
    let counters = fabric.rows("counters", "host-1");
    let smps =
        |row: &&Value| row["vf"] == 1 && row["class"] == "smp" && row["verdict"] == "to_wire";
    assert_eq!(counters.iter().filter(smps).count(), 0, "{counters:?}");
}

/// MADs of a vendor's class that were delivered to a VF, or to the PF's own software.
fn vendor_mads(fabric: &Fabric, host: &str, to: &Value) -> u64 {
    let rows = fabric.rows("counters", host);
    let mut rows = rows
        .iter()
        .filter(|row| row["vf"] == *to && row["class"] == "other" && row["verdict"] == "delivered");
    rows.next().map_or(0, |row| row["count"].as_u64().unwrap())
}

/// Two switches, and a VF on each host that may use vendors' classes.
fn fabric_of_pings() -> Fabric {
    let options = [
        "--topology",
        "two-switch",
        "--vfs",
        "1",
        "--rights",
        "vendor",
    ];
    Fabric::new(Manager::Lite, &options)
}

#[test]
fn a_ping_by_lid_or_guid_is_for_the_host_of_a_guest() {
    let fabric = fabric_of_pings();
    let mut guests = fabric.guests("6.1", [("H1-1", 1), ("H2-1", 1)]);
    for (from, to, host) in [(0, 1, "H2-1"), (1, 0, "H1-1")] {
        guests[to].start("ibping", "ibping -S");
        let lid = fabric.rows("ports", host)[0]["lid"].to_string();
        let guid = fabric.rows("vfs", host)[0]["guid"].clone();
        // The tool asks the SA for the LID of a GUID, and sends no GRH either.
        let ways = [lid, format!("-G {}", guid.as_str().unwrap())];
        let mut ping = |way: &str| guests[from].told(&format!("ibping -c 3 {way}"));
        let (pf, vf) = (Value::from("pf"), Value::from(1));
        for way in &ways {
            let before = [&pf, &vf].map(|to| vendor_mads(&fabric, host, to));
            let told = ping(way);
            assert!(told.contains("3 packets transmitted, 0 received"), "{told}");
            let after = [&pf, &vf].map(|to| vendor_mads(&fabric, host, to));
            assert_eq!(after, [before[0] + 3, before[1]], "{way}");
        }
        let mut server = fabric.lab.on(Shim::Vhca, host, &["ibping", "-S"]);
        let _server = Process::start(fabric.dir(), host, &mut server);
        // It says nothing of when it listens.
        let listens = wait_for(PATIENCE, || {
            ping(&ways[0]).contains(" 3 received").then_some(())
        });
        assert!(listens.is_some(), "nobody answers {}", ways[0]);
        for way in &ways {
            let told = ping(way);
            assert!(told.contains("3 packets transmitted, 3 received"), "{told}");
        }
    }
}

/// The class of ibping, the vendor's number that it uses, and where that is in a MAD of the second vendor range.
const PING: MgmtClass = MgmtClass::new(0x32);
const OPENIB: [u8; 3] = [0x00, 0x14, 0x05];
const OUI: core::ops::Range<usize> = 37 - 24..40 - 24;

fn ping() -> Message {
    let mut mad = Mad::new(MadHeader {
        base_version: BASE_VERSION,
        mgmt_class: PING,
        class_version: 1,
        method: Method::GET,
        ..MadHeader::default()
    });
    mad.data[OUI].copy_from_slice(&OPENIB);
    Message::single(mad)
}

#[test]
fn a_ping_that_has_a_guests_gid_reaches_the_guest() {
    let fabric = fabric_of_pings();
    let mut guest = fabric.guest("6.1", "H1-1", 1);
    guest.start("ibping", "ibping -S -d");
    let memory = GuestMemory::shared(2048).unwrap();
    let mut bus = VmmBus::attach(&fabric.device("H2-1", 1), memory.clone()).unwrap();
    let mut driver = Driver::probe(&mut bus, memory).unwrap();
    let port = PortNum(1);
    let active = wait_for(PATIENCE, || {
        driver.serve(&mut bus).unwrap();
        driver.port(port).is_active().then_some(())
    });
    assert!(active.is_some(), "the port becomes active");

    let lid = fabric.rows("ports", "H1-1")[0]["lid"].as_u64().unwrap();
    let guids = fabric.rows("guids", "H1-1");
    let gid = guids.iter().find(|row| row["vf"] == 1).unwrap()["gid"].clone();
    let gid: Ipv6Addr = gid.as_str().unwrap().parse().unwrap();
    let to = MadAddress {
        grh: Some(GlobalRoute {
            remote_gid: Gid(gid.octets()),
            sgid_index: GidIndex(0),
            flow_label: 0,
            hop_limit: 0xff,
            traffic_class: 0,
        }),
        ..MadAddress::gsi(Lid::new(u16::try_from(lid).unwrap()))
    };
    let policy = RetryPolicy::new(Duration::from_secs(1), 0);
    let sender = driver.mads(port).agent.register(Registration::sender());
    let sender = sender.unwrap();
    // The server answers without a GRH, which is no answer to a request that has one; but it gets back. Until the
    // server listens, the guest's kernel answers that it knows no such method.
    let mut log = String::new();
    let answered = wait_for(PATIENCE, || {
        let now = bus.now();
        let agent = &mut driver.mads(port).agent;
        agent.send_request(now, sender, to, ping(), policy).unwrap();
        driver.serve(&mut bus).unwrap();
        bus.wait(Duration::from_millis(50));
        driver.serve(&mut bus).unwrap();
        log = guest.told("cat /tmp/ibping");
        let does = log.contains("mad_respond_via") && log.contains("class 0x32 method 129");
        does.then_some(())
    });
    let counters = fabric.lab.told(&["show", "counters"]);
    assert!(answered.is_some(), "{log}\n{counters}");
    assert!(vendor_mads(&fabric, "H2-1", &1.into()) > 0);
    assert!(vendor_mads(&fabric, "H1-1", &1.into()) > 0);
    assert_eq!(vendor_mads(&fabric, "H1-1", &"pf".into()), 0);
    driver.remove(&mut bus).unwrap();
}
