//! The functions of emulated adapters.

use emulated_hca::hca::Device;
use vhca::Slice;
use vhca_control::By;
use vhca_service::show::{Filter, Metrics, Scene, ServiceFacts};
use vhca_tests::vf_subnet::VfSubnet;
use vhca_tests::virtual_service::NoVmms;

#[expect(clippy::duplicate_mod, reason = "the same scenes on another adapter")]
#[path = "suite/mod.rs"]
pub(super) mod suite;

/// The metrics of the fabric.
fn metrics(subnet: &mut VfSubnet, by: By) -> String {
    let now = subnet.now();
    let scene = Scene {
        pfs: &[],
        vmms: &NoVmms,
        fabric: subnet.fabric_mut(),
        service: &ServiceFacts::default(),
        now,
    };
    let (mut metrics, mut text) = (Metrics::new(by, Filter::default()), Vec::new());
    while !metrics.write(&scene, &mut text, &mut Slice::endless()) {}
    String::from_utf8(text).expect("text")
}

#[test]
fn retransmissions_of_a_connection_are_in_the_metrics() {
    let mut subnet = suite::connected::deliver_across_losses();
    for (by, labels) in [
        (By::Total, ""),
        (By::Host, "{node=\"host-1\"}"),
        (By::Vf, "{node=\"host-1\",vf=\"1\"}"),
    ] {
        let text = metrics(&mut subnet, by);
        for metric in ["sent_bytes", "retransmissions"] {
            let sample = format!("\nvhca_connection_{metric}_total{labels} ");
            assert!(text.contains(&sample), "{sample} is not in {text}");
        }
    }
}
