//! Real programs on libibverbs, each on a VF of an emulated fabric, by way of the preload library.
//!
//! Each test has a service of its own. The programs come from Debian packages, which `tests/run.sh` installs.
#![expect(clippy::unwrap_used, reason = "a test fails where its surroundings do")]

mod bare;
mod chaos;
mod interfaces;
mod killed;
mod mpi;
mod pair;
mod pyverbs;
mod refusals;
mod regions;
mod sysfs;
mod workflow;

use std::fs;
use std::process::Command;

use pair::Pair;
use vhca_tests::live::{Capture, Lab, OpenSm, PATIENCE, Process, Shim, wait_for};

/// Two switches, four hosts and a subnet manager.
fn lab() -> Lab {
    let lab = Lab::serve(&["--verbs"]);
    wait_until_up(&lab);
    lab
}

fn wait_until_up(lab: &Lab) {
    lab.wait_until(&["show", "vfs"], |shown| {
        let rows = shown["vfs"].as_array();
        rows.is_some_and(|rows| !rows.is_empty() && rows.iter().all(|row| row["up"] == true))
    });
}

#[test]
fn programs_list_the_vf_as_an_infiniband_device() {
    let lab = lab();
    let devices = lab.tool(Shim::Vhca, "H1-1/2", &["ibv_devices"]);
    assert!(devices.contains("vhca1"), "{devices}");
    assert!(devices.contains("001405c0e2fd674f"), "{devices}");
    let info = lab.tool(Shim::Vhca, "H1-1/2", &["ibv_devinfo", "-v"]);
    for line in [
        "transport:\t\t\tInfiniBand (0)",
        "PORT_ACTIVE (4)",
        "link_layer:\t\tInfiniBand",
        "atomic_cap:\t\t\tATOMIC_HCA (1)",
        "GID[  0]:\t\tfe80:",
    ] {
        assert!(info.contains(line), "{line:?} is not in {info}");
    }
    let shown = lab.tool(Shim::Vhca, "H1-1/2", &["rdma", "dev"]);
    assert!(shown.contains("vhca1: node_type ca"), "{shown}");
    let stat = lab.tool(Shim::Vhca, "H1-1/2", &["ibstat"]);
    assert!(
        stat.contains("CA 'vhca0'"),
        "umad goes on as before: {stat}"
    );
}

#[test]
fn a_program_starts_when_its_vf_is_active() {
    let lab = Lab::serve(&["--verbs"]);
    let info = lab.tool(Shim::Vhca, "H2-1/1", &["ibv_devinfo"]);
    assert!(info.contains("PORT_ACTIVE (4)"), "{info}");
    let stat = lab.tool(Shim::Vhca, "H2-1/1", &["ibstat"]);
    assert!(stat.contains("State: Active"), "{stat}");
}

#[test]
fn a_program_starts_at_once_where_no_subnet_manager_runs() {
    let lab = Lab::serve(&["--verbs", "--sm", "none"]);
    let info = lab.tool(Shim::Vhca, "H2-1/1", &["ibv_devinfo"]);
    assert!(info.contains("PORT_DOWN (1)"), "{info}");
}

#[test]
fn pingpongs_of_every_transport_check_their_data() {
    let lab = lab();
    for program in [
        "ibv_rc_pingpong",
        "ibv_uc_pingpong",
        "ibv_ud_pingpong",
        "ibv_srq_pingpong",
    ] {
        Pair::of(&lab, &[program, "-c", "-n", "100"]).succeeds();
        Pair::of(&lab, &[program, "-c", "-e"]).succeeds();
        Pair::of(&lab, &[program, "-c", "-e", "-g", "0"]).succeeds();
    }
    Pair::of(&lab, &["ibv_rc_pingpong", "-c", "-e", "-n", "10000"]).succeeds();
    Pair::of(
        &lab,
        &["ibv_rc_pingpong", "-c", "-e", "-s", "1048576", "-n", "50"],
    )
    .succeeds();
    Pair::of(
        &lab,
        &["setpriv", "--no-new-privs", "ibv_rc_pingpong", "-c", "-e"],
    )
    .succeeds();
    // Containers may forbid it.
    let namespaces = Command::new("unshare").args(["-U", "true"]).status();
    if namespaces.is_ok_and(|status| status.success()) {
        Pair::of(&lab, &["unshare", "-U", "ibv_rc_pingpong", "-c", "-e"]).succeeds();
    } else {
        eprintln!("not run: programs in a user namespace, which are forbidden here");
    }
    // The last acknowledgement of a connection may find its queue pair gone.
    let drops = lab.json(&["show", "drops"]);
    let rows = drops["drops"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["reason"] == "no_qp"), "{drops}");
}

