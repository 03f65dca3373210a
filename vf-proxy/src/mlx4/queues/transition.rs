//! The transitions of a queue pair: from which state to which, what of the driver's context each of them
//! takes, and what the provider is asked for.
//!
//! The driver fills in a fresh context for each transition, so whatever the transition does not take is
//! zero and says nothing.

use hca_api::{AccessFlags, AddressVector, GlobalRoute, QpModify, QpState as ProviderState};
use ib_wire::{GidIndex, PKeyIndex, PortNum};
use mlx4_defs::qp::{OptionalFields, PathMigration, QpContext, QpPath, QpState};

use super::super::capability::SINK_COUNTER;
use super::transport::Transport;
use super::wqe::static_rate;

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
                // Without path migration the only path is the one in use, whatever the driver prepares.
                context.set_path_migration(PathMigration::MIGRATED);
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

    /// The change of a queue pair at the provider; `context` is what it will be.
    pub(super) fn change(
        self,
        transport: Transport,
        context: &QpContext,
        optional: &OptionalFields,
        drained_event: bool,
    ) -> QpModify {
        let change = match transport {
            Transport::Datagram => self.datagram_change(context, optional),
            // Port and key of a tunnel are the provider's.
            Transport::Tunnel => QpModify {
                port: None,
                qkey: None,
                ..self.datagram_change(context, optional)
            },
            Transport::Rc => self.reliable_change(context, optional),
            Transport::Uc => self.connected_change(context, optional),
        };
        QpModify {
            state: Some(provider_state(self.target())),
            drain_event: drained_event && self == Self::RtsToSqd,
            ..change
        }
    }

    /// Returns `true` if an attribute is taken: with `always` in any case, with `also` where the driver gives it.
    fn takes(self, always: Self, given: bool, also: &[Self]) -> bool {
        self == always || (given && also.contains(&self))
    }

    fn datagram_change(self, context: &QpContext, optional: &OptionalFields) -> QpModify {
        let first = self == Self::RstToInit;
        let path = &context.primary_path;
        let pkey = first || optional.pkey_index();
        let qkey = first || optional.qkey();
        let takes_attributes = self != Self::ToErr;
        QpModify {
            port: first.then(|| port(path)),
            pkey_index: (takes_attributes && pkey).then(|| pkey_index(path)),
            qkey: (takes_attributes && qkey).then_some(context.qkey),
            sq_psn: (self == Self::RtrToRts).then_some(context.next_send_psn),
            ..QpModify::default()
        }
    }

    /// The attributes that RC and UC have in common.
    fn connected_change(self, context: &QpContext, optional: &OptionalFields) -> QpModify {
        use Transition::{
            InitToInit, InitToRtr, RstToInit, RtrToRts, RtsToRts, SqdToRts, SqdToSqd,
        };

        let path = &context.primary_path;
        let rights = optional.remote_read() || optional.remote_write() || optional.remote_atomic();
        let takes_port = self.takes(RstToInit, optional.sched_queue(), &[InitToInit]);
        let partition = [InitToInit, InitToRtr, SqdToSqd];
        let takes_pkey = self.takes(RstToInit, optional.pkey_index(), &partition);
        let later = [
            InitToInit, InitToRtr, RtrToRts, RtsToRts, SqdToRts, SqdToSqd,
        ];
        let takes_access = self.takes(RstToInit, rights, &later);
        let takes_path = self.takes(InitToRtr, optional.primary_path(), &[SqdToSqd]);
        let meets = self == InitToRtr;
        QpModify {
            port: takes_port.then(|| port(path)),
            pkey_index: takes_pkey.then(|| pkey_index(path)),
            access: takes_access.then(|| access(context)),
            primary: takes_path.then(|| address_vector(path)),
            path_mtu: meets.then(|| context.mtu()),
            dest_qpn: meets.then_some(context.remote_qpn),
            rq_psn: meets.then_some(context.next_receive_psn),
            sq_psn: (self == RtrToRts).then_some(context.next_send_psn),
            ..QpModify::default()
        }
    }

    /// The attributes of RC: besides, those of acknowledgements, retries and reads.
    fn reliable_change(self, context: &QpContext, optional: &OptionalFields) -> QpModify {
        use Transition::{InitToRtr, RtrToRts, RtsToRts, SqdToRts, SqdToSqd};

        let answers = self.takes(InitToRtr, optional.responder_depth(), &[SqdToSqd]);
        let later = [RtrToRts, RtsToRts, SqdToRts, SqdToSqd];
        let waits = self.takes(InitToRtr, optional.rnr_timer(), &later);
        let asks = |given| self.takes(RtrToRts, given, &[SqdToSqd]);
        let connected = self.connected_change(context, optional);
        let moves = self == SqdToSqd && optional.sched_queue();
        QpModify {
            port: connected
                .port
                .or_else(|| moves.then(|| port(&context.primary_path))),
            max_dest_rd_atomic: answers.then(|| 1 << context.log_responder_depth()),
            min_rnr_timer: waits.then(|| context.min_rnr_timer()),
            timeout: asks(optional.ack_timeout()).then(|| context.primary_path.ack_timeout()),
            retry_count: asks(optional.retry_count()).then(|| context.retry_count()),
            rnr_retry: asks(optional.rnr_retry()).then(|| context.rnr_retry()),
            max_rd_atomic: asks(optional.initiator_depth())
                .then(|| 1 << context.log_initiator_depth()),
            ..connected
        }
    }
}

