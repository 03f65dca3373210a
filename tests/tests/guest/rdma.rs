//! Acceptance: unmodified RDMA programs move data between two guests by RC and UC, and leave nothing behind.

use std::time::Duration;

use vhca_tests::live::{Capture, PATIENCE, wait_for};

use crate::churn::{held, reload};
use crate::effort::full;
use crate::fabric::{Fabric, Manager};
use crate::guest::Guest;
use crate::ip::{address, bring_up, drops, pair};
use crate::pings;
use crate::saved::reset;

const SERVED: [&str; 4] = ["--topology", "two-switch", "--vfs", "2"];

/// For a program that fails by waiting for ever.
const LONG: Duration = Duration::from_secs(300);

/// Two guests with addresses on their IPoIB interfaces.
fn guests(fabric: &Fabric, kernel: &'static str, vfs: [(&str, u16); 2]) -> [Guest; 2] {
    let mut guests = fabric.guests(kernel, vfs);
    bring_up(&mut guests);
    guests[0].told_within(PATIENCE, &format!("ping -q -c 3 -W 10 {}", address(1)));
    guests
}

fn pingpongs(fabric: &Fabric, kernel: &'static str, vfs: [(&str, u16); 2]) {
    let [mut first, mut second] = guests(fabric, kernel, vfs);
    let before = drops(fabric);
    for (size, count) in [(4096, full(1000, 10_000)), (1 << 20, full(50, 1000))] {
        for events in ["", " -e"] {
            for program in ["rc", "uc", "srq"] {
                // -c: the bytes are looked at.
                let server = format!("ibv_{program}_pingpong -c{events} -s {size} -n {count}");
                let client = format!("timeout 200 {server} {}", address(1));
                let told = pair(&mut first, &mut second, &server, &client);
                assert!(told.contains(&format!("{count} iters in")), "{told}");
                assert!(!told.contains("invalid"), "{told}");
            }
        }
    }
    let server = format!("ibv_ud_pingpong -n {}", full(1000, 10_000));
    pair(
        &mut first,
        &mut second,
        &server,
        &format!("{server} {}", address(1)),
    );
    assert_eq!(lost(&drops(fabric)), lost(&before));
}

#[test]
fn pingpongs_of_each_transport_bounce_between_two_guests_of_one_host() {
    pingpongs(
        &Fabric::new(Manager::Lite, &SERVED),
        "6.1",
        [("H1-1", 1), ("H1-1", 2)],
    );
}

#[test]
fn pingpongs_of_each_transport_bounce_behind_two_switches_under_opensm() {
    pingpongs(
        &Fabric::new(Manager::OpenSm, &SERVED),
        "6.12",
        [("H1-1", 1), ("H2-1", 1)],
    );
}

