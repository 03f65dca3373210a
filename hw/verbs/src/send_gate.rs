//! Queue pairs that take no sends, as the library in a program knows them.

use std::collections::BTreeSet;

use crate::Command;
use crate::abi::AnsweredHandleCommand;
use crate::abi::command;
use crate::abi::memory::HandleAnswer;
use crate::abi::queue_pair::{ModifyQp, attr_mask};
use zerocopy::FromBytes;

/// Number of the first state in which a queue pair takes sends: ready to send (`enum ibv_qp_state`).
const READY_TO_SEND: u8 = 3;

/// Queue pairs of a file that take no sends: doorbells have no answer, so the library itself refuses those of queue pairs that
/// are not ready, as the kernel does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendGate(BTreeSet<u32>);

impl SendGate {
    /// Takes note of a command that succeeded, and its answer.
    pub fn observe(&mut self, command: &Command<'_>, answer: &[u8]) {
        match command.number {
            command::CREATE_QP => {
                if let Ok((created, _)) = HandleAnswer::read_from_prefix(answer) {
                    self.0.insert(created.handle.get());
                }
            }
            command::MODIFY_QP => {
                let Ok((change, _)) = command.read::<ModifyQp>() else {
                    return;
                };
                let qp = change.qp_handle.get();
                if change.attr_mask.get() & attr_mask::STATE != 0 {
                    self.0.remove(&qp);
                    self.0
                        .extend((change.qp_state < READY_TO_SEND).then_some(qp));
                }
            }
            command::DESTROY_QP => {
                if let Ok((destroyed, _)) = command.read::<AnsweredHandleCommand>() {
                    self.0.remove(&destroyed.handle.get());
                }
            }
            _ => {}
        }
    }

    /// Returns `true` if a queue pair takes no sends.
    #[must_use]
    pub fn is_shut(&self, qp: u32) -> bool {
        self.0.contains(&qp)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{Immutable, IntoBytes};

    use super::*;
    use crate::abi::queue_pair::{CreateQp, CreateQpAnswer};
    use crate::testing::command_bytes;

    fn observe(
        gate: &mut SendGate,
        number: u32,
        payload: &(impl IntoBytes + Immutable),
        answer: &[u8],
    ) {
        let bytes = command_bytes(number, payload, 0);
        gate.observe(&Command::decode(&bytes).unwrap(), answer);
    }

    #[test]
    fn a_queue_pair_takes_sends_from_ready_to_send_until_it_is_reset() {
        let mut gate = SendGate::default();
        let created = CreateQpAnswer {
            qp_handle: 9.into(),
            ..CreateQpAnswer::default()
        };
        let create = CreateQp::default();
        observe(&mut gate, command::CREATE_QP, &create, created.as_bytes());
        assert!(gate.is_shut(9) && !gate.is_shut(8));
        for (qp_state, is_shut) in [
            (1, true),
            (2, true),
            (3, false),
            (4, false),
            (6, false),
            (0, true),
            (1, true),
        ] {
            let change = ModifyQp {
                qp_handle: 9.into(),
                attr_mask: attr_mask::STATE.into(),
                qp_state,
                ..ModifyQp::default()
            };
            observe(&mut gate, command::MODIFY_QP, &change, &[]);
            assert_eq!(gate.is_shut(9), is_shut, "state {qp_state}");
        }
        let other = ModifyQp {
            qp_handle: 9.into(),
            attr_mask: attr_mask::QKEY.into(),
            qp_state: 3,
            ..ModifyQp::default()
        };
        observe(&mut gate, command::MODIFY_QP, &other, &[]);
        assert!(gate.is_shut(9), "the state was not named");
        let destroy = AnsweredHandleCommand {
            handle: 9.into(),
            ..AnsweredHandleCommand::default()
        };
        observe(&mut gate, command::DESTROY_QP, &destroy, &[]);
        assert_eq!(gate, SendGate::default());
    }
}
