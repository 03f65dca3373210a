//! Real programs on the ports of a service, by way of the preload library: what they see of umad is
//! what they would see of the kernel's.
//!
//! Each test has a service of its own. The programs come from Debian packages, which `tests/run.sh`
//! installs.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where its surroundings do"
)]

mod bare;
mod linux_data;
mod linux_hca;
mod service;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ib_wire::smp::CapabilityMask;
use service::{Served, succeeded};
use vhca::world::World;
use vhca_service::serve::{Options, TopologySpec};
use vhca_tests::live::{PATIENCE, wait_for};

/// Whether every host port is active.
fn is_up(world: &World) -> bool {
    use emulated_hca::NodeKind;
    use hca_api::PortState;

    let fabric = world.fabric();
    let mut hosts = fabric
        .nodes()
        .filter(|(_, kind)| *kind == NodeKind::ChannelAdapter);
    hosts.all(|(node, _)| {
        let port = fabric.port(node.port(1));
        port.is_some_and(|port| port.state == PortState::Active)
    })
}

/// Five hosts at one switch, with a subnet manager on the management host.
fn five_hosts() -> Served {
    let options = Options {
        topology: TopologySpec::Single,
        ..Options::default()
    };
    Served::new(options, is_up)
}

/// The line of `ibstat` that starts so, without its name.
fn line<'t>(text: &'t str, name: &str) -> &'t str {
    let mut lines = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix(name));
    lines
        .next()
        .unwrap_or_else(|| panic!("no {name} in {text}"))
}

fn is_sm(text: &str) -> bool {
    let mask = line(text, "Capability mask: 0x");
    let mask = CapabilityMask::new(u32::from_str_radix(mask, 16).unwrap());
    mask.contains(CapabilityMask::IS_SM)
}

/// A program of which the source is beside this file, compiled into the folder of a service.
fn compiled(served: &Served, name: &str) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/umad_programs");
    let program = served.dir.path().join(name);
    let compiler = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(sources.join(name).with_extension("c"))
        .output();
    succeeded(&compiler.unwrap());
    program
}

#[test]
fn the_kernels_interface_behaves_as_the_kernels() {
    let options = Options {
        topology: TopologySpec::FatTree { k: 4, hosts: 16 },
        ..Options::default()
    };
    let served = Served::new(options, is_up);
    let program = compiled(&served, "kernel_interface");
    let ibstat = served.told("", "ibstat", &[]);
    let sm_lid = line(&ibstat, "SM lid: ");
    let output = served.on("", &program).args([sm_lid, "999"]).output();
    assert_eq!(succeeded(&output.unwrap()), include_str!("expected.txt"));
}

#[test]
fn a_program_sees_the_adapters_that_it_was_given_as_they_are_now() {
    let served = five_hosts();
    let one = served.told("host-1", "ibstat", &[]);
    assert_eq!(line(&one, "CA '"), "vhca0'");
    assert_eq!(line(&one, "State: "), "Active");
    let guid = line(&one, "Node GUID: ");
    let by_guid = served.told(guid, "ibstat", &[]);
    assert_eq!(by_guid, one);
    let both = served.told("host-2,S1", "ibstat", &[]);
    assert!(
        both.contains("Switch 'vhca1'") && both.contains("Port 0:"),
        "{both}"
    );
    let listed = served.told(
        "host-2,S1",
        "ls",
        &["/sys/class/infiniband", "/dev/infiniband"],
    );
    for name in ["vhca0", "vhca1", "umad0", "umad1", "issm1"] {
        assert!(listed.contains(name), "{listed}");
    }
    let unknown = served.on("host-9", "sminfo").output().unwrap();
    assert!(!unknown.status.success());
}

