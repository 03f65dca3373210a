//! The transitions of a queue pair: from which state to which, what of the driver's context each of them
//! takes, and what the provider is asked for.
//!
//! The driver fills in a fresh context for each transition, so whatever the transition does not take is
//! zero and says nothing.

use hca_api::{QpModify, QpState as ProviderState};
use ib_wire::{PKeyIndex, PortNum};
use mlx4_defs::qp::{OptionalFields, QpContext, QpPath, QpState, ServiceType};

use super::super::capability::SINK_COUNTER;

/// A transition; the names are those of the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Transition {
    /// `RST2INIT_QP`
    RstToInit,
    /// `INIT2INIT_QP`
    InitToInit,
    /// `INIT2RTR_QP`
    InitToRtr,
    /// `RTR2RTS_QP`
    RtrToRts,
    /// `RTS2RTS_QP`
    RtsToRts,
    /// `SQERR2RTS_QP`
    SqerToRts,
    /// `RTS2SQD_QP`
    RtsToSqd,
    /// `SQD2RTS_QP`
    SqdToRts,
    /// `SQD2SQD_QP`
    SqdToSqd,
    /// `2ERR_QP`
    ToErr,
}

impl Transition {
    /// Whether it starts in a state.
    pub(super) fn starts_in(self, state: QpState) -> bool {
        match self {
            Self::RstToInit => state == QpState::RST,
            Self::InitToInit | Self::InitToRtr => state == QpState::INIT,
            Self::RtrToRts => state == QpState::RTR,
            Self::RtsToRts | Self::RtsToSqd => state == QpState::RTS,
            Self::SqerToRts => state == QpState::SQER,
            Self::SqdToRts | Self::SqdToSqd => state == QpState::SQD,
            Self::ToErr => state != QpState::RST,
        }
    }

    /// The state that it leads to.
    pub(super) const fn target(self) -> QpState {
        match self {
            Self::RstToInit | Self::InitToInit => QpState::INIT,
            Self::InitToRtr => QpState::RTR,
            Self::RtrToRts | Self::RtsToRts | Self::SqerToRts | Self::SqdToRts => QpState::RTS,
            Self::RtsToSqd | Self::SqdToSqd => QpState::SQD,
            Self::ToErr => QpState::ERR,
        }
    }

    /// The context after the transition.
    pub(super) fn merge(
        self,
        old: &QpContext,
        given: &QpContext,
        optional: &OptionalFields,
    ) -> QpContext {
        let mut context = match self {
            Self::RstToInit => {
                let mut context = *given;
                context.primary_path = QpPath {
                    counter_index: SINK_COUNTER,
                    ..QpPath::default()
                };
                context.alternate_path = QpPath::default();
                context
            }
            _ => *old,
        };
        match self {
            Self::InitToRtr => {
                context.mtu_msgmax = given.mtu_msgmax;
                context.remote_qpn = given.remote_qpn;
                context.next_receive_psn = given.next_receive_psn;
                if given.primary_path.sched_queue != 0 {
                    context.primary_path.sched_queue = given.primary_path.sched_queue;
                }
            }
            Self::RtrToRts => context.next_send_psn = given.next_send_psn,
            _ => {}
        }
        merge_optional(&mut context, given, optional);
        context.set_state(self.target());
        context
    }

    /// The change of a datagram queue pair at the provider; `context` is what it will be.
    pub(super) fn change(
        self,
        context: &QpContext,
        optional: &OptionalFields,
        drained_event: bool,
        tunnelled: bool,
    ) -> QpModify {
        let first = self == Self::RstToInit;
        let path = &context.primary_path;
        let pkey = (first || optional.pkey_index()).then(|| PKeyIndex(path.pkey_index().into()));
        // The key of a tunnel is the provider's.
        let qkey = ((first || optional.qkey()) && !tunnelled).then_some(context.qkey);
        let takes_attributes = self != Self::ToErr;
        QpModify {
            state: Some(provider_state(self.target())),
            port: (first && !tunnelled).then(|| port(path)),
            pkey_index: pkey.filter(|_| takes_attributes),
            qkey: qkey.filter(|_| takes_attributes),
            sq_psn: (self == Self::RtrToRts).then_some(context.next_send_psn),
            drain_event: drained_event && self == Self::RtsToSqd,
            ..QpModify::default()
        }
    }
}

