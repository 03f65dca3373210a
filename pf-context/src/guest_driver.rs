//! What is known of the driver in a guest.

use ib_wire::mad::{AttributeId, Mad, MadStatus, Method, MgmtClass};
use ib_wire::perf::{PerfAttribute, PortCounters, PortCountersExtended};
use ib_wire::sa::{PathRecord, SaMad};
use zerocopy::FromBytes;

/// The driver of a VF's guest, as far as it needs to be treated in a way of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestDriver {
    /// One that takes MADs for what they are.
    #[default]
    Standard,
    /// Linux' `mlx4_ib` on a virtual function. It takes every MAD about its port's counters for a request,
    /// answers included: nobody in the guest gets them, and somebody outside a reply without a header
    /// (`mlx4_ib_process_mad`, which looks at class and attribute only). And it puts a GRH on what goes by a path
    /// with a hop limit only (`ib_init_ah_attr_from_path`), though a LID does not tell the VFs of a port apart:
    /// SIDR_REQ names its destination nowhere else.
    Mlx4Slave,
}

/// Where the attributes that the driver would take are put: a vendor's part of the class (IBA 16.1.3).
const ASIDE: u16 = 0xff00;

impl GuestDriver {
    /// Makes an answer one that the driver does right with.
    pub(crate) fn adapt(self, answer: &mut Mad) {
        match (self, answer.header.mgmt_class) {
            (Self::Mlx4Slave, MgmtClass::PERF) => let_pass(answer),
            (Self::Mlx4Slave, MgmtClass::SUBN_ADM) => ask_for_grh(answer),
            _ => {}
        }
    }
}

/// Makes an answer reach whoever asked. Linux finds that by transaction and class; what answers a request has
/// the attribute of the request, so nobody needs to be told.
fn let_pass(answer: &mut Mad) {
    if TAKEN.contains(&answer.header.attribute_id) {
        let aside = answer.header.attribute_id.get() | ASIDE;
        answer.header.attribute_id = AttributeId::new(aside);
    }
}

/// Gives the path in an answer a hop limit, which within a subnet is of no consequence but a GRH (IBA 8.3.6).
fn ask_for_grh(answer: &mut Mad) {
    let header = answer.header;
    let is_path = header.method == Method::GET_RESP
        && header.attribute_id == AttributeId::PATH_RECORD
        && header.status == MadStatus::OK;
    let sa: &mut SaMad = answer.view_mut();
    if is_path && !sa.rmpp.is_active() {
        match PathRecord::mut_from_prefix(&mut sa.data) {
            Ok((path, _)) if path.hop_limit() == 0 => path.set_hop_limit(1),
            _ => {}
        }
    }
}

/// Attributes that the driver answers by itself.
const TAKEN: [AttributeId; 3] = [
    AttributeId::CLASS_PORT_INFO,
    PortCounters::ID,
    PortCountersExtended::ID,
];
