//! Faults of a fabric under the embedded subnet manager.

use crate::bench::{Bench, Case, Cure, FABRIC};
use crate::report::Report;

/// Two hosts at each of two switches.
const SERVE: &[&str] = &["--vfs", "3", "--guests"];

/// A fault by a command.
type Broken = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

/// A command that gives the port of one host the LID of another host's port.
pub(crate) const ONE_LID: &str = r#"vhca run --node 'node1 HCA-1' -- ibportstate -D 0 1 lid \
    $(vhca show ports --host 'node1 HCA-2' --json | sed -n 's/.*"lid":\([0-9]*\).*/\1/p')"#;

/// Name, command, VF, code, and what `next:` says.
const BROKEN: &[Broken] = &[
    (
        "VF disabled by the administrator",
        "vhca set vf 'node1 HCA-1/1' state disable",
        "node1 HCA-1/1",
        "admin_down",
        "vhca set vf 'node1 HCA-1/1' state auto",
    ),
    (
        "cable of the host plugged out",
        "vhca set link 'node1 HCA-1/1' down",
        "node1 HCA-1/1",
        "link_down",
        "vhca set link 'node1 HCA-1/1' up",
    ),
    (
        "cables between a host and its switch plugged out",
        "vhca set link 'node1 HCA-2' 'MF0;sw-1:MSX6036/U1' down",
        "node1 HCA-2/3",
        "link_down",
        "vhca set link 'node1 HCA-2/1' up",
    ),
    (
        "link with one lane left",
        "vhca set link 'node1 HCA-1/1' width=1x",
        "node1 HCA-1/1",
        "link_narrow",
        "vhca clear link 'node1 HCA-1/1'",
    ),
    (
        "link at the lowest speed",
        "vhca set link 'MF0;sw-2:MSX6036/U1' 'node2 HCA-1' speed=sdr",
        "node2 HCA-1/2",
        "link_slow",
        "vhca clear link 'node2 HCA-1/1'",
    ),
    (
        "link with one lane at the lowest speed",
        "vhca set link 'node2 HCA-2/1' width=1x speed=sdr",
        "node2 HCA-2/3",
        "link_narrow",
        "vhca clear link 'node2 HCA-2/1'",
    ),
    (
        "port disabled by ibportstate at the host",
        "vhca run --node 'node1 HCA-1' -- ibportstate -D 0 1 disable",
        "node1 HCA-1/2",
        "port_disabled",
        "vhca run --node 'node1 HCA-1' -- ibportstate -C vhca0 -P 1 -D 0 1 enable",
    ),
    (
        "port disabled by ibportstate at the switch",
        "vhca run --node 'MF0;sw-1:MSX6036/U1' -- ibportstate -D 0 1 disable",
        "node1 HCA-1/2",
        "port_disabled",
        "vhca run --node 'MF0;sw-1:MSX6036/U1' -- ibportstate -D 0 1 enable",
    ),
    (
        "SA's cable plugged out",
        "vhca set link 'mgmt HCA-1/1' down",
        "node1 HCA-1/1",
        "sa_unreachable",
        "vhca set link 'mgmt HCA-1/1' up",
    ),
    (
        "SA's port disabled by ibportstate",
        "vhca run --node 'mgmt HCA-1' -- ibportstate -D 0 1 disable",
        "node1 HCA-1/1",
        "sa_unreachable",
        "vhca run --node 'mgmt HCA-1' -- ibportstate -C vhca0 -P 1 -D 0 1 enable",
    ),
    (
        "all links between the switches down",
        "vhca set link 'MF0;sw-1:MSX6036/U1' 'MF0;sw-2:MSX6036/U1' down",
        "node2 HCA-1/1",
        "sa_unreachable",
        "vhca set link ",
    ),
    (
        "foreign M_Key at the host's port",
        "vhca run --node 'node1 HCA-1' -- ibportstate -D 0 1 mkey 0x1234 mkeyprot 2",
        "node1 HCA-1/1",
        "foreign_m_key",
        "ibportstate -C vhca0 -P 1 -y 0x1234",
    ),
    (
        "foreign M_Key at the SM's port",
        "vhca run --node 'mgmt HCA-1' -- ibportstate -D 0 1 mkey 0x77 mkeyprot 1",
        "node2 HCA-2/1",
        "foreign_m_key",
        "ibportstate -C vhca0 -P 1 -y 0x77",
    ),
    (
        "foreign M_Key at a switch",
        "vhca run --node 'MF0;sw-1:MSX6036/U1' -- ibportstate -D 0 0 mkey 0x99 mkeyprot 3",
        "node1 HCA-1/1",
        "foreign_m_key",
        "ibportstate -y 0x99",
    ),
    (
        "no GUID wanted",
        "vhca set vf 'node1 HCA-1/2' port_guid none",
        "node1 HCA-1/2",
        "no_guid_requested",
        "vhca set vf 'node1 HCA-1/2' port_guid sm",
    ),
    (
        "impossible GUID wanted: a sibling's",
        "vhca set vf 'node1 HCA-2/1' port_guid 0x1122334455667788 && vhca set vf 'node1 HCA-2/2' port_guid none \
         && ! vhca set vf 'node1 HCA-2/2' port_guid 0x1122334455667788",
        "node1 HCA-2/2",
        "guid_refused",
        "vhca set vf 'node1 HCA-2/2' port_guid sm",
    ),
    (
        "GUID wanted that another host has, by a VF without one",
        "vhca set vf 'node2 HCA-1/2' port_guid none && vhca set vf 'node2 HCA-1/2' port_guid 0x1122334455667788",
        "node2 HCA-1/2",
        "guid_declined",
        "vhca set vf 'node2 HCA-1/2' port_guid sm",
    ),
    (
        "GUID wanted that another host has, by a VF with one",
        // The VF of the case before has it until the SA has answered.
        "vhca set vf 'node2 HCA-1/2' port_guid none; for i in $(seq 200); do vhca set vf 'node2 HCA-1/3' port_guid 0x1122334455667788 && exit; sleep 0.1; done; exit 1",
        "node2 HCA-1/3",
        "guid_not_granted",
        "vhca set vf 'node2 HCA-1/3' port_guid sm",
    ),
    (
        "GUID expected in hardware, which no manager writes",
        "vhca set vf 'node2 HCA-2/2' port_guid none && sleep 1 && vhca set vf 'node2 HCA-2/2' port_guid hardware",
        "node2 HCA-2/2",
        "waiting_for_hardware",
        "vhca set vf 'node2 HCA-2/2' port_guid sm",
    ),
    (
        "P_Key that the port has not",
        "vhca set vf 'node1 HCA-1/1' pkeys 0xffff 0x8001",
        "node1 HCA-1/1",
        "pkey_missing",
        "vhca set vf 'node1 HCA-1/1' pkeys index:0",
    ),
    (
        "empty place of the port's P_Key table",
        "vhca set vf 'node1 HCA-1/1' pkeys index:5",
        "node1 HCA-1/1",
        "pkey_missing",
        "vhca set vf 'node1 HCA-1/1' pkeys index:0",
    ),
    (
        "VF with an empty P_Key table",
        "vhca set vf 'node1 HCA-1/1' pkeys -",
        "node1 HCA-1/1",
        "no_pkey",
        "vhca set vf 'node1 HCA-1/1' pkeys index:0",
    ),
    (
        "all packets lost on the host's link by order",
        "vhca set link 'node1 HCA-1/1' loss=100%",
        "node1 HCA-1/1",
        "link_faulty",
        "vhca clear link 'node1 HCA-1/1'",
    ),
    (
        "half of the packets lost on the host's link by order",
        "vhca set link 'node1 HCA-2/1' loss=50%",
        "node1 HCA-2/1",
        "link_faulty",
        "vhca clear link 'node1 HCA-2/1'",
    ),
    (
        "all packets lost between the switches by order",
        "vhca set link 'MF0;sw-1:MSX6036/U1' 'MF0;sw-2:MSX6036/U1' loss=100%",
        "node2 HCA-1/1",
        "link_faulty",
        "vhca clear link 'MF0;sw-",
    ),
    (
        "packets late at the manager by order",
        "vhca set link 'mgmt HCA-1/1' delay=2s",
        "node2 HCA-1/1",
        "link_faulty",
        "vhca clear link 'mgmt HCA-1/1'",
    ),
    (
        "all packets damaged on the host's link by order",
        "vhca set link 'node1 HCA-1/1' corrupt=100%",
        "node1 HCA-1/1",
        "link_faulty",
        "vhca clear link 'node1 HCA-1/1'",
    ),
    (
        "symbol errors of a link",
        "vhca set link 'node1 HCA-1/1' symbol_errors=5000",
        "node1 HCA-1/1",
        "link_errors",
        "vhca clear link 'node1 HCA-1/1'",
    ),
    (
        "LID of a host's port set by hand to that of another",
        ONE_LID,
        "node1 HCA-1/1",
        "duplicate_lid",
        "vhca sm sweep",
    ),
    (
        "SM's LID changed by hand at a host's port",
        "vhca run --node 'node1 HCA-1' -- ibportstate -D 0 1 smlid 99",
        "node1 HCA-1/1",
        "sa_not_answering",
        "ibportstate -C vhca0 -P 1 -D 0 1 smlid",
    ),
];

