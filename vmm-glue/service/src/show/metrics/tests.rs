//! The metrics of a small fabric, at each grain.

use std::collections::{BTreeMap, BTreeSet};

use emulated_hca::hca::Device;
use emulated_hca::{DropReason, EndNode, Frame, Topology};
use ib_trunk::Statistics;
use ib_vtime::{Duration, Instant};
use ib_wire::mad::Mad;
use ib_wire::{PortNum, Qpn};
use pf_context::{Cause, PortConfig, PortMux, VfConfig};
use vf_tunnel::{SpecialQp, ToPf, VfId};
use vhca_diagnosis::KNOWN_FAULTS;

use super::*;
use crate::show::{NamedPf, TrunkRow, VmmRow};

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
        trunks: vec![TrunkRow {
            near: built.hcas[0].port(1),
            port: "S1/5".to_owned(),
            way: "tcp:spine:18600".to_owned(),
            peer: Err("down: the connection ended".to_owned()),
            is_guarded: false,
            statistics: Statistics {
                sent_packets: 3,
                round_trip: Some(Duration::from_millis(2)),
                ..Statistics::default()
            },
        }],
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

const ALERTS: &str = include_str!("../../../docs/alerts.yml");
const DASHBOARD: &str = include_str!("../../../docs/dashboard.json");

/// Labels of each metric by host, as the document has them.
fn documented_labels() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let document = include_str!("../../../docs/serve.md").lines();
    let rows = document.filter(|line| line.starts_with("| `vhca_"));
    let rows = rows.map(|row| {
        let mut cells = row.trim_matches(['|', ' ']).splitn(3, " | ");
        let name = cells.next().unwrap().trim_matches('`');
        let labels = cells.nth(1).unwrap().split(':').next().unwrap();
        let labels = labels.split(';').next().unwrap().split('`').skip(1);
        (
            name,
            labels.step_by(2).filter(|label| *label != "vf").collect(),
        )
    });
    rows.collect()
}

/// Expressions of the rules and of the dashboard, each with the texts that name labels of its samples.
fn expressions() -> Vec<(String, String)> {
    let rules = ALERTS.split("- alert: ").skip(1).map(|rule| {
        let (_, rest) = rule.split_once("expr: ").unwrap();
        let end = ["\n        for:", "\n        labels:"];
        let end = end.iter().filter_map(|key| rest.find(key)).min().unwrap();
        let labels = rest.split("$labels.").skip(1);
        let labels = labels.map(|label| label.split_once(' ').unwrap().0.to_owned() + " ");
        (rest[..end].to_owned(), labels.collect())
    });
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let text = |target: &serde_json::Value, key| target[key].as_str().unwrap().to_owned();
    let panels = dashboard["panels"].as_array().unwrap().clone();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap().clone());
    let targets = targets.map(|target| (text(&target, "expr"), text(&target, "legendFormat")));
    rules.chain(targets).collect()
}

/// Names in a text: words of lower-case letters.
fn names(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '_');
    words.filter(|word| !word.is_empty())
}

/// Returns the labels that an expression names: by some it sums, of others it asks for values.
fn named_labels(expression: &str) -> BTreeSet<&str> {
    let sums = expression.split("by (").skip(1);
    let sums = sums.flat_map(|rest| names(rest.split(')').next().unwrap()));
    let asked = expression.split('{').skip(1).flat_map(|rest| {
        let matchers = rest.split('}').next().unwrap().split(',');
        matchers.filter_map(|matcher| names(matcher).next())
    });
    sums.chain(asked).collect()
}

