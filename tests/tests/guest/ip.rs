//! Acceptance: two guests talk by IPoIB, UD, multicast and the RDMA CM, on one host and on two behind switches.

use std::time::Duration;

use serde_json::Value;

use crate::capture::Capture;
use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::Guest;
use crate::truth;

/// For what moves much data.
const TRANSFER: Duration = Duration::from_secs(300);

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

fn neighbours_are_discovered(first: &mut Guest, second: &mut Guest) {
    let show = "ip -6 -o address show dev ib0 scope link";
    // Once duplicate address detection is over.
    let told = second.wait_until(SOON, show, |text| {
        text.contains("fe80") && !text.contains("tentative")
    });
    let own = told
        .split_whitespace()
        .find(|word| word.starts_with("fe80"));
    let own = own.and_then(|word| word.split('/').next()).unwrap();
    // The one that begins discovery is sometimes lost, uncounted by either driver; why is not known.
    let first_contact = format!("for i in 1 2 3 4 5; do ping -6 -q -c 1 {own}%ib0 && break; done");
    first.told(&first_contact);
    // ping waits for the last answer as long as between two: not 0.1 s, which a busy machine can take.
    let told = first.told(&format!("ping -6 -c 5 {own}%ib0"));
    if number_before(&told, "received") != 5 {
        let counted = [first, second].map(|guest| guest.told("ip -s -s link show dev ib0"));
        panic!("{told}\n{}", counted.join("\n"));
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

fn services_resolve(first: &mut Guest, second: &mut Guest) {
    let client = |place| format!("timeout 60 udaddy -s {}", address(place));
    pair(first, second, "udaddy", &client(1));
    pair(second, first, "udaddy", &client(0));
}

fn guests_talk(manager: Manager, vfs: [(&str, u16); 2]) {
    let fabric = Fabric::new(manager, &["--topology", "two-switch", "--vfs", "2"]);
    let mut guests = fabric.guests("6.1", vfs);
    let capture = Capture::start(&fabric);
    bring_up(&mut guests);
    let [first, second] = &mut guests;
    pings_lose_nothing(first);
    let packets = capture.end();
    let count = packets.are_flawless();
    // What two guests of one host say to each other is on no link.
    assert!(vfs[0].0 == vfs[1].0 || count > 4000, "{count} packets");
    neighbours_are_discovered(first, second);
    first.start("ping", &format!("ping -i 0.2 {}", address(1)));
    truth::of_vfs(&fabric, &guests, &vfs);
    truth::of_groups(&fabric, &packets, &vfs);
    truth::of_exchanges(&fabric, &mut guests, vfs);
    let [first, second] = &mut guests;
    first.told("killall ping");
    tcp_transfers(first, second, full(20, 100));
    datagrams_bounce(first, second, full(1000, 10_000));
    multicast_arrives(first, second);
    services_resolve(first, second);
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