pub(crate) fn run(report: &Report) {
    let mut bench = Bench::serve(report, &[FABRIC, SERVE].concat());
    for vf in ["node1 HCA-1/1", "node2 HCA-2/3"] {
        bench.wait_until_ok(vf);
    }
    assert_eq!(bench.run("vhca why all"), "no fault on 12 VFs\n");
    for &(fault, command, vf, code, next) in BROKEN {
        bench.run(command);
        bench.case(Case {
            fault,
            vf,
            code,
            next,
            cure: Cure::Command,
        });
    }
    too_many_mads(&mut bench);
    nothing_of_that_name(&mut bench);
    partition_without_the_manager(report);
    no_cable(report);
    no_lid(report);
}

/// A VF that sends more MADs than it may.
fn too_many_mads(bench: &mut Bench<'_>) {
    bench.run("vhca set vf 'node1 HCA-1/1' limits rate=1 burst=1");
    let ask = "for i in 1 2 3 4 5 6 7 8; do vhca guest 'node1 HCA-1/1' query fe80::$i & done";
    bench.launch(&format!("sh -c \"{ask}; wait\""));
    bench.case(Case {
        fault: "more MADs than the VF may send",
        vf: "node1 HCA-1/1",
        code: "rate_limited",
        next: "vhca set vf 'node1 HCA-1/1' limits rate=0",
        cure: Cure::Command,
    });
}

