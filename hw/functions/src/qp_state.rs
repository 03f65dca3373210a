//! Which state a queue pair can go to, and with which attributes (IBA 10.3.1; 11.2.4.2, table of QP
//! state transition properties).

use bitflags::bitflags;
use hca_api::{HcaError, QpKind, QpModify, QpState};

bitflags! {
    /// Attributes that a [`QpModify`] gives.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Given: u32 {
        const PORT = 1 << 0;
        const PKEY_INDEX = 1 << 1;
        const QKEY = 1 << 2;
        const SQ_PSN = 1 << 3;
        const DRAIN_EVENT = 1 << 4;
        const ACCESS = 1 << 5;
        const PATH_MTU = 1 << 6;
        const DEST_QPN = 1 << 7;
        const RQ_PSN = 1 << 8;
        const PRIMARY = 1 << 9;
        const ALTERNATE = 1 << 10;
        const MIGRATION = 1 << 11;
        const TIMEOUT = 1 << 12;
        const RETRY_COUNT = 1 << 13;
        const RNR_RETRY = 1 << 14;
        const MIN_RNR_TIMER = 1 << 15;
        const MAX_RD_ATOMIC = 1 << 16;
        const MAX_DEST_RD_ATOMIC = 1 << 17;
    }
}

impl Given {
    fn of(change: &QpModify) -> Self {
        let mut given = Self::empty();
        given.set(Self::PORT, change.port.is_some());
        given.set(Self::PKEY_INDEX, change.pkey_index.is_some());
        given.set(Self::QKEY, change.qkey.is_some());
        given.set(Self::SQ_PSN, change.sq_psn.is_some());
        given.set(Self::DRAIN_EVENT, change.drain_event);
        given.set(Self::ACCESS, change.access.is_some());
        given.set(Self::PATH_MTU, change.path_mtu.is_some());
        given.set(Self::DEST_QPN, change.dest_qpn.is_some());
        given.set(Self::RQ_PSN, change.rq_psn.is_some());
        given.set(Self::PRIMARY, change.primary.is_some());
        given.set(Self::ALTERNATE, change.alternate.is_some());
        given.set(Self::MIGRATION, change.migration.is_some());
        given.set(Self::TIMEOUT, change.timeout.is_some());
        given.set(Self::RETRY_COUNT, change.retry_count.is_some());
        given.set(Self::RNR_RETRY, change.rnr_retry.is_some());
        given.set(Self::MIN_RNR_TIMER, change.min_rnr_timer.is_some());
        given.set(Self::MAX_RD_ATOMIC, change.max_rd_atomic.is_some());
        given.set(
            Self::MAX_DEST_RD_ATOMIC,
            change.max_dest_rd_atomic.is_some(),
        );
        given
    }
}

/// Attributes of one transition.
struct Rule {
    required: Given,
    optional: Given,
}

/// Returns the rule of a transition, or `None` if there is no such transition.
fn rule(kind: &QpKind, from: QpState, to: QpState) -> Option<Rule> {
    match kind {
        QpKind::Rc => connected_rule(true, from, to),
        QpKind::Uc => connected_rule(false, from, to),
        _ => datagram_rule(kind, from, to),
    }
}