#[test]
fn the_diagnostics_of_debian_work_from_any_host_and_from_a_switch() {
    let served = five_hosts();
    for node in ["", "host-3", "S1"] {
        let found = served.told(node, "ibnetdiscover", &[]);
        for name in ["\"mgmt\"", "\"host-4\"", "\"S1\""] {
            assert!(found.contains(name), "{found}");
        }
        let sm = served.told(node, "sminfo", &[]);
        assert!(sm.contains("SMINFO_MASTER"), "{sm}");
    }
    let paths = served.told("host-1", "saquery", &["-p"]);
    // Six end ports, each to each: more than a MAD holds.
    assert_eq!(paths.matches("PathRecord dump").count(), 36);
    let lid = line(&served.told("host-2", "ibstat", &[]), "Base lid: ").to_owned();
    let counters = served.told("host-1", "perfquery", &[&lid, "1"]);
    assert!(counters.contains("PortXmitPkts"), "{counters}");
    let switch = served.told("S1", "ibstat", &[]);
    let combined = ["-c", "nodeinfo", line(&switch, "Base lid: "), "0,2"];
    let behind = served.told("host-1", "smpquery", &combined);
    assert!(behind.contains("Channel Adapter"), "{behind}");
}

/// `ibstatus` is a shell script that lists folders from within them.
#[test]
fn programs_change_into_the_folders_of_sysfs_and_read_files_there() {
    let served = five_hosts();
    let ibstat = served.told("host-2", "ibstat", &[]);
    assert_eq!(line(&ibstat, "CA type: "), "MT4099");
    let lid: u16 = line(&ibstat, "Base lid: ").parse().unwrap();
    let status = served.told("host-2,S1", "ibstatus", &[]);
    for port in ["'vhca0' port 1", "'vhca1' port 0"] {
        let port = format!("Infiniband device {port} status:");
        assert!(status.contains(&port), "{status}");
    }
    assert_eq!(status.matches("4: ACTIVE").count(), 2, "{status}");
    for read in ["cat lid", "cat ./lid", "read lid < lid; echo $lid"] {
        let script = format!("cd /sys/class/infiniband/vhca0/ports/1 && {read}");
        for shell in ["sh", "bash"] {
            let found = served.told("host-2", shell, &["-c", &script]);
            assert_eq!(found.trim(), format!("{lid:#x}"), "{shell}: {read}");
        }
    }
}

#[test]
fn ibdiagnet_finds_no_error() {
    let served = five_hosts();
    let folder = served.dir.path().display().to_string();
    let report = served.told("host-1", "ibdiagnet", &["-o", &folder]);
    assert!(report.contains("-I- Done."), "{report}");
    assert!(!report.contains("-E-"), "{report}");
    let (_, stages) = report.split_once("Stages Status Report:").unwrap();
    for stage in [
        "Bad GUIDs/LIDs",
        "Link State Active",
        "General Devices Info",
        "Performance",
    ] {
        let line = stages.lines().find(|line| line.contains(stage)).unwrap();
        let numbers = line
            .split_whitespace()
            .filter(|word| word.parse::<u32>().is_ok());
        assert_eq!(numbers.collect::<Vec<_>>(), ["0", "0"], "{line}");
    }
}

/// What `perfquery` and `ibportstate` show of a switch: samples, and the states that a port takes next.
#[test]
fn samples_and_states_are_told_as_the_diagnostics_expect_them() {
    let served = five_hosts();
    let switch = served.told("S1", "ibstat", &[]);
    let lid = line(&switch, "Base lid: ");
    let samples = served.told("host-1", "perfquery", &["-c", lid, "1"]);
    let value = |text: &str, name: &str| line(text, name).trim_start_matches('.').to_owned();
    assert_eq!(value(&samples, "CounterWidth:"), "4");
    let disabled = served.told("host-1", "ibportstate", &[lid, "4", "disable"]);
    let (_, after) = disabled.split_once("After PortInfo set:").unwrap();
    assert_eq!(value(after, "LinkState:"), "Down");
    assert_eq!(value(after, "PhysLinkState:"), "Disabled");
}

/// A program's own port is as guarded as any other: what has no hops to go passes the M_Key's check, too.
#[test]
fn an_m_key_guards_a_port_against_the_programs_of_its_own_host() {
    let served = five_hosts();
    let own = ["-D", "0", "1", "mkey", "0x1234", "mkeyprot", "2"];
    served.told("host-1", "ibportstate", &own);
    let ask = |key: &[&str]| {
        let arguments = [key, &["-t", "100", "-D", "portinfo", "0"]].concat();
        let mut command = served.on("host-1", "smpquery");
        command.args(arguments).output().unwrap().status.success()
    };
    assert!(!ask(&[]));
    assert!(!ask(&["-y", "0x1235"]));
    assert!(ask(&["-y", "0x1234"]));
}