/// Programs on the RDMA CM, and what they leave at the service.
#[test]
fn programs_of_the_rdma_cm_connect_move_data_and_leave_nothing() {
    let fabric = Fabric::new(Manager::Lite, &SERVED);
    let vfs = [("H1-1", 1), ("H2-1", 1)];
    let [mut first, mut second] = guests(&fabric, "6.1", vfs);
    let before = vfs.map(|(host, vf)| held(&fabric, host, vf));
    let to = |place| address(place);

    let rping = format!("-V -C {} -S 65535", full(100, 1000));
    let client = |place| format!("timeout 200 rping -c -a {} {rping}", to(place));
    pair(
        &mut first,
        &mut second,
        &format!("rping -s {rping}"),
        &client(1),
    );
    pair(
        &mut second,
        &mut first,
        &format!("rping -s {rping}"),
        &client(0),
    );
    pair(
        &mut first,
        &mut second,
        "ucmatose",
        &format!("ucmatose -s {}", to(1)),
    );
    pair(
        &mut first,
        &mut second,
        "rdma_server",
        &format!("rdma_client -s {}", to(1)),
    );
    pair(
        &mut first,
        &mut second,
        "rstream -T v",
        &format!("rstream -T v -s {}", to(1)),
    );
    // These serve for ever.
    second.start("cmtime", "cmtime");
    second.start("rcopy", "rcopy");
    let connections = full(100, 1000);
    let cmtime = format!("timeout 250 cmtime -c {connections} -s {}", to(1));
    first.told_within(LONG, &cmtime);
    second.told("killall cmtime");
    first.told(&format!(
        "dd if=/dev/urandom of=/tmp/sent bs=1M count={}",
        full(20, 100)
    ));
    first.told_within(
        LONG,
        &format!("timeout 200 rcopy /tmp/sent {}:/tmp/copied", to(1)),
    );
    second.told("killall rcopy");
    let sums = [(&mut first, "/tmp/sent"), (&mut second, "/tmp/copied")]
        .map(|(guest, file)| guest.told(&format!("sha256sum <{file}")));
    assert_eq!(sums[0], sums[1]);

    // The guests' interfaces may have joined another group meanwhile.
    let connections = |held: Vec<String>| -> Vec<String> {
        let of_cm = held.into_iter().filter(|row| row.starts_with("cm_"));
        of_cm.collect()
    };
    let before = before.map(connections);
    let gone = wait_for(PATIENCE, || {
        let now = vfs.map(|(host, vf)| connections(held(&fabric, host, vf)));
        (now == before).then_some(())
    });
    assert!(gone.is_some(), "{before:?} before");
    for guest in [&mut first, &mut second] {
        let left = guest
            .told("rdma resource show qp | grep -v -e GSI -e SMI -e ib_ipoib -e '\\[ib_' | wc -l");
        assert_eq!(left.trim(), "0", "{}", guest.told("rdma resource show qp"));
    }
}

/// perftest's way to start a program.
#[derive(Clone, Copy)]
struct Run {
    program: &'static str,
    options: &'static str,
}

const fn run(program: &'static str, options: &'static str) -> Run {
    Run { program, options }
}

/// Programs of perftest in the forms that differ for the device: service, sizes, many queue pairs, inline, by events, by the CM,
/// each path MTU, both ways, a shared queue.
const RUNS: &[Run] = &[
    run("ib_send_bw", "-a -n 100"),
    run("ib_send_bw", "-a -n 100 -c UC"),
    run("ib_write_bw", "-a -n 100"),
    run("ib_write_bw", "-a -n 100 -c UC"),
    run("ib_read_bw", "-a -n 100"),
    run("ib_send_lat", "-n 500"),
    run("ib_send_lat", "-n 500 -c UC"),
    run("ib_write_lat", "-n 500"),
    run("ib_write_lat", "-n 500 -c UC"),
    run("ib_read_lat", "-n 500"),
    run("ib_atomic_bw", "-n 500"),
    run("ib_atomic_bw", "-n 500 -A CMP_AND_SWAP"),
    run("ib_atomic_lat", "-n 500"),
    run("ib_write_bw", "-n 100 -q 64"),
    run("ib_send_bw", "-n 100 -q 64"),
    run("ib_write_bw", "-n 500 -s 32 -I 64"),
    run("ib_send_bw", "-n 500 -s 32 -I 64"),
    run("ib_send_bw", "-n 500 -e"),
    run("ib_read_bw", "-n 500 -e"),
    run("ib_write_bw", "-n 500 -R"),
    run("ib_send_bw", "-n 500 -R"),
    run("ib_read_bw", "-n 500 -R"),
    run("ib_write_bw", "-n 200 -m 256"),
    run("ib_read_bw", "-n 200 -m 512"),
    run("ib_write_bw", "-n 200 -m 1024"),
    run("ib_read_bw", "-n 200 -m 2048"),
    run("ib_write_bw", "-n 200 -m 4096"),
    run("ib_send_bw", "-n 500 -b"),
    run("ib_send_bw", "-n 200 -r 16"),
];

