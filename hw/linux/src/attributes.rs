//! Attributes of objects as libibverbs has them.

use std::io;

use hca_api::{
    AccessFlags, AddressVector, Cause, CompletionFlags, CompletionOp, CompletionStatus,
    GlobalRoute, HcaError, MigrationState, QpAttributes, QpCaps, QpKind, QpModify, QpNumbers,
    QpState, Sge,
};
use ib_wire::{Gid, GidIndex, Lid, Mtu, PKeyIndex, PortNum, Psn, QKey, Qpn, Rate, Sl};

use crate::sys::abi::{self, AhAttr, GlobalRoute as Route, QpAttr, QpCap, attr_mask, wc_flags};

/// The function's one port, whichever of the HCA's it is.
pub const PORT: PortNum = PortNum(1);

/// Returns why the host refused an object or a change.
pub(crate) fn refused(error: &io::Error) -> HcaError {
    match error.raw_os_error() {
        Some(libc::ENOMEM | libc::ENOSPC | libc::EAGAIN) => HcaError::InsufficientResources,
        Some(libc::EPERM | libc::EACCES) => HcaError::PermissionDenied,
        Some(libc::EBUSY) => HcaError::InUse,
        Some(libc::EOPNOTSUPP | libc::ENOSYS) => HcaError::Unsupported,
        Some(libc::EIO | libc::ENODEV) => HcaError::DeviceFailed,
        _ => HcaError::InvalidParameter,
    }
}

/// Returns why the host refused a request.
pub(crate) fn refused_request(error: &io::Error) -> HcaError {
    match refused(error) {
        HcaError::InsufficientResources => HcaError::QueueFull,
        other => other,
    }
}

/// Returns rights as `enum ibv_access_flags`, which has other bits behind the first six.
pub(crate) fn access_flags(access: AccessFlags) -> i32 {
    let behind = AccessFlags::REMOTE_INVALIDATE
        .union(AccessFlags::FLUSH_GLOBAL)
        .union(AccessFlags::FLUSH_PERSISTENT);
    (access - behind).bits().into()
}

impl From<&Sge> for abi::Sge {
    fn from(sge: &Sge) -> Self {
        Self {
            addr: sge.addr,
            length: sge.len,
            lkey: sge.lkey.0,
        }
    }
}

/// Returns the number of a type of queue pairs (`enum ibv_qp_type`); `None` for types that user space cannot have.
pub(crate) const fn qp_type(kind: QpKind) -> Option<u32> {
    match kind {
        QpKind::Rc => Some(2),
        QpKind::Uc => Some(3),
        QpKind::Ud => Some(4),
        _ => None,
    }
}

pub(crate) const fn host_caps(caps: &QpCaps) -> QpCap {
    QpCap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline_data: caps.max_inline,
    }
}

pub(crate) const fn caps(caps: &QpCap) -> QpCaps {
    QpCaps {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: caps.max_send_sge,
        max_recv_sge: caps.max_recv_sge,
        max_inline: caps.max_inline_data,
    }
}

/// Returns an address for a port of the host.
pub(crate) fn host_address(port: u8, vector: &AddressVector) -> Result<AhAttr, HcaError> {
    let mut address = AhAttr {
        dlid: vector.dlid.get(),
        sl: vector.sl.get(),
        src_path_bits: vector.path_bits,
        static_rate: vector.static_rate.map_or(0, Rate::get),
        port_num: port,
        ..AhAttr::default()
    };
    if let Some(route) = &vector.grh {
        let index = u8::try_from(route.sgid_index.0);
        address.is_global = 1;
        address.grh = Route {
            dgid: route.remote_gid.0,
            flow_label: route.flow_label,
            sgid_index: index.map_err(|_| HcaError::InvalidIndex)?,
            hop_limit: route.hop_limit,
            traffic_class: route.traffic_class,
        };
    }
    Ok(address)
}

/// Returns an address of the host, `None` if it is empty.
fn address(from: &AhAttr) -> Option<AddressVector> {
    let route = GlobalRoute {
        remote_gid: Gid(from.grh.dgid),
        sgid_index: GidIndex(from.grh.sgid_index.into()),
        flow_label: from.grh.flow_label,
        hop_limit: from.grh.hop_limit,
        traffic_class: from.grh.traffic_class,
    };
    let is_global = from.is_global != 0;
    (is_global || from.dlid != 0).then_some(AddressVector {
        port: PORT,
        dlid: Lid::new(from.dlid),
        sl: Sl::from_low_bits(from.sl),
        path_bits: from.src_path_bits,
        static_rate: (from.static_rate != 0).then_some(Rate::new(from.static_rate)),
        grh: is_global.then_some(route),
    })
}

/// Returns the number of a state (`enum ibv_qp_state`).
const fn host_state(state: QpState) -> u32 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::ReadyToReceive => 2,
        QpState::ReadyToSend => 3,
        QpState::SendQueueDrain => 4,
        QpState::SendQueueError => 5,
        QpState::Error => 6,
    }
}