fn datagram_rule(kind: &QpKind, from: QpState, to: QpState) -> Option<Rule> {
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

/// The rule of a transition of an RC or UC queue pair.
fn connected_rule(reliable: bool, from: QpState, to: QpState) -> Option<Rule> {
    use QpState::{
        Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError,
    };

    /// Attributes that UC lacks: a timer, retries, reads and RNR NAKs.
    const RELIABLE: Given = Given::TIMEOUT
        .union(Given::RETRY_COUNT)
        .union(Given::RNR_RETRY)
        .union(Given::MIN_RNR_TIMER)
        .union(Given::MAX_RD_ATOMIC)
        .union(Given::MAX_DEST_RD_ATOMIC);

    let none = Given::empty();
    let own = Given::PORT | Given::PKEY_INDEX | Given::ACCESS;
    let migration = Given::ALTERNATE | Given::MIGRATION;
    let (required, optional) = match (from, to) {
        (_, Reset) => (none, none),
        (Reset, Error) => return None,
        (_, Error) => (none, none),
        (Reset, Init) => (own, none),
        (Init, Init) => (none, own),
        (Init, ReadyToReceive) => (
            Given::PRIMARY
                | Given::PATH_MTU
                | Given::DEST_QPN
                | Given::RQ_PSN
                | Given::MAX_DEST_RD_ATOMIC
                | Given::MIN_RNR_TIMER,
            Given::ALTERNATE | Given::ACCESS | Given::PKEY_INDEX,
        ),
        (ReadyToReceive, ReadyToSend) => (
            Given::SQ_PSN
                | Given::TIMEOUT
                | Given::RETRY_COUNT
                | Given::RNR_RETRY
                | Given::MAX_RD_ATOMIC,
            migration | Given::ACCESS | Given::MIN_RNR_TIMER,
        ),
        (ReadyToSend | SendQueueDrain, ReadyToSend) => {
            (none, migration | Given::ACCESS | Given::MIN_RNR_TIMER)
        }
        (ReadyToSend, SendQueueDrain) => (none, Given::DRAIN_EVENT),
        (SendQueueDrain, SendQueueDrain) => {
            let port = if reliable { Given::PORT } else { none };
            let path = port | Given::PKEY_INDEX | Given::ACCESS | Given::PRIMARY;
            (none, path | migration | RELIABLE)
        }
        (SendQueueError, ReadyToSend) if reliable => (none, none),
        (SendQueueError, ReadyToSend) => (none, Given::ACCESS),
        _ => return None,
    };
    let lacks = if reliable { none } else { RELIABLE };
    Some(Rule {
        required: required - lacks,
        optional: optional - lacks,
    })
}

/// Checks a change against the state of a queue pair and returns the state it leads to (IBA 10.3.1, 11.2.4.2).
///
/// # Errors
/// [`HcaError::InvalidQpState`] if there is no such transition, or the queue pair is not in the state that the caller believes;
/// [`HcaError::InvalidAttribute`] if an attribute is missing or not of the transition.
pub fn next_state(kind: &QpKind, from: QpState, change: &QpModify) -> Result<QpState, HcaError> {
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

    /// The rows of the table for RC and UC, between states other than RESET and ERR: `A` access, `V` path, `M` path MTU,
    /// `N` peer, `R` PSN to expect, `d` responder depth, `n` RNR timer, `t` timeout, `r` retries, `e` RNR retries, `i`
    /// initiator depth, `L` alternate path, `G` migration state. UC lacks the small letters.
    const CONNECTED_TABLE: &[(QpState, QpState, &str, &str)] = &[
        (QpState::Reset, QpState::Init, "PKA", ""),
        (QpState::Init, QpState::Init, "", "PKA"),
        (QpState::Init, QpState::ReadyToReceive, "VMNRdn", "LAK"),
        (
            QpState::ReadyToReceive,
            QpState::ReadyToSend,
            "treSi",
            "LAnG",
        ),
        (QpState::ReadyToSend, QpState::ReadyToSend, "", "LAnG"),
        (QpState::ReadyToSend, QpState::SendQueueDrain, "", "D"),
        (QpState::SendQueueDrain, QpState::ReadyToSend, "", "LAnG"),
    ];

    fn connected_change(to: QpState, letters: &str) -> QpModify {
        let code = |letter| letters.contains(letter).then_some(1);
        let path = hca_api::AddressVector {
            port: PortNum(1),
            dlid: ib_wire::Lid::new(1),
            sl: ib_wire::Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: None,
        };
        let alternate = hca_api::AlternatePath {
            address: path,
            pkey_index: PKeyIndex(0),
            timeout: 0,
        };
        QpModify {
            access: letters.contains('A').then(hca_api::AccessFlags::empty),
            primary: letters.contains('V').then_some(path),
            alternate: letters.contains('L').then_some(alternate),
            migration: letters.contains('G').then(Default::default),
            path_mtu: letters.contains('M').then_some(ib_wire::Mtu::MTU_256),
            dest_qpn: letters.contains('N').then_some(Qpn::GSI),
            rq_psn: letters.contains('R').then(Psn::default),
            max_dest_rd_atomic: code('d'),
            min_rnr_timer: code('n'),
            timeout: code('t'),
            retry_count: code('r'),
            rnr_retry: code('e'),
            max_rd_atomic: code('i'),
            ..change(to, letters)
        }
    }

    #[test]
    fn a_connected_transition_needs_each_required_attribute_and_takes_the_optional_ones() {
        for (kind, lacking) in [(QpKind::Rc, ""), (QpKind::Uc, "dntrei")] {
            let has = |letter: &char| !lacking.contains(*letter);
            for (from, to, required, optional) in CONNECTED_TABLE {
                let required: String = required.chars().filter(has).collect();
                let given =
                    |letters: &str| next_state(&kind, *from, &connected_change(*to, letters));
                assert_eq!(given(&required), Ok(*to), "{kind:?} {from:?} {to:?}");
                let all = required.clone() + optional;
                let all: String = all.chars().filter(has).collect();
                assert_eq!(given(&all), Ok(*to), "{kind:?} {from:?} {to:?}");
                for letter in required.chars() {
                    let fewer = required.replace(letter, "");
                    assert_eq!(given(&fewer), Err(HcaError::InvalidAttribute));
                }
                for letter in "PKQSDAVMNRdntreiLG".chars() {
                    if !all.contains(letter) {
                        let more = format!("{required}{letter}");
                        assert_eq!(given(&more), Err(HcaError::InvalidAttribute));
                    }
                }
            }
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