/// The port of a path.
pub(super) fn port(path: &QpPath) -> PortNum {
    PortNum(1 + u8::from(path.port_bit()))
}

fn pkey_index(path: &QpPath) -> PKeyIndex {
    PKeyIndex(path.pkey_index().into())
}

/// The peer's rights to regions that permit them.
fn access(context: &QpContext) -> AccessFlags {
    let mut access = AccessFlags::empty();
    access.set(AccessFlags::REMOTE_READ, context.remote_read());
    access.set(AccessFlags::REMOTE_WRITE, context.remote_write());
    access.set(AccessFlags::REMOTE_ATOMIC, context.remote_atomic());
    access
}

fn address_vector(path: &QpPath) -> AddressVector {
    AddressVector {
        port: port(path),
        dlid: path.dlid,
        sl: path.sl(),
        path_bits: path.path_bits(),
        static_rate: static_rate(path.static_rate),
        grh: path.grh().then(|| GlobalRoute {
            remote_gid: path.dgid,
            sgid_index: GidIndex(path.sgid_index.into()),
            flow_label: path.flow_label(),
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class(),
        }),
    }
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
    if optional.alternate_path() {
        context.alternate_path = given.alternate_path;
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
    use mlx4_defs::qp::ServiceType;

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
        let init = Transition::RstToInit.change(Transport::Datagram, &context, &none, false);
        assert_eq!(init.port, Some(PortNum(1)));
        assert_eq!(
            (init.pkey_index, init.qkey),
            (Some(PKeyIndex(3)), Some(context.qkey))
        );
        let proxy = Transition::RstToInit.change(Transport::Tunnel, &context, &none, false);
        assert_eq!((proxy.port, proxy.qkey), (None, None));
        let rts = Transition::RtrToRts.change(Transport::Datagram, &context, &none, true);
        assert_eq!(
            (rts.sq_psn, rts.qkey, rts.drain_event),
            (Some(Psn::default()), None, false)
        );
        let all = OptionalFields {
            word: u32::MAX.into(),
        };
        let error = Transition::ToErr.change(Transport::Datagram, &context, &all, false);
        assert_eq!((error.pkey_index, error.qkey), (None, None));
    }

    /// What Linux gives for a reliable connection, transition by transition, is what the provider has to have.
    #[test]
    fn a_connection_gets_what_each_transition_requires_and_what_the_driver_gives_besides() {
        let mut context = QpContext {
            remote_qpn: ib_wire::Qpn::from_low_bits(0x4a1),
            next_receive_psn: Psn::from_low_bits(7),
            next_send_psn: Psn::from_low_bits(9),
            ..QpContext::default()
        };
        context.set_mtu(ib_wire::Mtu::MTU_1024);
        context.set_remote_write(true);
        context.set_log_responder_depth(4);
        context.set_log_initiator_depth(2);
        context.set_min_rnr_timer(12);
        context.set_retry_count(6);
        context.set_rnr_retry(7);
        context.primary_path.set_ack_timeout(14);
        context.primary_path.dlid = ib_wire::Lid::new(3);
        let none = OptionalFields::default();
        let of = |transition: Transition, transport, optional: &OptionalFields| {
            transition.change(transport, &context, optional, false)
        };
        let init = of(Transition::RstToInit, Transport::Rc, &none);
        assert_eq!(init.access, Some(AccessFlags::REMOTE_WRITE));
        assert_eq!((init.port, init.qkey), (Some(PortNum(1)), None));
        let rtr = of(Transition::InitToRtr, Transport::Rc, &none);
        assert_eq!(rtr.primary.unwrap().dlid, ib_wire::Lid::new(3));
        assert_eq!(rtr.rq_psn, Some(Psn::from_low_bits(7)));
        assert_eq!(
            (rtr.max_dest_rd_atomic, rtr.min_rnr_timer),
            (Some(16), Some(12))
        );
        assert_eq!((rtr.access, rtr.pkey_index, rtr.port), (None, None, None));
        let rights = optional(|o| o.set_remote_read(true));
        assert!(
            of(Transition::InitToRtr, Transport::Rc, &rights)
                .access
                .is_some()
        );
        let rts = of(Transition::RtrToRts, Transport::Rc, &none);
        assert_eq!((rts.timeout, rts.retry_count), (Some(14), Some(6)));
        assert_eq!((rts.rnr_retry, rts.max_rd_atomic), (Some(7), Some(4)));
        let uc = of(Transition::RtrToRts, Transport::Uc, &none);
        assert_eq!((uc.timeout, uc.sq_psn), (None, Some(Psn::from_low_bits(9))));
        let all = OptionalFields {
            word: u32::MAX.into(),
        };
        assert_eq!(
            of(Transition::ToErr, Transport::Rc, &all),
            QpModify {
                state: Some(ProviderState::Error),
                ..QpModify::default()
            }
        );
    }
}
