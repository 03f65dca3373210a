//! Acceptance: two guests talk by IPoIB, UD, multicast and the RDMA CM, on one host and on two behind switches.

use std::time::Duration;

use serde_json::Value;

use vhca_tests::live::Capture;

use crate::churn::reload;
use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::Guest;
use crate::truth;

/// For what moves much data.
pub(crate) const TRANSFER: Duration = Duration::from_secs(300);

/// Packets that guests send of their own accord while something is counted.
const FEW: u64 = 20;

/// For an interface to come up, or a packet to arrive.
const SOON: Duration = Duration::from_secs(60);

/// The address of a guest by its place.
pub(crate) fn address(place: usize) -> String {
    format!("10.9.0.{}", place + 1)
}

/// Brings the IPoIB interface of each guest up.
pub(crate) fn bring_up(guests: &mut [Guest]) {
    for (place, guest) in guests.iter_mut().enumerate() {
        let own = address(place);
        guest.told(&format!(
            "ip address add {own}/24 dev ib0 && ip link set ib0 up"
        ));
    }
    for guest in guests {
        let up = |state: &str| state.trim() == "up";
        guest.wait_until(SOON, "cat /sys/class/net/ib0/operstate", up);
    }
}

/// The number before a word in a line such as "1000 packets transmitted, 1000 received, 0% packet loss".
pub(crate) fn number_before(text: &str, word: &str) -> u64 {
    let place = text
        .find(word)
        .unwrap_or_else(|| panic!("no {word:?} in {text}"));
    let number = text[..place].split_whitespace().last().unwrap_or_default();
    number
        .parse()
        .unwrap_or_else(|_| panic!("no number before {word:?} in {text}"))
}

fn pings_lose_nothing(guest: &mut Guest) {
    for size in [1500, 2044] {
        // The headers of IP and ICMP are part of it.
        let payload = size - 28;
        let ping = format!("ping -A -q -c 1000 -W 10 -s {payload} {}", address(1));
        let told = guest.told_within(TRANSFER, &ping);
        assert_eq!(number_before(&told, "received"), 1000, "{told}");
    }
}

/// What adapters dropped: host, VF, reason and packets. That nobody on a port listens to a group is no loss: routers are
/// solicited where there are none. Switches, too, drop what is for groups in which only the sender is.
pub(crate) fn drops(fabric: &Fabric) -> Vec<String> {
    let told = fabric.lab.json(&["show", "drops"]);
    let rows = told["drops"].as_array().expect("a table").iter();
    let of_hosts = rows.filter(|row| {
        row["node"].as_str().unwrap().starts_with('H') && row["reason"] != "not_attached"
    });
    let told = of_hosts.map(|row| {
        let [node, reason] = ["node", "reason"].map(|key| row[key].as_str().unwrap());
        format!("{node}/{} {reason} {}", row["vf"], row["packets"])
    });
    told.collect()
}

/// All that a guest counts (as nstat shows it) and knows of its IPv6 traffic.
fn counted(guest: &mut Guest) -> String {
    guest.told("awk '$2' /proc/net/snmp6; ip -s -s link show dev ib0; ip -6 neigh; ip -6 maddress show dev ib0; cat /proc/net/stat/ndisc_cache")
}

/// The address of a guest's IPoIB interface within the link, once the guest knows that nobody else has it.
fn link_local(guest: &mut Guest) -> String {
    let show = "ip -6 -o address show dev ib0 scope link";
    let told = guest.wait_until(SOON, show, |text| {
        text.contains("fe80") && !text.contains("tentative")
    });
    let own = told
        .split_whitespace()
        .find(|word| word.starts_with("fe80"));
    own.and_then(|word| word.split('/').next())
        .unwrap()
        .to_owned()
}

