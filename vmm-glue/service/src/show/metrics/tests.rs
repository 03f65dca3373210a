//! The metrics of a small fabric, at each grain.

use std::collections::BTreeSet;

use emulated_hca::hca::Device;
use emulated_hca::{EndNode, Frame, Topology};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::Mad;
use ib_wire::{PortNum, Qpn};
use pf_context::{Cause, PortConfig, PortMux, VfConfig};
use vf_tunnel::{SpecialQp, ToPf, VfId};
use vhca_diagnosis::KNOWN_FAULTS;

use super::*;
use crate::show::{NamedPf, VmmRow};

const NOW: Instant = Instant::from_millis(2_500);

fn vf(number: u16) -> VfId {
    VfId::new(number).unwrap()
}

/// A port with two VFs, of which each has sent so many frames that were dropped.
fn mux(frames: [usize; 2]) -> PortMux {
    let mut mux = PortMux::new(PortConfig::default());
    for (number, frames) in (1..).zip(frames) {
        mux.add_vf(vf(number), VfConfig::default()).unwrap();
        for _ in 0..frames {
            let mut frame = ToPf::zeroed();
            frame.header.remote_qpn = Qpn::GSI;
            frame.mad = Mad::default();
            mux.from_vf(NOW, Cause(0), vf(number), SpecialQp::Gsi, &frame);
        }
    }
    mux
}

/// The metrics of two hosts with such a port each, made a step at a time.
fn shown(by: By, filter: impl Fn(&[emulated_hca::NodeId]) -> Filter) -> String {
    let (mut fabric, built) = Topology::three_switches().build::<Device>(0);
    let device = fabric.device_mut(built.hcas[1]).unwrap();
    device.node_mut().set_now(NOW);
    device.receive(NOW, PortNum(1), Frame::new(&[0; 64]));
    while fabric.poll(NOW) {}
    let muxes = [mux([2, 1]), mux([4, 0])];
    let rows = muxes.each_ref().map(|mux| mux.inspect(PortNum(1)));
    let pf = |place: usize, name| NamedPf {
        name,
        node: built.hcas[place],
        rows: &rows[place - 1],
    };
    let vmm = |vf| VmmRow {
        host: "host-a".to_owned(),
        vf,
        since: Some(Duration::from_secs(1)),
        resets: 2,
        ..VmmRow::default()
    };
    let service = ServiceFacts {
        started: Duration::from_secs(1_790_000_000),
        manager: Some(ManagerFacts {
            last_sweep: Some(Duration::from_millis(20)),
            last_sweep_age: Some(Duration::from_secs(3)),
            ..ManagerFacts::default()
        }),
        programs: Programs {
            sent: 7,
            ..Programs::default()
        },
    };
    let scene = Scene {
        pfs: &[pf(1, "host-a"), pf(2, "host\"b")],
        vmms: &vec![vmm(1), vmm(2)],
        fabric: &fabric,
        service: &service,
        now: NOW,
    };
    let mut metrics = Metrics::new(by, filter(&built.hcas));
    let mut out = Vec::new();
    while !metrics.write(&scene, &mut out, &mut Slice::of_steps(1)) {}
    String::from_utf8(out).unwrap()
}

fn all(_: &[emulated_hca::NodeId]) -> Filter {
    Filter::default()
}

fn assert_has(text: &str, samples: &[&str]) {
    for sample in samples {
        assert!(text.lines().any(|line| line == *sample), "{sample}\n{text}");
    }
}

/// Every metric comes once, with help and type before its samples, which all have other labels.
#[test]
fn a_page_is_valid_at_every_grain() {
    for by in [By::Total, By::Host, By::Vf] {
        let text = shown(by, all);
        let (mut family, mut seen, mut samples) = ("", BTreeSet::new(), BTreeSet::new());
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let typed = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
                let (name, kind) = typed.split_once(' ').unwrap();
                assert!(help.starts_with(&format!("{name} ")));
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(seen.insert(name), "{name} twice");
                family = name;
            } else {
                let (key, value) = line.rsplit_once(' ').unwrap();
                let labels = key.strip_prefix(family).unwrap();
                assert!(labels.is_empty() || labels.starts_with('{') && labels.ends_with('}'));
                assert!(value.parse::<f64>().is_ok(), "{line}");
                assert!(samples.insert(key), "{key} twice");
            }
        }
    }
}