const fn state(number: u32) -> QpState {
    match number {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::ReadyToReceive,
        3 => QpState::ReadyToSend,
        4 => QpState::SendQueueDrain,
        5 => QpState::SendQueueError,
        _ => QpState::Error,
    }
}

/// Returns a change of a queue pair on a port of the host, and the mask of attributes in it.
///
/// # Errors
/// [`HcaError::InvalidPort`], [`HcaError::InvalidIndex`]; [`HcaError::Unsupported`] for alternate paths.
pub(crate) fn host_change(port: u8, change: &QpModify) -> Result<(QpAttr, i32), HcaError> {
    if change.alternate.is_some()
        || change
            .migration
            .is_some_and(|to| to != MigrationState::Migrated)
    {
        return Err(HcaError::Unsupported);
    }
    if change.block_multicast_loopback == Some(true) {
        return Err(HcaError::Unsupported);
    }
    let ports = change.primary.map(|path| path.port);
    if [change.port, ports]
        .into_iter()
        .flatten()
        .any(|asked| asked != PORT)
    {
        return Err(HcaError::InvalidPort);
    }
    let mut attributes = QpAttr::default();
    let mut mask = 0;
    macro_rules! given {
        ($($from:ident => $to:ident = $value:expr, $bit:ident;)*) => {
            $(if let Some(given) = change.$from {
                attributes.$to = $value(given);
                mask |= attr_mask::$bit;
            })*
        };
    }
    given! {
        state => qp_state = host_state, STATE;
        current_state => cur_qp_state = host_state, CUR_STATE;
        port => port_num = |_| port, PORT;
        pkey_index => pkey_index = |index: PKeyIndex| index.0, PKEY_INDEX;
        qkey => qkey = QKey::get, QKEY;
        access => qp_access_flags = |access| access_flags(access).cast_unsigned(), ACCESS_FLAGS;
        path_mtu => path_mtu = |mtu: Mtu| mtu.get().into(), PATH_MTU;
        dest_qpn => dest_qp_num = Qpn::get, DEST_QPN;
        rq_psn => rq_psn = Psn::get, RQ_PSN;
        sq_psn => sq_psn = Psn::get, SQ_PSN;
        timeout => timeout = core::convert::identity, TIMEOUT;
        retry_count => retry_cnt = core::convert::identity, RETRY_CNT;
        rnr_retry => rnr_retry = core::convert::identity, RNR_RETRY;
        min_rnr_timer => min_rnr_timer = core::convert::identity, MIN_RNR_TIMER;
        max_rd_atomic => max_rd_atomic = core::convert::identity, MAX_QP_RD_ATOMIC;
        max_dest_rd_atomic => max_dest_rd_atomic = core::convert::identity, MAX_DEST_RD_ATOMIC;
    }
    if let Some(path) = &change.primary {
        attributes.ah_attr = host_address(port, path)?;
        mask |= attr_mask::AV;
    }
    if change.drain_event {
        attributes.en_sqd_async_notify = 1;
        mask |= attr_mask::EN_SQD_ASYNC_NOTIFY;
    }
    Ok((attributes, mask))
}

/// Returns a queue pair of the host as it stands.
pub(crate) fn attributes(
    (kind, number, caps): (QpKind, Qpn, QpCaps),
    from: &QpAttr,
) -> QpAttributes {
    let primary = address(&from.ah_attr).filter(|_| !kind.is_datagram());
    let access = u16::try_from(from.qp_access_flags & 0x3f).unwrap_or(0);
    QpAttributes {
        kind,
        numbers: QpNumbers {
            external: number,
            real: number,
        },
        state: state(from.qp_state),
        caps,
        port: (from.port_num != 0).then_some(PORT),
        pkey_index: PKeyIndex(from.pkey_index),
        qkey: QKey::new(from.qkey),
        sq_psn: Psn::from_low_bits(from.sq_psn),
        rq_psn: Psn::from_low_bits(from.rq_psn),
        dest_qpn: Qpn::from_low_bits(from.dest_qp_num),
        dest_lid: primary.map_or(Lid::NONE, |path| path.dlid),
        primary,
        path_mtu: Mtu::new(u8::try_from(from.path_mtu).unwrap_or(0)),
        access: AccessFlags::from_bits_truncate(access),
        timeout: from.timeout,
        retry_count: from.retry_cnt,
        rnr_retry: from.rnr_retry,
        min_rnr_timer: from.min_rnr_timer,
        max_rd_atomic: from.max_rd_atomic,
        max_dest_rd_atomic: from.max_dest_rd_atomic,
        draining: from.sq_draining != 0,
        migration: MigrationState::Migrated,
    }
}