#[test]
fn perftest_runs_over_every_transport_it_has() {
    let lab = lab();
    for arguments in [
        &["ib_send_bw", "-e", "-n", "200"][..],
        &["ib_send_bw", "-c", "UC", "-e", "-n", "200"],
        &["ib_send_bw", "-c", "UD", "-e", "-n", "200"],
        &["ib_write_bw", "-n", "200"],
        &["ib_write_bw", "-c", "UC", "-n", "200"],
        &["ib_read_bw", "-n", "200"],
        &["ib_atomic_bw", "-n", "200"],
        &["ib_send_lat", "-e", "-n", "200"],
        &["ib_send_lat", "-c", "UD", "-e", "-n", "200"],
        &["ib_write_lat", "-n", "50"],
        &["ib_read_lat", "-n", "100"],
        &["ib_atomic_lat", "-n", "100"],
        &["ib_send_bw", "-e", "-q", "16", "-n", "100"],
        &["ib_write_bw", "-a", "-n", "20"],
    ] {
        Pair::of(&lab, arguments).succeeds();
    }
}

#[test]
fn the_addresses_of_vfs_are_of_the_network_that_is_wanted() {
    let lab = Lab::serve(&["--verbs", "--verbs-network", "127.5.0.0/16"]);
    wait_until_up(&lab);
    let server = ["rping", "-s", "-C", "5"];
    let client = ["rping", "-c", "-a", "127.5.1.1", "-C", "5"];
    Pair::by_rdma_cm(&lab, &server, &client).succeeds();
    let refused = lab.ask(&["serve", "--verbs", "--verbs-network", "127.5.0.0/24"]);
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("such as 127.77.0.0/16"), "{said}");
}

/// Server and client of programs on librdmacm, which find each other by the addresses of VFs.
#[test]
fn programs_on_the_rdma_cm_connect_by_the_addresses_of_vfs() {
    let lab = lab();
    for (server, client) in [
        (
            &["rping", "-s", "-C", "20", "-v"][..],
            &["rping", "-c", "-a", "127.77.1.1", "-C", "20"][..],
        ),
        (
            &["ucmatose", "-c", "8"],
            &["ucmatose", "-c", "8", "-s", "127.77.1.1"],
        ),
        (&["udaddy"], &["udaddy", "-s", "127.77.1.1"]),
        (&["rdma_server"], &["rdma_client", "-s", "127.77.1.1"]),
        (
            &["rstream", "-S", "64", "-I", "5"],
            &["rstream", "-S", "64", "-I", "5", "-s", "127.77.1.1"],
        ),
        (
            &["fi_pingpong", "-p", "verbs", "-e", "msg", "-c"],
            &[
                "fi_pingpong",
                "-p",
                "verbs",
                "-e",
                "msg",
                "-c",
                "127.77.1.1",
            ],
        ),
        (
            &["fi_pingpong", "-p", "verbs", "-e", "dgram", "-c"],
            &[
                "fi_pingpong",
                "-p",
                "verbs",
                "-e",
                "dgram",
                "-c",
                "127.77.1.1",
            ],
        ),
        (
            &["riostream", "-S", "64", "-I", "5"],
            &["riostream", "-S", "64", "-I", "5", "-s", "127.77.1.1"],
        ),
    ] {
        Pair::by_rdma_cm(&lab, server, client).succeeds();
    }
    // The client's success alone counts: libfabric 1.17 may crash at the server's end, because it posts the buffer of the last
    // message to an endpoint that the client's end has closed meanwhile.
    let datagrams = ["fi_pingpong", "-p", "verbs;ofi_rxm", "-e", "rdm", "-c"];
    let client = [&datagrams[..], &["127.77.1.1"]].concat();
    Pair::by_rdma_cm(&lab, &datagrams, &client);
    let nobody = ["rping", "-c", "-a", "127.77.9.9", "-C", "1"];
    let output = lab.on(Shim::Vhca, "H2-1/1", &nobody).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "nobody has this address");
    assert!(text.contains("RDMA_CM_EVENT_ADDR_ERROR"), "{text}");
}