/// The first packet between two guests by IPv6 arrives, as all others do, and no adapter drops any.
fn neighbours_are_discovered(fabric: &Fabric, first: &mut Guest, second: &mut Guest) {
    let before = drops(fabric);
    let own = link_local(second);
    link_local(first);
    // ping waits for the last answer as long as between two: not 0.1 s, which a busy machine can take.
    let told = first
        .run(SOON, &format!("ping -6 -c 5 {own}%ib0"))
        .unwrap_or_else(|failure| panic!("{failure}"))
        .text;
    let after = drops(fabric);
    if number_before(&told, "received") != 5 || after != before {
        let [first, second] = [first, second].map(counted);
        panic!(
            "{told}\ndropped before {before:#?}, after {after:#?}\n{}\nthe first guest:\n{first}\nthe second:\n{second}",
            String::from_utf8_lossy(&fabric.lab.ask(&["show", "drops"]).stdout),
        );
    }
    let neighbour = first.told(&format!("ip -6 neigh show {own} dev ib0"));
    let hardware = second.told("cat /sys/class/net/ib0/address");
    assert!(
        neighbour.contains(hardware.trim()),
        "{neighbour} for {hardware}"
    );
}

fn tcp_transfers(first: &mut Guest, second: &mut Guest, mebibytes: u32) {
    second.start("iperf", "iperf3 -s -1");
    let client = format!(
        "for i in 1 2 3 4 5; do iperf3 -c {} -n {mebibytes}M -J && break; sleep 1; done",
        address(1)
    );
    let told = first.told_within(TRANSFER, &client);
    let report: Value = serde_json::from_str(&told[told.find('{').unwrap()..]).unwrap();
    let received = report["end"]["sum_received"]["bytes"].as_u64().unwrap();
    let rate = report["end"]["sum_received"]["bits_per_second"]
        .as_f64()
        .unwrap();
    println!(
        "TCP over IPoIB: {received} bytes at {:.0} Mbit/s",
        rate / 1e6
    );
    let sent = report["end"]["sum_sent"]["bytes"].as_u64().unwrap();
    assert!(sent >= u64::from(mebibytes) << 20, "{told}");
}

/// A counter of a guest.
fn counter(guest: &mut Guest, command: &str) -> u64 {
    let told = guest.told(command);
    let number = told.trim().parse();
    number.unwrap_or_else(|_| panic!("no number from {command}: {told}"))
}

/// Whatever a flood loses is counted: by the adapter, what found no receive; by the guest, what found its socket full.
fn losses_are_counted(fabric: &Fabric, first: &mut Guest, second: &mut Guest, receiver: &str) {
    let count = |fabric: &Fabric, [first, second]: [&mut Guest; 2]| {
        let lost = drops(fabric).into_iter();
        let lost = lost.filter_map(|row| row.strip_prefix(receiver)?.parse::<u64>().ok());
        let of_udp = "awk '/^Udp:/ {n = $6} END {print n}' /proc/net/snmp";
        [
            lost.sum(),
            counter(first, "cat /sys/class/net/ib0/statistics/tx_packets"),
            counter(second, "cat /sys/class/net/ib0/statistics/rx_packets"),
            counter(second, of_udp),
        ]
    };
    let before: [u64; 4] = count(fabric, [first, second]);
    second.start("iperf", "iperf3 -s -1");
    let client = format!(
        "for i in 1 2 3 4 5; do iperf3 -u -b 0 -l 1400 -t 5 -c {} -J && break; sleep 1; done",
        address(1)
    );
    let told = first.told_within(TRANSFER, &client);
    let report: Value = serde_json::from_str(&told[told.find('{').unwrap()..]).unwrap();
    let sum = |key: &str| {
        let number = report["end"]["sum"][key].as_u64();
        number.unwrap_or_else(|| panic!("no {key}: {told}"))
    };
    let (packets, missing) = (sum("packets"), sum("lost_packets"));
    let after = count(fabric, [first, second]);
    let [no_receive, sent, received, no_buffer] =
        [0, 1, 2, 3].map(|n| after[n].saturating_sub(before[n]));
    println!(
        "UDP over IPoIB: {missing} of {packets} lost: {no_receive} found no receive, {no_buffer} no room in the socket"
    );
    // Some go to groups in which only the sender is.
    assert!(
        sent.abs_diff(received + no_receive) <= FEW,
        "{before:?} {after:?}"
    );
    assert!(
        missing <= no_receive + no_buffer + FEW,
        "{before:?} {after:?}"
    );
}