#[test]
fn the_alerts_and_the_dashboard_name_metrics_labels_and_faults_that_exist() {
    let known: BTreeSet<_> = families().map(|family| family.name).collect();
    let labels = documented_labels();
    let all = expressions();
    assert!(all.len() > 10);
    for (expression, shown) in &all {
        let metrics = named(expression);
        assert!(
            !metrics.is_empty() && metrics.is_subset(&known),
            "{expression}"
        );
        let of_metrics = metrics.iter().map(|metric| &labels[metric]);
        let mut of_samples = of_metrics.reduce(|one, _| one).unwrap().clone();
        for metric in &metrics {
            assert_eq!(labels[metric], of_samples, "{expression}");
        }
        let named = named_labels(expression);
        assert!(named.is_subset(&of_samples), "{expression}: {named:?}");
        if expression.contains(" by (") {
            of_samples = named;
        }
        let shown: BTreeSet<_> = names(shown).collect();
        assert!(shown.is_subset(&of_samples), "{expression}: {shown:?}");
    }
    let faults = ALERTS.split("fault!~\"").skip(1);
    let faults: Vec<_> = faults
        .flat_map(|rest| rest.split('"').next().unwrap().split('|'))
        .collect();
    let is_known = |code: &&str| KNOWN_FAULTS.iter().any(|known| known.code == *code);
    assert!(
        !faults.is_empty() && faults.iter().all(is_known),
        "{faults:?}"
    );
    let dropped = ALERTS.split("reason!~\"").nth(1).unwrap();
    let mut dropped = dropped.split('"').next().unwrap().split('|');
    let ours = [DropReason::NoReceive, DropReason::NoMembers].map(DropReason::as_str);
    assert!(dropped.all(|reason| ours.contains(&reason)));
}

/// Samples have the labels that the document names.
#[test]
fn samples_have_the_labels_that_are_documented() {
    let documented = documented_labels();
    let text = shown(By::Host, all);
    let mut metrics = BTreeSet::new();
    for sample in text.lines().filter(|line| line.starts_with("vhca_")) {
        let (key, _) = sample.rsplit_once(' ').unwrap();
        let (name, labels) = key.split_once('{').unwrap_or((key, ""));
        // Values of labels in this scene have neither commas nor equality signs.
        let labels = labels.split(',').filter_map(|label| label.split_once('='));
        let labels: BTreeSet<_> = labels.map(|(label, _)| label).collect();
        assert_eq!(labels, documented[name], "{sample}");
        metrics.insert(name);
    }
    for (expression, _) in expressions() {
        let of_scene = |metric: &&str| metrics.contains(metric) || LATER.contains(metric);
        assert!(named(&expression).iter().all(of_scene), "{expression}");
    }
}

/// Metrics that a scrape has only once a MAD or a fault was counted, a VF is at its quota, or the SA has answered.
const LATER: [&str; 5] = [
    "vhca_sa_answer_age_seconds",
    "vhca_mad_total",
    "vhca_link_downed_total",
    "vhca_port_symbol_error_total",
    "vhca_vfs_at_quota",
];

/// Panels have what Grafana needs of them: a type, a title, a place on the grid of 24 columns, and targets with ids of their own.
#[test]
fn the_dashboard_is_as_grafana_wants_it() {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(dashboard["title"].is_string() && dashboard["schemaVersion"].is_u64());
    let panels = dashboard["panels"].as_array().unwrap();
    assert_eq!(panels.len(), 6);
    let mut places = BTreeSet::new();
    for panel in panels {
        assert_eq!(panel["type"], "timeseries");
        assert!(
            panel["title"]
                .as_str()
                .is_some_and(|title| !title.is_empty())
        );
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        assert!(w > 0 && h > 0 && x + w <= 24);
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(
                places.insert(cell),
                "{} is over another panel",
                panel["title"]
            );
        }
        let targets = panel["targets"].as_array().unwrap();
        let ids: BTreeSet<_> = targets
            .iter()
            .map(|target| target["refId"].as_str().unwrap())
            .collect();
        assert!(ids.len() == targets.len() && !ids.is_empty());
    }
}

#[test]
fn what_would_end_a_label_is_escaped() {
    let mut labels = String::new();
    add_label(&mut labels, "node", "a\"b\\c\nd");
    assert_eq!(labels, "node=\"a\\\"b\\\\c\\nd\"");
}