/// Receivers and senders of a multicast group, which the SA makes for the first of them.
#[test]
fn mckey_sends_to_groups_that_the_rdma_cm_joins() {
    let lab = lab();
    for group in [
        &["-m", "239.1.1.1"][..],
        &["-m", "ff0e::1:2", "-c", "2"],
        &["-m", "239.1.1.2", "-p", "0x2"],
        &["-M", "ff12:4001:ffff::7", "-p", "0x111"],
    ] {
        let program = [&["stdbuf", "-oL", "mckey"], group, &["-C", "20"]].concat();
        // An id that is bound to an IPv4 address resolves no other family, as in the kernel.
        let (receives, sends) = if group[0] == "-m" && group[1].contains(':') {
            (&[][..], &["-s"][..])
        } else {
            (&["-b", "127.77.1.1"][..], &["-b", "127.77.3.1", "-s"][..])
        };
        let receiver = [&program[..], receives].concat();
        let sender = [&program[..], sends].concat();
        let mut pair = Pair::by_group(&lab, &receiver, &sender);
        pair.succeeds();
        for (process, mark) in [(&pair.server, "receiving"), (&pair.client, "initiating")] {
            let output = process.output();
            for line in [mark, "data transfers complete", "test complete"] {
                assert!(
                    output.contains(line),
                    "{group:?}: {line:?} is not in {output}"
                );
            }
        }
    }
}

#[test]
fn opensm_manages_the_vfs_of_programs() {
    let lab = Lab::serve(&["--verbs", "--sm", "none"]);
    let _manager = OpenSm::start(&lab, Shim::Vhca, "mgmt", "");
    wait_until_up(&lab);
    Pair::of(&lab, &["ibv_rc_pingpong", "-c", "-e"]).succeeds();
    Pair::of(&lab, &["ibv_ud_pingpong", "-c", "-e"]).succeeds();
}

#[test]
fn a_program_that_is_killed_frees_its_vf_and_ends_its_peer() {
    let mut lab = lab();
    let mut pair = Pair::of(&lab, &["ib_write_bw", "-D", "60"]);
    pair.wait_until_connected();
    pair.client.signal("KILL");
    pair.client.wait(PATIENCE);
    pair.server.wait(PATIENCE);
    let fds = format!("/proc/{}/fd", lab.service().id());
    let open = || fs::read_dir(&fds).unwrap().count();
    let rested = wait_for(PATIENCE, || {
        let info = lab
            .on(Shim::Vhca, "H2-1/1", &["ibv_devinfo"])
            .output()
            .unwrap();
        info.status.success().then(open)
    });
    let rested = rested.expect("the VF is free again");
    for _ in 0..30 {
        lab.tool(Shim::Vhca, "H2-1/1", &["ibv_devinfo"]);
    }
    let left = wait_for(PATIENCE, || (open() <= rested).then_some(()));
    assert!(
        left.is_some(),
        "{} descriptors, and {rested} before",
        open()
    );
}

