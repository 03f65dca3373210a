//! Which state a queue pair can go to, and with which attributes (IBA 10.3.1; 11.2.4.2, table of QP
//! state transition properties).

use bitflags::bitflags;
use hca_api::{HcaError, QpKind, QpModify, QpState};

bitflags! {
    /// Attributes that a [`QpModify`] gives.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Given: u8 {
        const PORT = 1 << 0;
        const PKEY_INDEX = 1 << 1;
        const QKEY = 1 << 2;
        const SQ_PSN = 1 << 3;
        const DRAIN_EVENT = 1 << 4;
        /// Anything that only connected QPs have.
        const CONNECTED = 1 << 5;
    }
}

impl Given {
    fn of(change: &QpModify) -> Self {
        let connected = change.access.is_some()
            || change.path_mtu.is_some()
            || change.dest_qpn.is_some()
            || change.rq_psn.is_some()
            || change.primary.is_some()
            || change.alternate.is_some()
            || change.migration.is_some()
            || change.timeout.is_some()
            || change.retry_count.is_some()
            || change.rnr_retry.is_some()
            || change.min_rnr_timer.is_some()
            || change.max_rd_atomic.is_some()
            || change.max_dest_rd_atomic.is_some();
        let mut given = Self::empty();
        given.set(Self::PORT, change.port.is_some());
        given.set(Self::PKEY_INDEX, change.pkey_index.is_some());
        given.set(Self::QKEY, change.qkey.is_some());
        given.set(Self::SQ_PSN, change.sq_psn.is_some());
        given.set(Self::DRAIN_EVENT, change.drain_event);
        given.set(Self::CONNECTED, connected);
        given
    }
}

/// Attributes of one transition.
struct Rule {
    required: Given,
    optional: Given,
}

/// The rule of a transition of a datagram QP; `None` if there is no such transition.
fn rule(kind: &QpKind, from: QpState, to: QpState) -> Option<Rule> {
    use QpState::{
        Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError,
    };

    let none = Given::empty();
    let (required, optional) = match (from, to) {
        (_, Reset) => (none, none),
        (Reset, Error) => return None,
        (_, Error) => (none, none),
        (Reset, Init) => match kind {
            // The port, the partition and the key of a tunnel are the provider's.
            QpKind::Proxy { .. } | QpKind::Tunnel { .. } => {
                (none, Given::PKEY_INDEX | Given::QKEY | Given::PORT)
            }
            // The port of a special QP is part of its name.
            QpKind::Special { .. } => (Given::PKEY_INDEX | Given::QKEY, Given::PORT),
            QpKind::Ud | QpKind::Rc | QpKind::Uc => {
                (Given::PKEY_INDEX | Given::QKEY | Given::PORT, none)
            }
        },
        (Init, Init) => (none, Given::PKEY_INDEX | Given::QKEY | Given::PORT),
        (Init, ReadyToReceive) => (none, Given::PKEY_INDEX | Given::QKEY),
        (ReadyToReceive, ReadyToSend) => (Given::SQ_PSN, Given::QKEY),
        (ReadyToSend | SendQueueDrain | SendQueueError, ReadyToSend) => (none, Given::QKEY),
        (ReadyToSend, SendQueueDrain) => (none, Given::DRAIN_EVENT),
        (SendQueueDrain, SendQueueDrain) => (none, Given::PKEY_INDEX | Given::QKEY),
        _ => return None,
    };
    Some(Rule { required, optional })
}

/// Checks a change against the state of a datagram QP and gives the state it leads to.
pub(super) fn next_state(
    kind: &QpKind,
    from: QpState,
    change: &QpModify,
) -> Result<QpState, HcaError> {
    if change
        .current_state
        .is_some_and(|believed| believed != from)
    {
        return Err(HcaError::InvalidQpState);
    }
    let to = change.state.unwrap_or(from);
    let rule = rule(kind, from, to).ok_or(HcaError::InvalidQpState)?;
    let given = Given::of(change);
    if given.contains(rule.required) && (rule.required | rule.optional).contains(given) {
        Ok(to)
    } else {
        Err(HcaError::InvalidAttribute)
    }
}

#[cfg(test)]
mod tests {
    use hca_api::{SpecialQp, SpecialQp::Gsi};
    use ib_wire::{PKeyIndex, PortNum, Psn, QKey, Qpn};
    use proptest::prelude::*;

    use super::*;

