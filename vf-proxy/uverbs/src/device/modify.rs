//! MODIFY_QP.

use hca_api::{AlternatePath, Hca, MigrationState, QpModify, QpState};
use ib_wire::{Mtu, PKeyIndex, PortNum, Psn, QKey, Qpn};
use verbs_link::abi::queue_pair::{ModifyQp, attr_mask};
use verbs_link::{Answer, Command, Errno};

use super::{ContextId, ProcessDevice};
use crate::rights::rights;

impl ProcessDevice {
    pub(super) fn modify_qp(
        &mut self,
        hca: &mut dyn Hca,
        context: ContextId,
        command: &Command<'_>,
        extended: bool,
    ) -> Result<Answer, Errno> {
        let (asked, _) = command.read::<ModifyQp>()?;
        let handle = asked.qp_handle.get();
        let mask = asked.attr_mask.get();
        if mask & !attr_mask::SUPPORTED != 0 {
            return Err(if extended {
                Errno::EOPNOTSUPP
            } else {
                Errno::EINVAL
            });
        }
        let qp = self.qps.get(context, handle)?;
        let provider = qp.provider;
        let before = qp.query(hca)?.state;
        let mut change = change(&asked, mask)?;
        if qp.send_error && before == QpState::SendQueueError {
            let ends = [QpState::ReadyToSend, QpState::Reset, QpState::Error];
            if !change.state.is_some_and(|state| ends.contains(&state)) {
                return Err(Errno::EINVAL);
            }
            // The provider's queue pair has not left RTS.
            if change.current_state == Some(before) {
                change.current_state = Some(QpState::ReadyToSend);
            }
        }
        // The kernel lets every queue pair go to the state that it is in.
        hca.modify_qp(provider, &change)?;
        let after = change.state.unwrap_or(before);
        let qp = self.qps.get_mut(context, handle)?;
        qp.send_error &= after == QpState::SendQueueError;
        match after {
            QpState::Reset => {
                qp.next_send = qp.send.producer();
                qp.send.publish_consumer(qp.next_send);
                qp.sent.clear();
                if let Some(receive) = &qp.receive {
                    receive.drop_waiting();
                }
                self.backlog.flush.remove(handle);
            }
            QpState::ReadyToSend => {
                self.backlog.sends.add(handle);
            }
            QpState::Error => {
                self.backlog.flush.add(handle);
                self.backlog.sends.add(handle);
            }
            _ => {}
        }
        Ok(if extended {
            Answer::new(&[0_u32, 8])
        } else {
            Answer::default()
        })
    }
}

/// Most code of an ACK timeout, which has five bits (IBA 9.7.6.1.3).
const MAX_TIMEOUT: u8 = 31;

/// Returns the change that a command asks for.
fn change(asked: &ModifyQp, mask: u32) -> Result<QpModify, Errno> {
    let given = |bit: u32| mask & bit != 0;
    let check = |ok: bool| ok.then_some(()).ok_or(Errno::EINVAL);
    let mut change = QpModify::default();
    if given(attr_mask::STATE) {
        change.state = Some(state(asked.qp_state)?);
    }
    if given(attr_mask::CUR_STATE) {
        change.current_state = Some(state(asked.cur_qp_state)?);
    }
    if given(attr_mask::EN_SQD_ASYNC_NOTIFY) {
        change.drain_event = asked.en_sqd_async_notify != 0;
    }
    if given(attr_mask::ACCESS_FLAGS) {
        change.access = Some(rights(asked.qp_access_flags.get()));
    }
    if given(attr_mask::PKEY_INDEX) {
        change.pkey_index = Some(PKeyIndex(asked.pkey_index.get()));
    }
    if given(attr_mask::PORT) {
        change.port = Some(PortNum(asked.port_num));
    }
    if given(attr_mask::QKEY) {
        change.qkey = Some(QKey::new(asked.qkey.get()));
    }
    if given(attr_mask::AV) {
        change.primary = Some(asked.dest.vector());
    }
    if given(attr_mask::PATH_MTU) {
        let mtu = Mtu::new(asked.path_mtu);
        check(mtu.bytes().is_some())?;
        change.path_mtu = Some(mtu);
    }
    if given(attr_mask::TIMEOUT) {
        check(asked.timeout <= MAX_TIMEOUT)?;
        change.timeout = Some(asked.timeout);
    }
    if given(attr_mask::RETRY_CNT) {
        check(asked.retry_cnt <= 7)?;
        change.retry_count = Some(asked.retry_cnt);
    }
    if given(attr_mask::RNR_RETRY) {
        check(asked.rnr_retry <= 7)?;
        change.rnr_retry = Some(asked.rnr_retry);
    }
    if given(attr_mask::RQ_PSN) {
        change.rq_psn = Some(Psn::from_low_bits(asked.rq_psn.get()));
    }
    if given(attr_mask::SQ_PSN) {
        change.sq_psn = Some(Psn::from_low_bits(asked.sq_psn.get()));
    }
    if given(attr_mask::MAX_QP_RD_ATOMIC) {
        change.max_rd_atomic = Some(asked.max_rd_atomic);
    }
    if given(attr_mask::MAX_DEST_RD_ATOMIC) {
        change.max_dest_rd_atomic = Some(asked.max_dest_rd_atomic);
    }
    if given(attr_mask::MIN_RNR_TIMER) {
        change.min_rnr_timer = Some(asked.min_rnr_timer & 0x1f);
    }
    if given(attr_mask::DEST_QPN) {
        change.dest_qpn = Some(Qpn::from_low_bits(asked.dest_qp_num.get()));
    }
    if given(attr_mask::ALT_PATH) {
        check(asked.alt_timeout <= MAX_TIMEOUT)?;
        change.alternate = Some(AlternatePath {
            address: asked.alt_dest.vector(),
            pkey_index: PKeyIndex(asked.alt_pkey_index.get()),
            timeout: asked.alt_timeout,
        });
    }
    if given(attr_mask::PATH_MIG_STATE) {
        change.migration = Some(match asked.path_mig_state {
            0 => MigrationState::Migrated,
            1 => MigrationState::Rearm,
            2 => MigrationState::Armed,
            _ => return Err(Errno::EINVAL),
        });
    }
    Ok(change)
}

/// Returns the state of a number (`enum ibv_qp_state`).
fn state(number: u8) -> Result<QpState, Errno> {
    Ok(match number {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::ReadyToReceive,
        3 => QpState::ReadyToSend,
        4 => QpState::SendQueueDrain,
        5 => QpState::SendQueueError,
        6 => QpState::Error,
        _ => return Err(Errno::EINVAL),
    })
}
