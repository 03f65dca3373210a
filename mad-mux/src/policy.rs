//! The class policy: class × method × special QP × the VF's rights.
//!
//! Linux's mlx4 filters classes in `mlx4_ib_multiplex_mad` and `mlx4_ib_demux_mad`, independently of
//! the QP and without looking at versions. Here the QP, the versions and the methods count, too.

use ib_wire::mad::{AttributeId, BASE_VERSION, MadHeader, Method, MgmtClass};
use vf_tunnel::{DropReason, SpecialQp};

/// What the administrator lets a VF do beyond the ordinary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Send SMPs and get their answers. Takes effect when the VF starts.
    pub smi: bool,
    /// Ask remote ports for their performance counters.
    pub perf_mgt: bool,
    /// Answer SA and device-management requests, as a server of those classes.
    pub serve: bool,
    /// Send Trap and TrapRepress as general-service MADs.
    pub trap: bool,
    /// Ask and answer in the vendors' classes. `ibping` does that; but some adapters and switches let
    /// themselves be configured so.
    pub vendor: bool,
}

/// Who goes on with a MAD that may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClassRoute {
    /// An SMP of a VF that may send them.
    Smp,
    /// Subnet administration.
    SubnAdm,
    /// A CM message: communication ids are mapped.
    Cm,
    /// Transactions that need nothing but their id mapped.
    Transaction,
}

/// Decides on a MAD that a VF wants to send.
///
/// # Errors
/// The reason for which it is dropped.
pub fn egress(header: &MadHeader, qp: SpecialQp, rights: Rights) -> Result<ClassRoute, DropReason> {
    check_base(header, qp)?;
    let route = match header.mgmt_class {
        MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE => {
            require(rights.smi, DropReason::SmiNotPermitted)?;
            ClassRoute::Smp
        }
        MgmtClass::SUBN_ADM => {
            require(
                rights.serve || !header.method.is_response() || answers_report(header),
                DropReason::ResponseNotPermitted,
            )?;
            ClassRoute::SubnAdm
        }
        MgmtClass::COM_MGT => return com_mgt(header),
        MgmtClass::DEV_MGT => {
            let asks = matches!(header.method, Method::GET | Method::SET);
            require(asks || rights.serve, DropReason::MethodNotPermitted)?;
            ClassRoute::Transaction
        }
        MgmtClass::PERF if rights.perf_mgt => {
            require(header.method == Method::GET, DropReason::MethodNotPermitted)?;
            ClassRoute::Transaction
        }
        class if class.is_vendor() && rights.vendor => vendor(header)?,
        _ => return Err(DropReason::ClassNotPermitted),
    };
    let is_trap = matches!(header.method, Method::TRAP | Method::TRAP_REPRESS);
    require(!is_trap || rights.trap, DropReason::MethodNotPermitted)?;
    check_version(header)?;
    Ok(route)
}

/// Decides on a MAD from the wire that was steered to a VF.
///
/// # Errors
/// The reason for which it is dropped.
pub fn ingress(
    header: &MadHeader,
    qp: SpecialQp,
    rights: Rights,
) -> Result<ClassRoute, DropReason> {
    check_base(header, qp)?;
    match header.mgmt_class {
        MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE => {
            require(rights.smi, DropReason::SmiNotPermitted)?;
            require(header.method.is_answer(), DropReason::UnsolicitedSmp)?;
            Ok(ClassRoute::Smp)
        }
        MgmtClass::SUBN_ADM => Ok(ClassRoute::SubnAdm),
        MgmtClass::COM_MGT => com_mgt(header),
        MgmtClass::DEV_MGT => {
            let answers = header.method == Method::GET_RESP;
            require(answers || rights.serve, DropReason::MethodNotPermitted)?;
            Ok(ClassRoute::Transaction)
        }
        MgmtClass::PERF => {
            require(rights.perf_mgt, DropReason::ClassNotPermitted)?;
            require(
                header.method == Method::GET_RESP,
                DropReason::MethodNotPermitted,
            )?;
            Ok(ClassRoute::Transaction)
        }
        class if class.is_vendor() && rights.vendor => vendor(header),
        _ => Err(DropReason::ClassNotPermitted),
    }
}

/// Of the vendors' classes only what asks and what answers has a transaction to be mapped.
fn vendor(header: &MadHeader) -> Result<ClassRoute, DropReason> {
    let asks_or_answers = matches!(header.method, Method::GET | Method::SET | Method::GET_RESP);
    require(asks_or_answers, DropReason::MethodNotPermitted)?;
    Ok(ClassRoute::Transaction)
}

/// CM messages are Sends; the one transaction of the class asks for its ClassPortInfo.
fn com_mgt(header: &MadHeader) -> Result<ClassRoute, DropReason> {
    check_version(header)?;
    if header.method == Method::SEND {
        return Ok(ClassRoute::Cm);
    }
    let asks_or_answers = matches!(header.method, Method::GET | Method::GET_RESP);
    require(
        asks_or_answers && header.attribute_id == AttributeId::CLASS_PORT_INFO,
        DropReason::MethodNotPermitted,
    )?;
    Ok(ClassRoute::Transaction)
}

