//! Datagram queue pairs of virtual functions.

use hca_api::{
    AddressVector, FunctionId, Hca, HcaError, QpHandle, QpModify, QpState, UdAddress, UdDestination,
};
use ib_wire::{Gid, Lid, PortNum, QKey, Qpn, Sl};

use crate::functions::Functions;
use crate::pair::Pair;
use crate::vf::Vf;

impl Vf {
    /// Returns the destination of a datagram as the adapter has it: nowhere while nothing may pass.
    pub(crate) fn physical_destination(
        &self,
        hca: &dyn Hca,
        id: FunctionId,
        pair: &Pair,
        destination: UdDestination,
    ) -> Result<UdDestination, HcaError> {
        if destination.pkey_index.is_some() {
            return Err(HcaError::InvalidParameter);
        }
        let address = match destination.address {
            UdAddress::Vector(vector) => UdAddress::Vector(self.physical_vector(id, &vector)?),
            UdAddress::Handle(av) => UdAddress::Handle(self.own_av(av)?),
        };
        if pair.barrier.is_some() {
            return nowhere(hca, pair.port);
        }
        Ok(UdDestination {
            address,
            ..destination
        })
    }
}

impl Pair {
    /// Returns the change of the adapter's queue pair for one of the consumer's, and the pair after it.
    pub(crate) fn change(
        mut self,
        vf: &Vf,
        change: &QpModify,
        barrier: QKey,
    ) -> Result<(Self, QpModify), HcaError> {
        if change.qkey.is_some_and(QKey::is_privileged) {
            return Err(HcaError::PermissionDenied);
        }
        self.port = change.port.or(self.port);
        self.pkey_index = change.pkey_index.unwrap_or(self.pkey_index);
        self.qkey = change.qkey.unwrap_or(self.qkey);
        let Some(port) = self.port else {
            return Ok((self, *change));
        };
        self.check_index(vf, port, change)?;
        self.follow(vf, port, barrier);
        let mut physical = *change;
        physical.pkey_index = change.pkey_index.map(|_| self.physical);
        physical.qkey = change.qkey.map(|_| self.physical_qkey());
        // It was not taken to RTR and RTS with the view that there is now.
        match change.state {
            Some(QpState::ReadyToReceive) => {
                physical.pkey_index = Some(self.physical);
                physical.qkey = Some(self.physical_qkey());
            }
            Some(QpState::ReadyToSend) => physical.qkey = Some(self.physical_qkey()),
            _ => {}
        }
        Ok((self, physical))
    }

    /// Refuses a P_Key index beyond the function's table.
    pub(crate) fn check_index(
        &self,
        vf: &Vf,
        port: PortNum,
        change: &QpModify,
    ) -> Result<(), HcaError> {
        let table = vf.port(port)?.view.pkeys.len();
        if change.pkey_index.is_some() && usize::from(self.pkey_index.0) >= table {
            return Err(HcaError::InvalidIndex);
        }
        Ok(())
    }

    /// Follows the view of its port.
    pub(crate) fn follow(&mut self, vf: &Vf, port: PortNum, barrier: QKey) {
        let passage = vf.passage(port, self.pkey_index);
        self.physical = passage.unwrap_or(self.physical);
        self.barrier = match passage {
            Some(_) => None,
            None => self.barrier.or(Some(barrier)),
        };
    }
}

impl Functions {
    pub(crate) fn attach(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        attachment: (QpHandle, Gid, Lid),
    ) -> Result<(), HcaError> {
        let vf = self.vf(id)?;
        if vf.attachments.contains(&attachment) {
            return Ok(());
        }
        let (qp, mgid, mlid) = attachment;
        let pair = vf.pairs.get(&qp);
        if pair.is_none() {
            vf.side.end(qp)?;
        }
        if pair.is_none_or(Pair::is_connected) {
            return Err(HcaError::InvalidQpKind);
        }
        self.check_quota(id, |counts| counts.attachments)?;
        hca.attach_multicast(qp, mgid, mlid)?;
        self.vf_mut(id)?.attachments.insert(attachment);
        Ok(())
    }

    pub(crate) fn detach(
        &mut self,
        hca: &mut dyn Hca,
        id: FunctionId,
        attachment: (QpHandle, Gid, Lid),
    ) -> Result<(), HcaError> {
        let vf = self.vf_mut(id)?;
        if !vf.attachments.contains(&attachment) {
            return Err(HcaError::InvalidParameter);
        }
        let (qp, mgid, mlid) = attachment;
        hca.detach_multicast(qp, mgid, mlid)?;
        vf.attachments.remove(&attachment);
        Ok(())
    }
}

/// Makes a pair of the adapter as its consumer's stands now.
pub(crate) fn refresh(
    hca: &mut dyn Hca,
    qp: QpHandle,
    before: &Pair,
    pair: &Pair,
) -> Result<(), HcaError> {
    let state = hca.query_qp(qp)?.state;
    let is_rekeyed = pair.physical_qkey() != before.physical_qkey();
    if matches!(state, QpState::Init | QpState::ReadyToSend) && is_rekeyed {
        let change = QpModify {
            qkey: Some(pair.physical_qkey()),
            ..QpModify::default()
        };
        hca.modify_qp(qp, &change)?;
    }
    if pair.physical == before.physical {
        return Ok(());
    }
    let repartition = QpModify {
        pkey_index: Some(pair.physical),
        ..QpModify::default()
    };
    let to = |state| QpModify {
        state: Some(state),
        ..QpModify::default()
    };
    match state {
        QpState::Init => hca.modify_qp(qp, &repartition),
        // The P_Key of a queue pair that sends can be changed while it drains alone.
        QpState::ReadyToSend => {
            hca.modify_qp(qp, &to(QpState::SendQueueDrain))?;
            hca.modify_qp(qp, &repartition)?;
            hca.modify_qp(qp, &to(QpState::ReadyToSend))
        }
        _ => Ok(()),
    }
}

/// Returns a destination at which nothing is: the port itself, and a number that no queue pair has.
fn nowhere(hca: &dyn Hca, port: Option<PortNum>) -> Result<UdDestination, HcaError> {
    let port = port.ok_or(HcaError::InvalidQpState)?;
    let vector = AddressVector {
        port,
        dlid: hca.query_port(port)?.lid,
        sl: Sl::default(),
        path_bits: 0,
        static_rate: None,
        grh: None,
    };
    Ok(UdDestination {
        address: UdAddress::Vector(vector),
        qpn: Qpn::from_low_bits(0xff_fffe),
        qkey: QKey::default(),
        pkey_index: None,
    })
}