/// Starts a server, and its client once it listens; both must end well. Gives what the client printed.
pub(crate) fn pair(first: &mut Guest, second: &mut Guest, server: &str, client: &str) -> String {
    second.start("server", &format!("sh -c '{server}; echo ended $?'"));
    // The servers tell nothing of when they listen.
    first.told("sleep 1");
    let told = first.told_within(TRANSFER, client);
    let log = second.wait_until(SOON, "cat /tmp/server", |log| log.contains("ended"));
    assert!(log.contains("ended 0"), "{server}: {log}\n{client}: {told}");
    told
}

fn datagrams_bounce(first: &mut Guest, second: &mut Guest, iterations: u32) {
    for more in ["", " -g 0"] {
        let server = format!("ibv_ud_pingpong{more} -n {iterations}");
        let told = pair(first, second, &server, &format!("{server} {}", address(1)));
        assert!(told.contains(&format!("{iterations} iters in")), "{told}");
    }
}

fn multicast_arrives(first: &mut Guest, second: &mut Guest) {
    let server = format!("mckey -m 239.1.2.3 -b {}", address(1));
    let client = format!("mckey -s -m 239.1.2.3 -b {}", address(0));
    pair(first, second, &server, &client);
}

/// Services of librdmacm resolve and answer both ways, at these addresses.
pub(crate) fn services_resolve(first: &mut Guest, second: &mut Guest, addresses: [&str; 2]) {
    let client = |place: usize| format!("timeout 60 udaddy -s {}", addresses[place]);
    pair(first, second, "udaddy", &client(1));
    pair(second, first, "udaddy", &client(0));
}

fn guests_talk(manager: Manager, vfs: [(&str, u16); 2]) {
    let fabric = Fabric::new(manager, &["--topology", "two-switch", "--vfs", "2"]);
    let mut guests = fabric.guests("6.1", vfs);
    let capture = Capture::start(&fabric.lab);
    bring_up(&mut guests);
    let [first, second] = &mut guests;
    pings_lose_nothing(first);
    let packets = capture.end();
    let count = packets.are_flawless();
    // What two guests of one host say to each other is on no link.
    assert!(vfs[0].0 == vfs[1].0 || count > 4000, "{count} packets");
    neighbours_are_discovered(&fabric, first, second);
    first.start("ping", &format!("ping -i 0.2 {}", address(1)));
    truth::of_vfs(&fabric, &guests, &vfs);
    truth::of_groups(&fabric, &packets, &vfs);
    truth::of_exchanges(&fabric, &mut guests, vfs);
    let [first, second] = &mut guests;
    first.told("killall ping");
    tcp_transfers(first, second, full(20, 100));
    if vfs[0].0 == vfs[1].0 {
        let receiver = format!("{}/{} no_receive ", vfs[1].0, vfs[1].1);
        losses_are_counted(&fabric, first, second, &receiver);
    }
    datagrams_bounce(first, second, full(1000, 10_000));
    multicast_arrives(first, second);
    services_resolve(first, second, [&address(0), &address(1)]);
}

/// The drivers are loaded anew before each round, so that nobody has heard of anybody.
#[test]
fn the_first_packet_between_two_guests_of_one_host_arrives() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "two-switch", "--vfs", "2"]);
    let mut guests = fabric.guests("6.1", [("H1-1", 1), ("H1-1", 2)]);
    let rounds = full(3, 500);
    for round in 0..rounds {
        std::thread::scope(|scope| {
            for guest in &mut guests {
                scope.spawn(|| reload(guest));
            }
        });
        bring_up(&mut guests);
        let [first, second] = &mut guests;
        // IPoIB knows the path already in every other round.
        if round % 2 == 1 {
            first.told(&format!("ping -q -c 1 -W 10 {}", address(1)));
        }
        neighbours_are_discovered(&fabric, first, second);
    }
    println!("{rounds} first contacts, none lost");
}

#[test]
fn two_guests_of_one_host_talk() {
    guests_talk(Manager::Lite, [("H1-1", 1), ("H1-1", 2)]);
}

#[test]
fn two_guests_behind_two_switches_talk_under_the_embedded_manager() {
    guests_talk(Manager::Lite, [("H1-1", 1), ("H2-1", 1)]);
}

#[test]
fn two_guests_behind_two_switches_talk_under_opensm() {
    guests_talk(Manager::OpenSm, [("H1-1", 1), ("H2-1", 1)]);
}
