//! What VFs send to the LID of their own port: who takes it before QP1 does.

use ib_wire::Lid;
use ib_wire::mad::{AttributeId, Mad, Method, MgmtClass};
use mad_mux::policy::Rights;
use pf_context::{Output, PortConfig, VfConfig};
use vf_tunnel::DropReason;

use crate::harness::*;

fn performance(method: Method) -> Mad {
    mad(MgmtClass::PERF, method, AttributeId::new(0x12), 3)
}

/// A port with a VF that may ask for counters, and the SM at a LID.
fn port(sm_lid: u16) -> Port {
    let config = PortConfig {
        sm_lid: Lid::new(sm_lid),
        ..config()
    };
    let vf = VfConfig {
        rights: Rights {
            perf_mgt: true,
            ..Rights::default()
        },
        ..vf_config(1)
    };
    Port::with(config, [vf])
}

fn goes_out(outputs: &[Output]) -> bool {
    matches!(outputs, [Output::ToWire(send, _)] if send.dlid.get() == OWN)
}

#[test]
fn the_adapter_answers_queries_of_its_counters_but_takes_no_answers() {
    let mut port = port(SM);
    let query = frame(OWN, performance(Method::GET));
    assert!(goes_out(&port.vf_sends(1, &query)));
    let answer = frame(OWN, performance(Method::GET_RESP));
    assert!(!goes_out(&port.vf_sends(1, &answer)));
}

#[test]
fn a_query_of_the_sa_goes_out_to_the_ports_own_lid_only_if_the_sm_is_there_without_software_of_the_pf()
 {
    let query = frame(OWN, path_query(1));
    assert!(goes_out(&port(OWN).vf_sends(1, &query)));
    assert_eq!(dropped(port(SM).vf_sends(1, &query)), DropReason::NoTarget);
    let mut shared = port(OWN);
    shared.mux.attach_pf_software(PortConfig::default().guid);
    assert_eq!(got(shared.vf_sends(1, &query)).vf, 0);
}