    const STATES: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::ReadyToReceive,
        QpState::ReadyToSend,
        QpState::SendQueueDrain,
        QpState::SendQueueError,
        QpState::Error,
    ];

    /// The rows of IBA 11.2.4.2's table for UD: from, to, required, optional. `P` port, `K` P_Key
    /// index, `Q` Q_Key, `S` send PSN, `D` drain event.
    const UD_TABLE: &[(QpState, QpState, &str, &str)] = &[
        (QpState::Reset, QpState::Init, "PKQ", ""),
        (QpState::Init, QpState::Init, "", "PKQ"),
        (QpState::Init, QpState::ReadyToReceive, "", "KQ"),
        (QpState::ReadyToReceive, QpState::ReadyToSend, "S", "Q"),
        (QpState::ReadyToSend, QpState::ReadyToSend, "", "Q"),
        (QpState::ReadyToSend, QpState::SendQueueDrain, "", "D"),
        (QpState::SendQueueDrain, QpState::SendQueueDrain, "", "KQ"),
        (QpState::SendQueueDrain, QpState::ReadyToSend, "", "Q"),
        (QpState::SendQueueError, QpState::ReadyToSend, "", "Q"),
        (QpState::Reset, QpState::Reset, "", ""),
        (QpState::Init, QpState::Reset, "", ""),
        (QpState::ReadyToReceive, QpState::Reset, "", ""),
        (QpState::ReadyToSend, QpState::Reset, "", ""),
        (QpState::SendQueueDrain, QpState::Reset, "", ""),
        (QpState::SendQueueError, QpState::Reset, "", ""),
        (QpState::Error, QpState::Reset, "", ""),
        (QpState::Init, QpState::Error, "", ""),
        (QpState::ReadyToReceive, QpState::Error, "", ""),
        (QpState::ReadyToSend, QpState::Error, "", ""),
        (QpState::SendQueueDrain, QpState::Error, "", ""),
        (QpState::SendQueueError, QpState::Error, "", ""),
        (QpState::Error, QpState::Error, "", ""),
    ];

    fn change(to: QpState, letters: &str) -> QpModify {
        QpModify {
            state: Some(to),
            port: letters.contains('P').then_some(PortNum(1)),
            pkey_index: letters.contains('K').then_some(PKeyIndex(0)),
            qkey: letters.contains('Q').then_some(QKey::new(1)),
            sq_psn: letters.contains('S').then(Psn::default),
            drain_event: letters.contains('D'),
            dest_qpn: letters.contains('C').then_some(Qpn::GSI),
            ..QpModify::default()
        }
    }

    proptest! {
        #[test]
        fn a_ud_transition_is_accepted_exactly_as_the_table_says(
            from in prop::sample::select(&STATES[..]),
            to in prop::sample::select(&STATES[..]),
            letters in prop::sample::subsequence(vec!['P', 'K', 'Q', 'S', 'D', 'C'], 0..=6),
        ) {
            let letters: String = letters.into_iter().collect();
            let expect = match UD_TABLE.iter().find(|row| row.0 == from && row.1 == to) {
                None => Err(HcaError::InvalidQpState),
                Some((.., required, optional)) => {
                    let missing = required.chars().any(|c| !letters.contains(c));
                    let extra = letters
                        .chars()
                        .any(|c| !required.contains(c) && !optional.contains(c));
                    if missing || extra { Err(HcaError::InvalidAttribute) } else { Ok(to) }
                }
            };
            prop_assert_eq!(next_state(&QpKind::Ud, from, &change(to, &letters)), expect);
        }
    }

    /// IBA 11.2.4.2: the port of QP0 and QP1 is given when the QP is made.
    #[test]
    fn special_qps_need_no_port_and_tunnels_need_nothing_to_be_initialised() {
        let port = PortNum(1);
        let special = QpKind::Special { special: Gsi, port };
        let proxy = QpKind::Proxy {
            special: SpecialQp::Smi,
            port,
        };
        let to = QpState::Init;
        assert_eq!(
            next_state(&special, QpState::Reset, &change(to, "KQ")),
            Ok(to)
        );
        assert_eq!(
            next_state(&special, QpState::Reset, &change(to, "K")),
            Err(HcaError::InvalidAttribute)
        );
        assert_eq!(next_state(&proxy, QpState::Reset, &change(to, "")), Ok(to));
    }

    #[test]
    fn a_wrong_belief_about_the_current_state_is_refused() {
        let change = QpModify {
            current_state: Some(QpState::Init),
            ..change(QpState::ReadyToSend, "")
        };
        assert_eq!(
            next_state(&QpKind::Ud, QpState::ReadyToSend, &change),
            Err(HcaError::InvalidQpState)
        );
    }
}