#[test]
fn each_grain_is_the_sum_of_the_finer_one() {
    assert_has(
        &shown(By::Vf, all),
        &[
            "vhca_port_state{pf=\"host-a\",port=\"1\",vf=\"pf\"} 1",
            "vhca_port_state{pf=\"host-a\",port=\"1\",vf=\"2\"} 0",
            "vhca_port_reason{pf=\"host-a\",port=\"1\",vf=\"2\",reason=\"no_guid\"} 1",
            "vhca_mad_dropped_total{pf=\"host-a\",port=\"1\",vf=\"1\",reason=\"bad_version\"} 2",
            "vhca_mad_dropped_total{pf=\"host\\\"b\",port=\"1\",vf=\"1\",reason=\"bad_version\"} 4",
            "vhca_quota{pf=\"host-a\",port=\"1\",vf=\"1\",resource=\"tids\"} 4096",
            "vhca_packet_dropped_total{node=\"host-a\",port=\"1\",reason=\"malformed\"} 1",
            "vhca_vmm_resets_total{pf=\"host-a\",vf=\"2\"} 2",
        ],
    );
    let by_host = shown(By::Host, all);
    assert_has(
        &by_host,
        &[
            "vhca_port_state{pf=\"host-a\",port=\"1\"} 1",
            "vhca_vfs{pf=\"host-a\",port=\"1\",reason=\"no_guid\",fault=\"ok\"} 2",
            "vhca_mad_dropped_total{pf=\"host-a\",port=\"1\",reason=\"bad_version\"} 3",
            "vhca_tid_entries{pf=\"host-a\",port=\"1\"} 0",
            "vhca_packet_dropped_total{node=\"host-a\",port=\"1\",reason=\"malformed\"} 1",
            "vhca_link_state_id{node=\"host-a\",port=\"1\"} 2",
            "vhca_link_physical_state_id{node=\"host-a\",port=\"1\"} 5",
            "vhca_link_width_lanes{node=\"S1\",port=\"2\"} 4",
            "vhca_link_rate_bytes_per_second{node=\"S1\",port=\"2\"} 7031250000",
            "vhca_port_data_received_bytes_total{node=\"host-a\",port=\"1\"} 0",
            "vhca_vmm_attached{pf=\"host-a\"} 2",
        ],
    );
    assert!(!by_host.contains("vf=\"") && !by_host.contains("vhca_quota"));
    let total = shown(By::Total, all);
    assert_has(
        &total,
        &[
            concat!(
                "vhca_build_info{version=\"",
                env!("CARGO_PKG_VERSION"),
                "\",arch=\"x86_64\"} 1"
            ),
            "process_start_time_seconds 1790000000",
            "vhca_sm_last_sweep_seconds 0.02",
            "vhca_sm_sweeps_total{kind=\"heavy\"} 0",
            "vhca_umad_mads_total{dir=\"tx\"} 7",
            "vhca_port_state 2",
            "vhca_vfs{reason=\"no_guid\",fault=\"ok\"} 4",
            "vhca_mad_dropped_total{reason=\"bad_version\"} 7",
            "vhca_packet_dropped_total{reason=\"malformed\"} 1",
            "vhca_links{state=\"Initialize\"} 16",
            "vhca_port_packets_received_total 0",
            "vhca_vmm_resets_total 4",
        ],
    );
    assert!(!total.contains("pf=\"") && !total.contains("node=\""));
}

#[test]
fn of_one_vf_there_is_nothing_of_others() {
    let text = shown(By::Host, |hcas| Filter {
        node: Some(hcas[1]),
        vf: Some(vf(1)),
        problems: false,
    });
    assert_has(
        &text,
        &[
            "vhca_mad_dropped_total{pf=\"host-a\",port=\"1\",vf=\"1\",reason=\"bad_version\"} 2",
            "vhca_vmm_attached{pf=\"host-a\",vf=\"1\"} 1",
        ],
    );
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    for sample in samples {
        assert!(
            sample.contains("{pf=\"host-a\"") && sample.contains("vf=\"1\""),
            "{sample}"
        );
    }
}

/// The tables of the document name each metric with its kind.
#[test]
fn the_metrics_are_those_that_are_documented() {
    let document = include_str!("../../../docs/serve.md").lines();
    let rows =
        document.filter(|line| line.starts_with("| `vhca_") || line.starts_with("| `process_"));
    let documented: BTreeSet<(String, &str)> = rows
        .map(|row| {
            let mut cells = row.trim_matches('|').split('|').map(str::trim);
            let name = cells.next().unwrap().trim_matches('`');
            (name.to_owned(), cells.next().unwrap())
        })
        .collect();
    let written = families().map(|family| {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        (family.name.to_owned(), kind)
    });
    assert_eq!(written.collect::<BTreeSet<_>>(), documented);
}

/// Words of a text that begin like a metric of the service.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("vhca_")).collect()
}

#[test]
fn the_alerts_and_the_dashboard_name_metrics_and_faults_that_exist() {
    let alerts = include_str!("../../../docs/alerts.yml");
    let dashboard = include_str!("../../../docs/dashboard.json");
    let known: BTreeSet<_> = families().map(|family| family.name).collect();
    for text in [alerts, dashboard] {
        let named = named(text);
        assert!(named.len() > 3 && named.is_subset(&known), "{named:?}");
    }
    let faults = alerts.split("fault!~\"").skip(1);
    let faults: Vec<_> = faults
        .flat_map(|rest| rest.split('"').next().unwrap().split('|'))
        .collect();
    let is_known = |code: &&str| KNOWN_FAULTS.iter().any(|known| known.code == *code);
    assert!(
        !faults.is_empty() && faults.iter().all(is_known),
        "{faults:?}"
    );
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    assert_eq!(dashboard["panels"].as_array().unwrap().len(), 6);
}

#[test]
fn what_would_end_a_label_is_escaped() {
    let mut labels = String::new();
    add_label(&mut labels, "node", "a\"b\\c\nd");
    assert_eq!(labels, "node=\"a\\\"b\\\\c\\nd\"");
}