/// Returns the status of a completion (`enum ibv_wc_status`). Of the check that failed the host says nothing that is the same for
/// all providers: the cause is the usual one of its status.
pub(crate) const fn status(number: u32, op: CompletionOp) -> (CompletionStatus, Cause) {
    use CompletionStatus as Status;

    let is_received = matches!(op, CompletionOp::Recv | CompletionOp::RecvRdmaImm);
    match number {
        0 => (Status::Success, Cause::None),
        1 if is_received => (Status::LocalLength, Cause::ReceiveTooShort),
        1 => (Status::LocalLength, Cause::TooLong),
        2 | 3 => (Status::LocalQpOperation, Cause::BadRequest),
        4 => (Status::LocalProtection, Cause::NoSuchKey),
        5 => (Status::Flushed, Cause::None),
        6 => (Status::MwBind, Cause::BadRegistration),
        7 => (Status::BadResponse, Cause::BadAnswer),
        8 => (Status::LocalAccess, Cause::NoRight),
        9 => (Status::RemoteInvalidRequest, Cause::Refused),
        10 => (Status::RemoteAccess, Cause::Refused),
        11 => (Status::RemoteOperation, Cause::Refused),
        12 | 20 => (Status::RetryExceeded, Cause::Retries),
        13 => (Status::RnrRetryExceeded, Cause::RnrRetries),
        _ => (Status::Aborted, Cause::BadMessage),
    }
}

/// Returns facts about a received message (`enum ibv_wc_flags`).
pub(crate) fn completion_flags(flags: u32) -> CompletionFlags {
    let mut facts = CompletionFlags::empty();
    facts.set(CompletionFlags::GRH, flags & wc_flags::GRH != 0);
    facts.set(CompletionFlags::IMMEDIATE, flags & wc_flags::WITH_IMM != 0);
    let is_invalidated = flags & wc_flags::WITH_INV != 0;
    facts.set(CompletionFlags::INVALIDATED, is_invalidated);
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_goes_to_the_host_and_comes_back_in_its_attributes() {
        let route = GlobalRoute {
            remote_gid: Gid([7; 16]),
            sgid_index: GidIndex(3),
            flow_label: 5,
            hop_limit: 64,
            traffic_class: 9,
        };
        let path = AddressVector {
            port: PORT,
            dlid: Lid::new(12),
            sl: Sl::from_low_bits(2),
            path_bits: 1,
            static_rate: Some(Rate::GBPS_10),
            grh: Some(route),
        };
        let change = QpModify {
            state: Some(QpState::ReadyToReceive),
            port: Some(PORT),
            primary: Some(path),
            access: Some(AccessFlags::REMOTE_READ | AccessFlags::REMOTE_INVALIDATE),
            path_mtu: Some(Mtu::MTU_1024),
            dest_qpn: Some(Qpn::from_low_bits(77)),
            min_rnr_timer: Some(14),
            ..QpModify::default()
        };
        let (host, mask) = host_change(2, &change).unwrap();
        let expected = attr_mask::STATE
            | attr_mask::PORT
            | attr_mask::AV
            | attr_mask::ACCESS_FLAGS
            | attr_mask::PATH_MTU
            | attr_mask::DEST_QPN
            | attr_mask::MIN_RNR_TIMER;
        assert_eq!(mask, expected);
        assert_eq!((host.port_num, host.ah_attr.port_num), (2, 2));
        assert_eq!(host.qp_access_flags, 4, "not on demand");
        let shown = attributes((QpKind::Rc, Qpn::GSI, caps(&QpCap::default())), &host);
        assert_eq!(
            (shown.state, shown.primary),
            (QpState::ReadyToReceive, Some(path))
        );
        assert_eq!((shown.path_mtu, shown.min_rnr_timer), (Mtu::MTU_1024, 14));
        assert_eq!((shown.port, shown.dest_lid), (Some(PORT), Lid::new(12)));
    }

    #[test]
    fn changes_that_user_space_cannot_make_are_refused() {
        let other_port = QpModify {
            port: Some(PortNum(2)),
            ..QpModify::default()
        };
        assert_eq!(
            host_change(2, &other_port).err(),
            Some(HcaError::InvalidPort)
        );
        let migration = QpModify {
            migration: Some(MigrationState::Rearm),
            ..QpModify::default()
        };
        assert_eq!(
            host_change(1, &migration).err(),
            Some(HcaError::Unsupported)
        );
        let far = GlobalRoute {
            remote_gid: Gid::NONE,
            sgid_index: GidIndex(256),
            flow_label: 0,
            hop_limit: 0,
            traffic_class: 0,
        };
        let vector = AddressVector {
            port: PORT,
            dlid: Lid::NONE,
            sl: Sl::default(),
            path_bits: 0,
            static_rate: None,
            grh: Some(far),
        };
        assert_eq!(host_address(1, &vector).err(), Some(HcaError::InvalidIndex));
    }
}