fn check_base(header: &MadHeader, qp: SpecialQp) -> Result<(), DropReason> {
    require(header.base_version == BASE_VERSION, DropReason::BadVersion)?;
    require(
        header.mgmt_class.is_smp() == (qp == SpecialQp::Smi),
        DropReason::ClassOnWrongQp,
    )
}

fn check_version(header: &MadHeader) -> Result<(), DropReason> {
    require(
        header.class_version == header.mgmt_class.supported_version(),
        DropReason::BadVersion,
    )
}

/// The one response that every subscriber sends.
fn answers_report(header: &MadHeader) -> bool {
    header.method == Method::REPORT_RESP
}

fn require(condition: bool, otherwise: DropReason) -> Result<(), DropReason> {
    if condition { Ok(()) } else { Err(otherwise) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CM_REQ: AttributeId = AttributeId::new(0x10);
    const PATH_RECORD: AttributeId = AttributeId::new(0x35);

    fn header(class: u8, method: Method, attribute: AttributeId) -> MadHeader {
        MadHeader::new(MgmtClass::new(class), method, attribute)
    }

    fn out(class: u8, method: Method, rights: Rights) -> Result<ClassRoute, DropReason> {
        egress(&header(class, method, PATH_RECORD), SpecialQp::Gsi, rights)
    }

    const NONE: Rights = Rights {
        smi: false,
        perf_mgt: false,
        serve: false,
        trap: false,
        vendor: false,
    };
    const ALL: Rights = Rights {
        smi: true,
        perf_mgt: true,
        serve: true,
        trap: true,
        vendor: true,
    };

    #[test]
    fn c007_another_base_version_is_dropped() {
        let mut mad = header(3, Method::GET, PATH_RECORD);
        mad.base_version = 0x80;
        assert_eq!(
            egress(&mad, SpecialQp::Gsi, ALL),
            Err(DropReason::BadVersion)
        );
    }

    #[test]
    fn c008_another_class_version_is_dropped() {
        for class in [0x01, 0x03, 0x04, 0x06, 0x07, 0x81] {
            let mut mad = header(class, Method::GET, AttributeId::CLASS_PORT_INFO);
            mad.class_version += 1;
            let qp = if class & 0x7f == 1 {
                SpecialQp::Smi
            } else {
                SpecialQp::Gsi
            };
            assert_eq!(
                egress(&mad, qp, ALL),
                Err(DropReason::BadVersion),
                "class {class:#x}"
            );
        }
    }

    #[test]
    fn c009_an_smp_on_the_qp1_proxy_is_dropped_even_with_the_privilege() {
        for class in [0x01, 0x81] {
            assert_eq!(
                out(class, Method::GET, ALL),
                Err(DropReason::ClassOnWrongQp)
            );
        }
    }

    #[test]
    fn c010_a_gmp_on_the_qp0_proxy_is_dropped_whatever_the_privilege() {
        for rights in [NONE, ALL] {
            let mad = header(3, Method::GET, PATH_RECORD);
            assert_eq!(
                egress(&mad, SpecialQp::Smi, rights),
                Err(DropReason::ClassOnWrongQp)
            );
        }
    }

    #[test]
    fn c025_an_smp_without_the_privilege_is_dropped() {
        for class in [0x01, 0x81] {
            let mad = header(class, Method::GET, AttributeId::new(0x11));
            assert_eq!(
                egress(&mad, SpecialQp::Smi, NONE),
                Err(DropReason::SmiNotPermitted)
            );
            assert_eq!(egress(&mad, SpecialQp::Smi, ALL), Ok(ClassRoute::Smp));
        }
    }

    #[test]
    fn c027_an_unsolicited_smp_is_not_delivered() {
        let request = header(0x01, Method::GET, AttributeId::new(0x11));
        assert_eq!(
            ingress(&request, SpecialQp::Smi, ALL),
            Err(DropReason::UnsolicitedSmp)
        );
        let response = header(0x01, Method::GET_RESP, AttributeId::new(0x11));
        assert_eq!(ingress(&response, SpecialQp::Smi, ALL), Ok(ClassRoute::Smp));
        let repress = header(0x01, Method::TRAP_REPRESS, AttributeId::NOTICE);
        assert_eq!(ingress(&repress, SpecialQp::Smi, ALL), Ok(ClassRoute::Smp));
        assert_eq!(
            ingress(&response, SpecialQp::Smi, NONE),
            Err(DropReason::SmiNotPermitted)
        );
    }

    #[test]
    fn c028_device_management_takes_get_and_set_only() {
        for method in [Method::GET, Method::SET] {
            assert_eq!(out(0x06, method, NONE), Ok(ClassRoute::Transaction));
        }
        for method in [
            Method::SEND,
            Method::TRAP,
            Method::GET_RESP,
            Method::GET_TABLE,
        ] {
            assert_eq!(out(0x06, method, NONE), Err(DropReason::MethodNotPermitted));
        }
    }

    #[test]
    fn c029_device_management_delivers_get_resp_only() {
        let mad = |method| header(0x06, method, AttributeId::new(0x10));
        assert_eq!(
            ingress(&mad(Method::GET_RESP), SpecialQp::Gsi, NONE),
            Ok(ClassRoute::Transaction)
        );
        for method in [Method::GET, Method::SET, Method::TRAP] {
            assert_eq!(
                ingress(&mad(method), SpecialQp::Gsi, NONE),
                Err(DropReason::MethodNotPermitted)
            );
        }
    }

    #[test]
    fn c030_other_classes_of_a_vf_are_dropped() {
        let closed = [0x04, 0x05, 0x08, 0x09, 0x0a, 0x10, 0x11, 0x12, 0x21];
        for class in closed.into_iter().chain(0x30..=0x4f) {
            assert_eq!(
                out(class, Method::GET, NONE),
                Err(DropReason::ClassNotPermitted),
                "class {class:#x}"
            );
        }
    }

    #[test]
    fn c031_perf_mgt_gets_pass_both_ways_with_the_right() {
        assert_eq!(out(0x04, Method::GET, ALL), Ok(ClassRoute::Transaction));
        assert_eq!(
            out(0x04, Method::SET, ALL),
            Err(DropReason::MethodNotPermitted)
        );
        let answer = header(0x04, Method::GET_RESP, AttributeId::new(0x12));
        assert_eq!(
            ingress(&answer, SpecialQp::Gsi, ALL),
            Ok(ClassRoute::Transaction)
        );
        assert_eq!(
            ingress(&answer, SpecialQp::Gsi, NONE),
            Err(DropReason::ClassNotPermitted)
        );
    }

    #[test]
    fn vendor_requests_and_answers_pass_both_ways_with_the_right() {
        for class in [0x09, 0x0a, 0x0f, 0x30, 0x32, 0x4f] {
            for method in [Method::GET, Method::SET, Method::GET_RESP] {
                let mad = header(class, method, AttributeId::new(0));
                assert_eq!(out(class, method, ALL), Ok(ClassRoute::Transaction));
                let came = |rights| ingress(&mad, SpecialQp::Gsi, rights);
                assert_eq!(came(ALL), Ok(ClassRoute::Transaction));
                assert_eq!(came(NONE), Err(DropReason::ClassNotPermitted));
            }
            let sent = out(class, Method::SEND, ALL);
            assert_eq!(sent, Err(DropReason::MethodNotPermitted));
        }
        for class in [0x05, 0x08, 0x10, 0x21, 0x50] {
            let sent = out(class, Method::GET, ALL);
            assert_eq!(sent, Err(DropReason::ClassNotPermitted), "class {class:#x}");
        }
    }

    #[test]
    fn c034_a_cm_class_mad_that_is_no_send_is_dropped() {
        for method in [Method::GET, Method::SET, Method::GET_RESP, Method::REPORT] {
            let mad = header(0x07, method, CM_REQ);
            assert_eq!(
                egress(&mad, SpecialQp::Gsi, NONE),
                Err(DropReason::MethodNotPermitted)
            );
        }
        let req = header(0x07, Method::SEND, CM_REQ);
        assert_eq!(egress(&req, SpecialQp::Gsi, NONE), Ok(ClassRoute::Cm));
    }

    #[test]
    fn c035_c036_class_port_info_of_the_cm_is_a_transaction_both_ways() {
        for method in [Method::GET, Method::GET_RESP] {
            let mad = header(0x07, method, AttributeId::CLASS_PORT_INFO);
            assert_eq!(
                egress(&mad, SpecialQp::Gsi, NONE),
                Ok(ClassRoute::Transaction)
            );
            assert_eq!(
                ingress(&mad, SpecialQp::Gsi, NONE),
                Ok(ClassRoute::Transaction)
            );
        }
    }

    #[test]
    fn c041_an_sa_response_of_a_vf_is_dropped_unless_it_serves() {
        for method in [
            Method::GET_RESP,
            Method::GET_TABLE_RESP,
            Method::DELETE_RESP,
        ] {
            assert_eq!(
                out(0x03, method, NONE),
                Err(DropReason::ResponseNotPermitted)
            );
            assert_eq!(out(0x03, method, ALL), Ok(ClassRoute::SubnAdm));
        }
    }

    #[test]
    fn c055_a_report_may_be_answered() {
        assert_eq!(
            out(0x03, Method::REPORT_RESP, NONE),
            Ok(ClassRoute::SubnAdm)
        );
    }

    #[test]
    fn c056_trap_and_trap_repress_of_a_vf_are_dropped_without_the_right() {
        for method in [Method::TRAP, Method::TRAP_REPRESS] {
            assert_eq!(out(0x03, method, NONE), Err(DropReason::MethodNotPermitted));
            assert_eq!(out(0x03, method, ALL), Ok(ClassRoute::SubnAdm));
        }
    }
}