/// The port of a path.
pub(super) fn port(path: &QpPath) -> PortNum {
    PortNum(1 + u8::from(path.port_bit()))
}

/// Whether datagrams are the queue pair's transport.
pub(super) fn is_datagram(context: &QpContext) -> bool {
    context.service_type() == ServiceType::UD
}

/// Whether the queue pair has a peer.
pub(super) fn is_connected(context: &QpContext) -> bool {
    matches!(context.service_type(), ServiceType::RC | ServiceType::UC)
}

const fn provider_state(state: QpState) -> ProviderState {
    match state {
        QpState::INIT => ProviderState::Init,
        QpState::RTR => ProviderState::ReadyToReceive,
        QpState::RTS => ProviderState::ReadyToSend,
        QpState::SQER => ProviderState::SendQueueError,
        QpState::SQD | QpState::SQ_DRAINING => ProviderState::SendQueueDrain,
        QpState::ERR => ProviderState::Error,
        _ => ProviderState::Reset,
    }
}

fn merge_optional(context: &mut QpContext, given: &QpContext, optional: &OptionalFields) {
    if optional.remote_read() {
        context.set_remote_read(given.remote_read());
    }
    if optional.remote_write() {
        context.set_remote_write(given.remote_write());
    }
    if optional.remote_atomic() {
        context.set_remote_atomic(given.remote_atomic());
    }
    if optional.qkey() {
        context.qkey = given.qkey;
    }
    if optional.rnr_timer() {
        context.set_min_rnr_timer(given.min_rnr_timer());
    }
    if optional.initiator_depth() {
        context.set_log_initiator_depth(given.log_initiator_depth());
    }
    if optional.responder_depth() {
        context.set_log_responder_depth(given.log_responder_depth());
    }
    if optional.retry_count() {
        context.set_retry_count(given.retry_count());
    }
    if optional.rnr_retry() {
        context.set_rnr_retry(given.rnr_retry());
    }
    merge_path(&mut context.primary_path, &given.primary_path, optional);
}

