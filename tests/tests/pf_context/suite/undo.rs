//! Undoing after a failed step: contexts and VFs of an adapter whose every step fails in turn.

use mad_mux::policy::Rights;
use vhca_tests::faulty_hca::FaultyHca;

use super::*;

/// Steps that could fail, more than there are.
const MANY: u64 = 10_000;

fn device() -> Device {
    let mut config = HcaConfig::new(Guid::new(0x1000), "host");
    config.max_functions = 8;
    config.ports = 2;
    Device::new(&config, 1)
}

/// A configuration with all that a context can have: QP0 as well as QP1.
fn config() -> PfConfig {
    let mut config = PfConfig::new(8);
    config.smi = true;
    config.depths.special = 4;
    config.depths.tunnel_receives = 4;
    config.depths.tunnel_sends = 4;
    config
}

fn spec_with_smi() -> VfSpec {
    let port = VfPortSpec {
        rights: Rights {
            smi: true,
            ..Rights::default()
        },
        ..VfPortSpec::default()
    };
    VfSpec {
        ports: vec![port.clone(), port],
        ..spec(1)
    }
}

#[test]
fn c232_whatever_step_of_opening_a_context_fails_all_before_it_is_undone() {
    let mut failures = 0;
    for step in 0..MANY {
        let mut device = device();
        let mut hca = device.function(FunctionId::PF).expect("the PF");
        let mut hca = FaultyHca::new(&mut hca);
        let before = hca.resources(FunctionId::PF);
        hca.calls_before_fault = Some(step);
        let opened = PfContext::open(NOW, &mut hca, &config());
        if !hca.has_failed() {
            assert!(opened.is_ok());
            assert!(failures > 20, "{failures} steps can fail");
            return;
        }
        let pf = match opened {
            Ok(pf) => pf,
            Err(_) => {
                failures += 1;
                assert_eq!(hca.resources(FunctionId::PF), before, "step {step}");
                assert_eq!(hca.buffers, 0, "step {step}");
                PfContext::open(NOW, &mut hca, &config()).expect("it is usable")
            }
        };
        pf.close(NOW, &mut hca);
        assert_eq!(hca.resources(FunctionId::PF), before, "step {step}");
        assert_eq!(hca.buffers, 0, "step {step}");
    }
    panic!("it never opens");
}

#[test]
fn c232_whatever_step_of_adding_a_vf_fails_all_before_it_is_undone() {
    let mut failures = 0;
    for step in 0..MANY {
        let mut device = device();
        let mut hca = device.function(FunctionId::PF).expect("the PF");
        let mut hca = FaultyHca::new(&mut hca);
        let mut pf = PfContext::open(NOW, &mut hca, &config()).expect("a context");
        let before = hca.resources(FunctionId::PF);
        let mut hca = FaultyHca::new(&mut hca);
        hca.calls_before_fault = Some(step);
        let added = pf.add_vf(NOW, &mut hca, vf(1), spec_with_smi());
        if !hca.has_failed() {
            assert_eq!(added, Ok(()));
            assert!(failures > 20, "{failures} steps can fail");
            return;
        }
        if added.is_err() {
            failures += 1;
            let held = (hca.resources(FunctionId::PF), hca.buffers);
            assert_eq!(held, (before, 0), "step {step}");
            assert!(hca.resources(FunctionId(1)).is_err(), "step {step}");
            assert_eq!(pf.vfs().count(), 0);
            let again = pf.add_vf(NOW, &mut hca, vf(1), spec_with_smi());
            assert_eq!(again, Ok(()), "step {step}: the number is free");
        }
        pf.remove_vf(NOW, &mut hca, vf(1)).expect("a VF");
        let held = (hca.resources(FunctionId::PF), hca.buffers);
        assert_eq!(held, (before, 0), "step {step}");
        while pf.poll(NOW, &mut hca) {}
    }
    panic!("it is never added");
}