#[test]
fn is_sm_is_set_as_long_as_a_program_has_the_file_open_however_it_ends() {
    let served = five_hosts();
    let host = "host-1";
    let held = "exec 3</dev/infiniband/issm0; ibstat; echo held; read line";
    let mut holder = served
        .on(host, "sh")
        .args(["-c", held])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let set = wait_for(PATIENCE, || {
        assert!(holder.try_wait().unwrap().is_none(), "the shell holds it");
        is_sm(&served.told(host, "ibstat", &[])).then_some(())
    });
    assert!(set.is_some(), "IsSM is not set");
    holder.kill().unwrap();
    holder.wait().unwrap();
    let cleared = wait_for(PATIENCE, || {
        (!is_sm(&served.told(host, "ibstat", &[]))).then_some(())
    });
    assert!(cleared.is_some(), "IsSM stays");
}

#[test]
fn what_a_killed_program_had_registered_is_free_again() {
    let served = five_hosts();
    let lid = line(&served.told("host-1", "ibstat", &[]), "Base lid: ").to_owned();
    for _ in 0..2 {
        let mut server = served.on("host-1", "ibping").arg("-S").spawn().unwrap();
        let mut ping = served.on("host-2", "ibping");
        ping.args(["-c", "1", "-t", "200", &lid]);
        let pong = wait_for(PATIENCE, || {
            let text = String::from_utf8(ping.output().unwrap().stdout).unwrap();
            text.contains("Pong").then_some(())
        });
        assert!(pong.is_some(), "no answer");
        assert!(server.try_wait().unwrap().is_none(), "the class was free");
        server.kill().unwrap();
        server.wait().unwrap();
    }
}

#[test]
fn clients_that_speak_nonsense_or_stall_disturb_nobody() {
    use rustix::net::{
        AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send,
        socket_with,
    };

    let served = five_hosts();
    let address = SocketAddrUnix::new(served.socket()).unwrap();
    let connected = || {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        connect(&socket, &address).unwrap();
        socket
    };
    let clients: Vec<_> = (0..40_u8).map(|seed| (seed, connected())).collect();
    for (seed, client) in &clients {
        let nonsense = vec![*seed; usize::from(*seed) * 700];
        for _ in 0..*seed {
            // The service may have hung up already.
            let _ = send(client, &nonsense, SendFlags::NOSIGNAL);
        }
    }
    let text = served.told("host-1", "ibnetdiscover", &[]);
    assert!(text.contains("\"host-4\""), "{text}");
}

/// OpenSM by itself would log an error for each of its reads, for ever.
#[test]
fn the_end_of_the_service_ends_the_programs_on_it() {
    let mut served = five_hosts();
    let folder = served.dir.path().to_owned();
    let mut manager = served.on("host-1", "opensm");
    manager.arg("-f").arg(folder.join("opensm.log"));
    manager.env("OSM_CACHE_DIR", &folder).stdin(Stdio::null());
    let manager = manager.stdout(Stdio::null()).stderr(Stdio::piped());
    let manager = manager.spawn().unwrap();
    let asked = Instant::now();
    while !is_sm(&served.told("host-1", "ibstat", &[])) {
        assert!(asked.elapsed() < Duration::from_secs(30), "OpenSM starts");
    }
    served.end();
    let output = manager.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let trouble = String::from_utf8_lossy(&output.stderr);
    assert!(trouble.contains("has ended, and so does"), "{trouble}");
}

#[test]
fn a_program_whose_service_is_gone_is_told_so() {
    let mut served = five_hosts();
    served.end();
    let output = served.on("", "sminfo").output().unwrap();
    assert!(!output.status.success());
    let trouble = String::from_utf8_lossy(&output.stderr);
    assert!(trouble.contains("no vhca service answers at"), "{trouble}");
}