fn merge_path(path: &mut QpPath, given: &QpPath, optional: &OptionalFields) {
    if optional.primary_path() {
        *path = QpPath {
            pkey_index_byte: path.pkey_index_byte,
            disable_pkey_check: path.disable_pkey_check,
            ack_timeout_byte: path.ack_timeout_byte,
            counter_index: path.counter_index,
            ..*given
        };
    }
    if optional.pkey_index() {
        path.pkey_index_byte = given.pkey_index_byte;
        path.disable_pkey_check = given.disable_pkey_check;
    }
    if optional.ack_timeout() {
        path.ack_timeout_byte = given.ack_timeout_byte;
    }
    if optional.sched_queue() {
        path.sched_queue = given.sched_queue;
    }
    if optional.counter_index() {
        path.counter_index = given.counter_index;
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::{Psn, QKey};

    use mlx4_defs::Pdn;

    use super::*;

    fn optional(set: impl FnOnce(&mut OptionalFields)) -> OptionalFields {
        let mut optional = OptionalFields::default();
        set(&mut optional);
        optional
    }

    #[test]
    fn a_transition_keeps_what_the_driver_does_not_give() {
        let mut given = QpContext {
            qkey: QKey::new(0x1234),
            ..QpContext::default()
        };
        given.set_service_type(ServiceType::UD);
        given.set_pd(Pdn(7));
        given.primary_path.set_pkey_index(3);
        let both = optional(|o| {
            o.set_qkey(true);
            o.set_pkey_index(true);
        });
        let init = Transition::RstToInit.merge(&QpContext::default(), &given, &both);
        assert_eq!(
            (init.state(), init.pd(), init.qkey),
            (QpState::INIT, Pdn(7), given.qkey)
        );

        let mut fresh = QpContext::default();
        fresh.primary_path.sched_queue = 0x83 | 1 << 6;
        let rtr = Transition::InitToRtr.merge(&init, &fresh, &OptionalFields::default());
        assert_eq!((rtr.qkey, rtr.primary_path.pkey_index()), (given.qkey, 3));
        assert_eq!(port(&rtr.primary_path), PortNum(2));

        fresh.next_send_psn = Psn::from_low_bits(9);
        fresh.qkey = QKey::new(5);
        let rts = Transition::RtrToRts.merge(&rtr, &fresh, &OptionalFields::default());
        assert_eq!((rts.state(), rts.qkey), (QpState::RTS, given.qkey));
        assert_eq!(rts.next_send_psn, fresh.next_send_psn);
        assert_eq!(rts.primary_path.counter_index, SINK_COUNTER, "it has none");
        let key = optional(|o| o.set_qkey(true));
        assert_eq!(
            Transition::RtsToRts.merge(&rts, &fresh, &key).qkey,
            fresh.qkey
        );
    }

    #[test]
    fn a_primary_path_comes_without_its_partition_and_timeout() {
        let mut old = QpContext::default();
        old.primary_path.set_pkey_index(3);
        old.primary_path.set_ack_timeout(14);
        let mut given = QpContext::default();
        given.primary_path.set_pkey_index(9);
        given.primary_path.hop_limit = 64;
        let path = optional(|o| o.set_primary_path(true));
        let merged = Transition::SqdToSqd.merge(&old, &given, &path).primary_path;
        assert_eq!((merged.pkey_index(), merged.ack_timeout()), (3, 14));
        assert_eq!(merged.hop_limit, 64);
    }

    #[test]
    fn a_transition_starts_in_its_state_only() {
        let states = (0..8).map(QpState::new);
        for (transition, starts) in [
            (Transition::RstToInit, 0b000_0001),
            (Transition::InitToRtr, 0b000_0010),
            (Transition::RtrToRts, 0b000_0100),
            (Transition::RtsToSqd, 0b000_1000),
            (Transition::SqerToRts, 0b001_0000),
            (Transition::SqdToSqd, 0b010_0000),
            (Transition::ToErr, 0b1111_1110),
        ] {
            for state in states.clone() {
                let expected = starts >> state.get() & 1 == 1;
                assert_eq!(
                    transition.starts_in(state),
                    expected,
                    "{transition:?} {state:?}"
                );
            }
        }
    }

    #[test]
    fn the_provider_is_asked_for_what_the_transition_gives() {
        let mut context = QpContext {
            qkey: QKey::new(0x1234),
            ..QpContext::default()
        };
        context.primary_path.set_pkey_index(3);
        let none = OptionalFields::default();
        let init = Transition::RstToInit.change(&context, &none, false, false);
        assert_eq!(init.port, Some(PortNum(1)));
        assert_eq!(
            (init.pkey_index, init.qkey),
            (Some(PKeyIndex(3)), Some(context.qkey))
        );
        let proxy = Transition::RstToInit.change(&context, &none, false, true);
        assert_eq!((proxy.port, proxy.qkey), (None, None));
        let rts = Transition::RtrToRts.change(&context, &none, true, false);
        assert_eq!(
            (rts.sq_psn, rts.qkey, rts.drain_event),
            (Some(Psn::default()), None, false)
        );
        let all = OptionalFields {
            word: u32::MAX.into(),
        };
        let error = Transition::ToErr.change(&context, &all, false, false);
        assert_eq!((error.pkey_index, error.qkey), (None, None));
    }
}