/// Drops without those for queue pairs that have ended, or that are not there yet: nobody waits for such packets.
fn lost(drops: &[String]) -> Vec<String> {
    let ended = |row: &str| row.contains("qp_not_ready") || row.contains("no_qp");
    // A busy machine may be late with a page of a guest's memory, whose VF is held meanwhile: the packets are sent again.
    let is_late = |row: &str| row.contains(" held ");
    let others = drops.iter().filter(|row| !ended(row) && !is_late(row));
    others.cloned().collect()
}

/// A counter of the service, of all adapters together.
fn counted(fabric: &Fabric, name: &str) -> u64 {
    let told = fabric.lab.ask(&["metrics"]);
    let text = String::from_utf8_lossy(&told.stdout);
    let values = text.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?.strip_prefix('{')?;
        rest.rsplit(' ').next()?.parse::<u64>().ok()
    });
    values.sum()
}

#[test]
fn perftest_moves_data_in_all_its_forms_and_no_adapter_drops_any() {
    let fabric = Fabric::new(Manager::Lite, &SERVED);
    let [mut first, mut second] = guests(&fabric, "6.1", [("H1-1", 1), ("H2-1", 1)]);
    let before = drops(&fabric);
    for Run { program, options } in RUNS {
        let server = format!("{program} -F {options}");
        let client = format!("timeout 200 {server} {}", address(1));
        pair(&mut first, &mut second, &server, &client);
    }
    assert_eq!(lost(&drops(&fabric)), lost(&before));
    assert!(counted(&fabric, "vhca_connection_sent_bytes_total") > 1 << 30);
    // Nothing is sent again but what found no receive.
    let again = counted(&fabric, "vhca_connection_retransmissions_total");
    let not_ready = counted(&fabric, "vhca_connection_rnr_naks_total");
    println!("sent again {again} times, {not_ready} of them for want of a receive");
    assert!(
        again <= not_ready,
        "{again} times, {not_ready} of them for want of a receive"
    );
}

/// tshark knows each packet of RC and UC, and checks their invariant CRCs.
#[test]
fn captured_connections_are_read_by_tshark() {
    let fabric = Fabric::new(Manager::Lite, &SERVED);
    let [mut first, mut second] = guests(&fabric, "6.1", [("H1-1", 1), ("H2-1", 1)]);
    let capture = Capture::start(&fabric.lab);
    for program in ["rc", "uc", "srq"] {
        let server = format!("ibv_{program}_pingpong -n 100");
        pair(
            &mut first,
            &mut second,
            &server,
            &format!("{server} {}", address(1)),
        );
    }
    for program in [
        "ib_read_bw -F -n 20",
        "ib_atomic_bw -F -n 20",
        "ib_write_bw -F -n 20",
    ] {
        pair(
            &mut first,
            &mut second,
            program,
            &format!("{program} {}", address(1)),
        );
    }
    let count = capture.end().are_flawless();
    assert!(count > 2000, "{count} packets");
}

/// A link that loses one packet in a hundred each way.
#[test]
fn programs_end_right_across_a_lossy_link() {
    let fabric = Fabric::new(Manager::Lite, &SERVED);
    let [mut first, mut second] = guests(&fabric, "6.1", [("H1-1", 1), ("H2-1", 1)]);
    let set = fabric.lab.ask(&["set", "link", "H1-1/1", "loss=1%"]);
    assert!(set.status.success(), "{set:?}");
    let rping = "-V -C 50 -S 65535";
    let client = format!("timeout 250 rping -c -a {} {rping}", address(1));
    pair(
        &mut first,
        &mut second,
        &format!("rping -s {rping}"),
        &client,
    );
    let program = "ib_write_bw -F -n 500";
    let client = format!("timeout 250 {program} {}", address(1));
    pair(&mut first, &mut second, program, &client);
    second.start("rcopy", "rcopy");
    first.told("dd if=/dev/urandom of=/tmp/sent bs=1M count=10");
    first.told_within(
        LONG,
        &format!("timeout 250 rcopy /tmp/sent {}:/tmp/copied", address(1)),
    );
    let sums = [(&mut first, "/tmp/sent"), (&mut second, "/tmp/copied")]
        .map(|(guest, file)| guest.told(&format!("sha256sum <{file}")));
    assert_eq!(sums[0], sums[1]);
}