#[test]
fn a_vf_is_one_processs_at_a_time() {
    let lab = lab();
    let program = ["stdbuf", "-oL", "ibv_asyncwatch"];
    let command = &mut lab.on(Shim::Vhca, "H1-1/1", &program);
    let mut holder = Process::start(lab.dir(), "holder", command);
    holder.wait_for_line("async event FD", PATIENCE);
    let refused = wait_for(PATIENCE, || {
        let output = lab
            .on(Shim::Vhca, "H1-1/1", &["ibv_devinfo"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        text.contains("No IB devices found").then_some(())
    });
    assert!(refused.is_some(), "the VF is taken");
    let next = lab.tool(Shim::Vhca, "H1-1", &["ibv_devices"]);
    assert!(
        next.contains("001405c0e2fd674f"),
        "the next free one: {next}"
    );
    let shown = lab.json(&["show", "programs", "--vf", "H1-1/1"]);
    let row = &shown["programs"][0];
    assert_eq!(row["address"], "127.77.1.1", "{shown}");
    assert_eq!(row["pid"], holder.id(), "{shown}");
    // The SM numbers VFs in the order in which their requests reach it.
    let gid = row["gid"].as_str();
    assert!(
        gid.is_some_and(|gid| gid.starts_with("fe80::14:500:0:")),
        "{shown}"
    );
    let why = lab.told(&["why", "H1-1/1"]);
    let process = format!("process {} has had the VF", holder.id());
    assert!(why.contains(&process), "{why}");
    holder.signal("TERM");
    holder.wait(PATIENCE);
    let free = wait_for(PATIENCE, || {
        let output = lab
            .on(Shim::Vhca, "H1-1/1", &["ibv_devinfo"])
            .output()
            .unwrap();
        output.status.success().then_some(())
    });
    assert!(free.is_some(), "the VF is free again");
    lab.wait_until(&["show", "addresses", "--vf", "H1-1/1"], |shown| {
        shown["programs"][0]["pid"].is_null()
    });
}

/// tshark knows each packet of programs, and checks their invariant CRCs.
#[test]
fn captured_traffic_of_programs_is_read_by_tshark() {
    let lab = lab();
    let capture = Capture::start(&lab);
    Pair::of(&lab, &["ib_write_bw", "-n", "100"]).succeeds();
    Pair::of(&lab, &["ib_atomic_bw", "-n", "50"]).succeeds();
    Pair::of(&lab, &["ibv_ud_pingpong", "-e", "-n", "50"]).succeeds();
    let count = capture.end().are_flawless();
    // 100 writes of 64 KiB by 4 KiB, on three links.
    assert!(count > 4800, "{count} packets");
}

/// A connection sends again what is lost on a link.
#[test]
fn connections_of_programs_end_right_across_a_lossy_link() {
    let lab = lab();
    lab.told(&["set", "link", "H1-1/1", "loss=1%"]);
    Pair::of(&lab, &["ibv_rc_pingpong", "-c", "-e", "-n", "300"]).succeeds();
    let (sent, copied) = (lab.dir().join("sent"), lab.dir().join("copied"));
    let bytes: Vec<u8> = (0..2_000_000_u32).map(|at| (at % 251) as u8).collect();
    fs::write(&sent, &bytes).unwrap();
    let command = &mut lab.on(Shim::Vhca, "H1-1/1", &["rcopy"]);
    let _server = Process::start(lab.dir(), "rcopy", command);
    let to = format!("127.77.1.1:{}", copied.display());
    // Only the client's success tells that the server listens.
    let done = wait_for(PATIENCE, || {
        let client = ["rcopy", sent.to_str().unwrap(), &to];
        let output = lab.on(Shim::Vhca, "H2-1/1", &client).output().unwrap();
        output.status.success().then_some(())
    });
    assert!(done.is_some(), "nothing was copied");
    assert!(fs::read(&copied).unwrap() == bytes, "other bytes");
}

#[test]
fn a_link_that_goes_down_is_told_to_programs() {
    let lab = lab();
    let program = ["stdbuf", "-oL", "ibv_asyncwatch"];
    let command = &mut lab.on(Shim::Vhca, "H1-1/1", &program);
    let mut watch = Process::start(lab.dir(), "watch", command);
    watch.wait_for_line("async event FD", PATIENCE);
    lab.told(&["set", "link", "H1-1/1", "down"]);
    watch.wait_for_line("IBV_EVENT_PORT_ERR", PATIENCE);
    lab.told(&["set", "link", "H1-1/1", "up"]);
    watch.wait_for_line("IBV_EVENT_PORT_ACTIVE", PATIENCE);
}
