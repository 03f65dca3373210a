//! What is known of the driver in a guest.

use ib_wire::mad::{AttributeId, Mad, MgmtClass};
use ib_wire::perf::{PerfAttribute, PortCounters, PortCountersExtended};

/// The driver of a VF's guest, as far as it needs to be treated in a way of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestDriver {
    /// One that takes MADs for what they are.
    #[default]
    Standard,
    /// Linux' `mlx4_ib` on a virtual function. It takes every MAD about its port's counters for a request,
    /// answers included: nobody in the guest gets them, and somebody outside a reply without a header
    /// (`mlx4_ib_process_mad`, which looks at class and attribute only).
    Mlx4Slave,
}

/// Where the attributes that the driver would take are put: a vendor's part of the class (IBA 16.1.3).
const ASIDE: u16 = 0xff00;

impl GuestDriver {
    /// Makes an answer one that reaches whoever asked. Linux finds that by transaction and class; what
    /// answers a request has the attribute of the request, so nobody needs to be told.
    pub(crate) fn let_pass(self, answer: &mut Mad) {
        let is_taken = self == Self::Mlx4Slave
            && answer.header.mgmt_class == MgmtClass::PERF
            && TAKEN.contains(&answer.header.attribute_id);
        if is_taken {
            let aside = answer.header.attribute_id.get() | ASIDE;
            answer.header.attribute_id = AttributeId::new(aside);
        }
    }
}

/// Attributes that the driver answers by itself.
const TAKEN: [AttributeId; 3] = [
    AttributeId::CLASS_PORT_INFO,
    PortCounters::ID,
    PortCountersExtended::ID,
];