/// The peer of a guest that is gone gives up in its own time, and others go on.
#[test]
fn a_guest_that_is_killed_amid_a_read_ends_its_peers_read_and_nothing_else() {
    let fabric = Fabric::new(Manager::Lite, &SERVED);
    let [mut first, second] = guests(&fabric, "6.1", [("H1-1", 1), ("H2-1", 1)]);
    let mut others = fabric.guests("6.1", [("H1-2", 1), ("H2-2", 1)]);
    for (place, guest) in (2..).zip(&mut others) {
        let own = address(place);
        guest.told(&format!(
            "ip address add {own}/24 dev ib0 && ip link set ib0 up"
        ));
    }
    let mut second = second;
    second.start("server", "ib_read_bw -F -s 8388608 -D 60");
    first.told("sleep 1");
    first.start(
        "client",
        &format!("timeout 100 ib_read_bw -F -s 8388608 -D 60 {}", address(1)),
    );
    first.told("sleep 5");
    second.process.signal("KILL");
    second.process.wait(PATIENCE);
    let failed = |log: &str| log.contains("Failed status 12") || log.contains("Failed status 5");
    first.wait_until(LONG, "cat /tmp/client", failed);
    let [third, fourth] = &mut others;
    let program = "ibv_rc_pingpong -c -n 1000";
    third.told_within(PATIENCE, &format!("ping -q -c 3 -W 10 {}", address(3)));
    pair(third, fourth, program, &format!("{program} {}", address(3)));
}

/// Drivers go, and functions are reset, while programs write to a peer at full speed: the guest has its port again, and
/// two others go on.
#[test]
fn drivers_are_unloaded_and_functions_reset_amid_writes() {
    let fabric = Fabric::new(Manager::Lite, &SERVED);
    let [mut first, mut second] = guests(&fabric, "6.1", [("H1-1", 1), ("H2-1", 1)]);
    let mut others = fabric.guests("6.1", [("H1-1", 2), ("H2-1", 2)]);
    for (place, guest) in (2..).zip(&mut others) {
        let own = address(place);
        guest.told(&format!(
            "ip address add {own}/24 dev ib0 && ip link set ib0 up"
        ));
    }
    pings::start(&mut others[0], &address(3));
    for round in 0..full(2, 50) {
        second.start("server", "timeout 20 ib_write_bw -F -D 60");
        first.told("sleep 1");
        let client = format!("timeout 20 ib_write_bw -F -D 60 {}", address(1));
        first.start("client", &client);
        first.told("sleep 3");
        if round % 2 == 0 {
            reset(&mut first, || {});
        } else {
            first.told("killall -9 ib_write_bw");
            reload(&mut first);
        }
        for guest in [&mut first, &mut second] {
            // One that polls a queue whose device was reset does so for ever.
            guest.told("killall -9 ib_write_bw || true");
        }
        let own = address(0);
        first.told(&format!(
            "ip address replace {own}/24 dev ib0 && ip link set ib0 up"
        ));
        first.told_within(
            PATIENCE,
            &format!("until ping -q -c 1 -W 1 {}; do :; done", address(1)),
        );
        let program = "ibv_rc_pingpong -c -n 100";
        pair(
            &mut first,
            &mut second,
            program,
            &format!("{program} {}", address(1)),
        );
    }
    let pings = pings::end(&mut others[0]);
    assert!(pings.sent > 20 && pings.lost() == 0, "{pings:?}");
    let left = fabric.rows("qps", "H1-1");
    let connected = left
        .iter()
        .filter(|row| row["service"].to_string().to_lowercase().contains("rc"))
        .count();
    assert_eq!(connected, 0, "{left:?}");
}
