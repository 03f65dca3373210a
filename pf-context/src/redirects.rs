//! Where peers redirected a VF's requests to.
//!
//! A class may be served by another QP than QP1: the answer to a request then says so in its status,
//! or ClassPortInfo says it beforehand (IBA 13.5.2). Only where a VF was sent by an answer to its own
//! request may it go with a QP other than QP1.

use std::collections::VecDeque;

use ib_wire::mad::{AttributeId, Mad, MadStatus, MgmtClass};
use ib_wire::notice::ClassPortInfo;
use ib_wire::{Lid, QKey, Qpn};
use zerocopy::FromBytes;

/// A place that a VF was sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Redirect {
    lid: Lid,
    qpn: Qpn,
    qkey: QKey,
}

/// The places that a VF was sent to, the latest last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redirects(VecDeque<Redirect>);

impl Redirects {
    /// Places that are remembered; the oldest is forgotten for a new one.
    const MOST: usize = 32;

    /// Looks at an answer that goes to the VF.
    pub(crate) fn learn(&mut self, answer: &Mad) {
        let redirects = answer.header.status.get() & MadStatus::REDIRECT.get() != 0;
        let informs = answer.header.attribute_id == AttributeId::CLASS_PORT_INFO;
        if !redirects && !informs {
            return;
        }
        let Some(info) = class_port_info(answer) else {
            return;
        };
        let place = Redirect {
            lid: info.redirect_lid,
            qpn: info.redirect_qp,
            qkey: info.redirect_qkey,
        };
        if !place.lid.is_unicast() || place.qpn.get() <= Qpn::GSI.get() {
            return;
        }
        self.0.retain(|known| *known != place);
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(place);
    }

    /// The Q_Keys that the VF was told for a QP; none if it was not sent there.
    pub(crate) fn qkeys(&self, lid: Lid, qpn: Qpn) -> impl Iterator<Item = QKey> {
        self.0
            .iter()
            .filter(move |place| place.lid == lid && place.qpn == qpn)
            .map(|place| place.qkey)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The ClassPortInfo in an answer, at the place where its class has its data.
fn class_port_info(answer: &Mad) -> Option<ClassPortInfo> {
    // Offsets behind the common header: IBA 15.2.1.1 (SA), 16.1.2 (PerfMgt), 16.3.2 (DevMgt),
    // 12.6 (CM).
    let offset = match answer.header.mgmt_class {
        MgmtClass::SUBN_ADM => 56 - 24,
        MgmtClass::PERF | MgmtClass::DEV_MGT => 64 - 24,
        MgmtClass::COM_MGT => 0,
        _ => return None,
    };
    let (info, _) = ClassPortInfo::read_from_prefix(answer.data.get(offset..)?).ok()?;
    Some(info)
}