/// What a user names that there is not.
fn nothing_of_that_name(bench: &mut Bench<'_>) {
    for (fault, vf, code, next) in [
        (
            "VF that there is not",
            "node1 HCA-1/99",
            "no_such_vf",
            "--vfs",
        ),
        (
            "port that there is not",
            "node1 HCA-1/1 --port 7",
            "no_such_port",
            "--port",
        ),
    ] {
        bench.case(Case {
            fault,
            vf,
            code,
            next,
            cure: Cure::Untried("there is nothing to mend"),
        });
    }
}

/// A VF that is in a partition of its host's alone.
fn partition_without_the_manager(report: &Report) {
    let mut bench = Bench::new(report);
    let partition = "[[partition]]\npkey = 0x8005\nmembers = { \"node1 HCA-1\" = \"full\" }\n";
    std::fs::write(bench.path().join("vhca.toml"), partition).unwrap();
    let serve = ["--config", "vhca.toml", "--vfs", "1", "--guests"];
    bench.restart(&[FABRIC, &serve].concat());
    bench.wait_until_ok("node1 HCA-1/1");
    bench.run("vhca set vf 'node1 HCA-1/1' pkeys 0x8005");
    bench.case(Case {
        fault: "VF only in a [[partition]] that the SM's port is not in",
        vf: "node1 HCA-1/1",
        code: "sa_unreachable",
        next: "vhca set vf 'node1 HCA-1/1' pkeys 0xffff 0x8005",
        cure: Cure::Command,
    });
    bench.run("vhca guest 'node1 HCA-1/1' join ff12::15:1");
}

/// A port without a cable, until the service has another topology.
fn no_cable(report: &Report) {
    let net = |from: &str, to: &str| {
        format!(
            "Switch 8 \"s\"\n[1] \"mgmt\"[1]\n{from}\nHca 1 \"mgmt\"\n[1] \"s\"[1]\n\nHca 1 \"alone\"\n{to}"
        )
    };
    let mut bench = Bench::new(report);
    let file = bench.path().join("net");
    let arguments = ["--topology", "./net", "--vfs", "1"];
    std::fs::write(&file, net("", "")).unwrap();
    bench.restart(&arguments);
    bench.case(Case {
        fault: "port without a cable",
        vf: "alone/1",
        code: "no_cable",
        next: "topology file",
        cure: Cure::Words(&mut |bench| {
            let cabled = net("[2] \"alone\"[1]\n", "[1] \"s\"[2]\n");
            std::fs::write(bench.path().join("net"), cabled).unwrap();
            bench.restart(&arguments);
        }),
    });
}

/// More ports than there are unicast LIDs for, with 128 for each of them.
fn no_lid(report: &Report) {
    const HOSTS: usize = 400;
    let name = |host: usize| match host {
        0 => "mgmt".to_owned(),
        _ => format!("h{host}"),
    };
    let mut net = String::new();
    for switch in 0..2 {
        net.push_str(&format!(
            "Switch 210 \"s{switch}\"\n[210] \"s{}\"[210]\n",
            1 - switch
        ));
        for port in 1..=HOSTS / 2 {
            let host = name(switch * HOSTS / 2 + port - 1);
            net.push_str(&format!("[{port}] \"{host}\"[1]\n"));
        }
        net.push('\n');
    }
    for host in 0..HOSTS {
        let (switch, port) = (host / (HOSTS / 2), 1 + host % (HOSTS / 2));
        let name = name(host);
        net.push_str(&format!("Hca 1 \"{name}\"\n[1] \"s{switch}\"[{port}]\n\n"));
    }
    let mut bench = Bench::new(report);
    std::fs::write(bench.path().join("net"), net).unwrap();
    let serve = ["--topology", "./net", "--vfs", "1"];
    bench.restart(&[&serve[..], &["--lmc", "7"]].concat());
    let without = |bench: &Bench<'_>| {
        let faults = bench.try_run("vhca why all --json");
        let faults: serde_json::Value = serde_json::from_str(&faults).ok()?;
        let mut faults = faults["faults"].as_array()?.iter();
        let fault = faults.find(|fault| fault["code"] == "no_lid")?;
        Some(fault["host"].as_str()?.to_owned())
    };
    let host = vhca_tests::live::wait_for(crate::bench::LIMIT, || without(&bench));
    bench.case(Case {
        fault: "more ports than LIDs",
        vf: &format!("{}/1", host.expect("a port without a LID")),
        code: "no_lid",
        next: "--lmc 0",
        cure: Cure::Words(&mut |bench| bench.restart(&serve)),
    });
}
