//! Making, changing and destroying queue pairs.

use hca_api::{
    AsyncEvent, FunctionId, HcaError, Privileges, QpHandle, QpKind, QpModify, QpNumbers, QpSpec,
    QpState, ReceiveMode, SpecialQp,
};
use hca_functions::{EventSource, next_state};
use ib_wire::{Gid, Lid, Mtu, PKeyIndex, PortNum, QKey, Qpn};

use super::connected::Connected;
use super::function::{FunctionState, slot};
use super::management::limits;
use super::qp::{Qp, check_caps, fixed_port};
use super::qpn::QpRef;
use super::{Device, DropReason, LIMITS};

/// Queue pairs of overrun completion queues that a call moves to ERR.
const AT_A_TIME: usize = 64;

impl Device {
    pub(super) fn create_qp(
        &mut self,
        function: FunctionId,
        spec: QpSpec,
    ) -> Result<(QpHandle, QpNumbers), HcaError> {
        let state = self.state(function)?;
        check_objects(state, &spec)?;
        state.check_quota(|r| r.qps)?;
        self.check_kind(function, &spec.kind)?;
        let at = QpRef {
            function,
            index: slot(self.state(function)?.qps.vacant_key())?,
        };
        let numbers = self.number(at, &spec)?;
        let kind = spec.kind;
        let state = self.state_mut(function)?;
        if spec.qpn.is_some() {
            state.reserved_qpns = state.reserved_qpns.saturating_sub(1);
        }
        state.hold_pd(spec.pd);
        for cq in [spec.send_cq, spec.recv_cq] {
            state.cq_mut(cq)?.users += 1;
        }
        if let Some(srq) = spec.srq {
            state.srq_mut(srq)?.users += 1;
        }
        state.qps.insert(Qp::new(spec, numbers));
        self.bind_kind(&kind, function, Some(at.index));
        Ok((at.handle(), numbers))
    }

    pub(super) fn modify_qp(
        &mut self,
        function: FunctionId,
        handle: QpHandle,
        change: &QpModify,
    ) -> Result<(), HcaError> {
        if let Some(block) = change.block_multicast_loopback {
            let rest = QpModify {
                block_multicast_loopback: None,
                ..*change
            };
            // On its own it is no transition.
            if rest != QpModify::default() {
                self.modify_qp(function, handle, &rest)?;
            }
            self.state_mut(function)?
                .qp_mut(handle)?
                .block_multicast_loopback = block;
            return Ok(());
        }
        let state = self.state(function)?;
        let qp = state.qp(handle)?;
        let from = qp.state;
        let to = next_state(&qp.kind, from, change)?;
        self.check_attributes(state, qp, change)?;
        let at = QpRef::new(function, handle);
        let state = self.state_mut(function)?;
        let qp = state.qp_mut(handle)?;
        apply(qp, change);
        match (from, to) {
            (_, QpState::Reset) => {
                qp.reset();
                self.disarm(at);
                return Ok(());
            }
            (_, QpState::Error) => {
                self.fail(at)?;
                self.fail_overrun(function);
                return Ok(());
            }
            _ => qp.state = to,
        }
        if qp.connected().is_some() {
            return self.follow_transition(at, from, change);
        }
        match (from, to) {
            (QpState::ReadyToSend, QpState::SendQueueDrain) if change.drain_event => {
                // What has begun is done: a send takes no time. What has not begun waits.
                state.events.raise(AsyncEvent::SendQueueDrained(handle));
            }
            (_, QpState::ReadyToSend) => {
                let port = qp.port;
                self.join_backlog(at);
                if let Some(port) = port {
                    self.serve_backlog(port);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Moves queue pairs of completion queues that overran to ERR, some with each call: a function may have thousands, and
    /// the next completion of each takes it to ERR as well.
    pub(super) fn fail_overrun(&mut self, function: FunctionId) {
        for _ in 0..AT_A_TIME {
            let Ok(state) = self.state_mut(function) else {
                return;
            };
            let Some(handle) = state.overrun.pop() else {
                return;
            };
            let failed = |qp: &Qp| matches!(qp.state, QpState::Error | QpState::Reset);
            if state.qp(handle).is_ok_and(|qp| !failed(qp)) {
                state.events.raise(AsyncEvent::QpFatal(handle));
                let moved = self.fail(QpRef::new(function, handle));
                debug_assert_eq!(moved, Ok(()), "it is there");
            }
        }
    }

    /// Moves a queue pair to ERR: everything posted completes as flushed, of a source's receives a bounded number.
    fn fail(&mut self, at: QpRef) -> Result<(), HcaError> {
        let before = self.state(at.function)?.qp(at.handle())?.state;
        self.abort_connected(at);
        let state = self.state_mut(at.function)?;
        // A machine that ends takes its queue pair along.
        if before == QpState::Error || state.qp(at.handle())?.state != QpState::Error {
            state.enter_error(at.index);
        }
        Ok(())
    }

    pub(super) fn destroy_qp(
        &mut self,
        function: FunctionId,
        handle: QpHandle,
    ) -> Result<(), HcaError> {
        let state = self.state_mut(function)?;
        let qp = state.qp(handle)?;
        if qp.attachments != 0 {
            return Err(HcaError::InUse);
        }
        // In the reset state nothing is posted (IBA 10.3.1.1), whatever stands in a source's memory.
        let at = QpRef::new(function, handle);
        if qp.state != QpState::Reset {
            self.fail(at)?;
        }
        self.disarm(at);
        let state = self.state_mut(function)?;
        let qp = state.qps.remove(handle.0 as usize);
        state.release_pd(qp.pd);
        state.memory.free_windows_of(handle);
        for cq in [qp.send_cq, qp.recv_cq] {
            if let Ok(cq) = state.cq_mut(cq) {
                cq.users -= 1;
            }
        }
        if let Some(Ok(srq)) = qp.srq.map(|srq| state.srq_mut(srq)) {
            srq.users -= 1;
        }
        state.events.forget(EventSource::Qp(handle));
        state.overrun.retain(|other| *other != handle);
        if qp.in_backlog {
            self.leave_backlog(at);
        }
        self.bind_kind(&qp.kind, function, None);
        if self.qpns.unassign(qp.numbers.real) {
            self.state_mut(function)?.reserved_qpns += 1;
        }
        Ok(())
    }

    /// Checks what a kind of queue pair asks of its function (IBA 11.2.4.1 for special ones).
    fn check_kind(&self, function: FunctionId, kind: &QpKind) -> Result<(), HcaError> {
        let state = self.state(function)?;
        let taken = match *kind {
            QpKind::Rc | QpKind::Uc | QpKind::Ud => return Ok(()),
            QpKind::Special { special, port } => {
                if !state.has(Privileges::SPECIAL_QP) {
                    return Err(HcaError::PermissionDenied);
                }
                let own = state.port(port).ok_or(HcaError::InvalidPort)?;
                own.special(special).is_some()
            }
            QpKind::Proxy { special, port } => {
                let own = state.port(port).ok_or(HcaError::InvalidPort)?;
                // The physical function has the real ones.
                if state.has(Privileges::SPECIAL_QP) {
                    return Err(HcaError::InvalidParameter);
                }
                own.special(special).is_some()
            }
            QpKind::Tunnel {
                function: vf,
                special,
                port,
            } => {
                if !state.has(Privileges::MANAGE_FUNCTIONS) {
                    return Err(HcaError::PermissionDenied);
                }
                if vf == FunctionId::PF || self.state(vf).is_err() {
                    return Err(HcaError::InvalidParameter);
                }
                state.port(port).ok_or(HcaError::InvalidPort)?;
                self.tunnel(vf, special, port).is_some()
            }
        };
        if taken {
            Err(HcaError::SpecialQpTaken)
        } else {
            Ok(())
        }
    }

    /// Gives a new queue pair its numbers.
    fn number(&mut self, at: QpRef, spec: &QpSpec) -> Result<QpNumbers, HcaError> {
        if let QpKind::Special { special, .. } = spec.kind {
            if spec.qpn.is_some() {
                return Err(HcaError::InvalidParameter);
            }
            return Ok(QpNumbers {
                external: special.wire_qpn(),
                real: special.wire_qpn(),
            });
        }
        let real = self.qpns.assign(at, spec.qpn)?;
        let external = match spec.kind {
            QpKind::Proxy { special, .. } => special.wire_qpn(),
            _ => real,
        };
        Ok(QpNumbers { external, real })
    }

    /// Notes which queue pair is a port's special one, or an end of a tunnel.
    fn bind_kind(&mut self, kind: &QpKind, function: FunctionId, index: Option<u32>) {
        match *kind {
            QpKind::Special { special, port } | QpKind::Proxy { special, port } => {
                if let Some(own) = self
                    .state_mut(function)
                    .ok()
                    .and_then(|state| state.port_mut(port))
                {
                    own.set_special(special, index);
                }
            }
            QpKind::Tunnel {
                function: vf,
                special,
                port,
            } => {
                let slot = self.tunnel_slot(vf, special, port);
                if self.tunnels.len() <= slot {
                    self.tunnels.resize(slot + 1, None);
                }
                self.tunnels[slot] = index;
            }
            QpKind::Ud | QpKind::Rc | QpKind::Uc => {}
        }
    }

    fn tunnel_slot(&self, vf: FunctionId, special: SpecialQp, port: PortNum) -> usize {
        let ports = self.egress.len();
        (usize::from(vf.0) * ports + port.index().saturating_sub(1)) * 2 + special as usize
    }

    /// The physical function's end of a tunnel.
    fn tunnel(&self, vf: FunctionId, special: SpecialQp, port: PortNum) -> Option<u32> {
        *self.tunnels.get(self.tunnel_slot(vf, special, port))?
    }

    /// The other end of a tunnel: the queue pair, the number that it knows this end by, and the
    /// port.
    pub(super) fn tunnel_peer(&self, at: QpRef) -> Result<(QpRef, Qpn, PortNum), DropReason> {
        const NONE: DropReason = DropReason::NoTunnelPeer;

        let qp = self
            .state(at.function)
            .and_then(|state| state.qp(at.handle()))
            .map_err(|_| NONE)?;
        let (vf, special, port) = match qp.kind {
            QpKind::Proxy { special, port } => (at.function, special, port),
            QpKind::Tunnel {
                function,
                special,
                port,
            } => (function, special, port),
            _ => return Err(NONE),
        };
        let vf_port = self
            .state(vf)
            .ok()
            .and_then(|state| state.port(port))
            .ok_or(NONE)?;
        if special == SpecialQp::Smi && !vf_port.view.smi_enabled {
            return Err(NONE);
        }
        let peer = if vf == at.function {
            self.tunnel(vf, special, port).map(|index| QpRef {
                function: FunctionId::PF,
                index,
            })
        } else {
            vf_port.special(special).map(|index| QpRef {
                function: vf,
                index,
            })
        };
        let peer = peer.ok_or(NONE)?;
        let ready = self
            .state(peer.function)
            .and_then(|state| state.qp(peer.handle()))
            .is_ok_and(Qp::can_receive);
        if ready {
            Ok((peer, qp.numbers.real, port))
        } else {
            Err(DropReason::QpNotReady)
        }
    }

    /// Checks the values of a change; whether they belong to the transition is checked before.
    fn check_attributes(
        &self,
        state: &FunctionState,
        qp: &Qp,
        change: &QpModify,
    ) -> Result<(), HcaError> {
        if let Some(port) = change.port {
            let fixed = fixed_port(&qp.kind);
            if state.port(port).is_none() || fixed.is_some_and(|fixed| fixed != port) {
                return Err(HcaError::InvalidPort);
            }
        }
        // The ends of a tunnel are in no partition, and a VF without P_Keys has them all the same.
        if let (Some(index), Some(port)) = (change.pkey_index, change.port.or(qp.port))
            && !qp.is_tunnelled()
        {
            self.check_pkey_index(state, port, index)?;
        }
        let controlled = change.qkey.is_some_and(QKey::is_privileged);
        if controlled && !qp.is_tunnelled() && !state.has(Privileges::CONTROLLED_QKEY) {
            return Err(HcaError::PermissionDenied);
        }
        if qp.connected().is_some() {
            self.check_connection_attributes(qp, change)?;
        }
        Ok(())
    }

    /// Checks the values that only connected queue pairs have.
    fn check_connection_attributes(&self, qp: &Qp, change: &QpModify) -> Result<(), HcaError> {
        let number = change.port.or(qp.port);
        let port = number.and_then(|number| self.node.port(number));
        let is_above = |given: Option<u8>, most| given.is_some_and(|given| given > most);
        if (change.primary).is_some_and(|path| Some(path.port) != number) {
            return Err(HcaError::InvalidPort);
        }
        let fits = |mtu: Mtu| {
            let most = port.and_then(|port| port.mtu_cap.bytes());
            mtu.bytes().is_some_and(|bytes| most >= Some(bytes))
        };
        let misfits = change.path_mtu.is_some_and(|mtu| !fits(mtu))
            || is_above(change.timeout, 31)
            || is_above(change.min_rnr_timer, 31)
            || is_above(change.retry_count, 7)
            || is_above(change.rnr_retry, 7)
            || is_above(change.max_rd_atomic, LIMITS.max_qp_init_rd_atom)
            || is_above(change.max_dest_rd_atomic, LIMITS.max_qp_rd_atom);
        if misfits {
            return Err(HcaError::InvalidParameter);
        }
        // What was begun goes by the attributes that it began with (IBA 10.3.1.5).
        let drains = qp.connected().is_some_and(Connected::is_draining);
        if drains && change.state.is_none_or(|to| to == QpState::SendQueueDrain) {
            return Err(HcaError::InvalidQpState);
        }
        Ok(())
    }

    /// Refuses a P_Key index beyond the function's table.
    pub(super) fn check_pkey_index(
        &self,
        state: &FunctionState,
        port: PortNum,
        index: PKeyIndex,
    ) -> Result<(), HcaError> {
        if usize::from(index.0) < self.pkey_table_len(state, port)? {
            Ok(())
        } else {
            Err(HcaError::InvalidIndex)
        }
    }

    pub(super) fn attach_multicast(
        &mut self,
        function: FunctionId,
        handle: QpHandle,
        mgid: Gid,
        mlid: Lid,
    ) -> Result<(), HcaError> {
        let state = self.state(function)?;
        if state.qp(handle)?.kind != QpKind::Ud {
            return Err(HcaError::InvalidQpKind);
        }
        let at = QpRef::new(function, handle);
        if !self.groups.contains(mgid, mlid, at) {
            state.check_quota(|r| r.attachments)?;
        }
        let limits = limits(self.state(function)?);
        if self.groups.attach(mgid, mlid, at, &limits)? {
            let state = self.state_mut(function)?;
            state.count_attachment();
            state.qp_mut(handle)?.attachments += 1;
        }
        Ok(())
    }

    pub(super) fn detach_multicast(
        &mut self,
        function: FunctionId,
        handle: QpHandle,
        mgid: Gid,
        mlid: Lid,
    ) -> Result<(), HcaError> {
        self.state(function)?.qp(handle)?;
        let at = QpRef::new(function, handle);
        self.groups.detach(mgid, mlid, at)?;
        let state = self.state_mut(function)?;
        state.uncount_attachment();
        state.qp_mut(handle)?.attachments -= 1;
        Ok(())
    }

    pub(super) fn reserve_qpns(
        &mut self,
        function: FunctionId,
        count: u32,
        align: u32,
    ) -> Result<Qpn, HcaError> {
        let state = self.state(function)?;
        let room = state.quota().qps.saturating_sub(state.reserved_qpns);
        if count > room {
            return Err(HcaError::InsufficientResources);
        }
        let first = self.qpns.reserve(function, count, align)?;
        self.state_mut(function)?.reserved_qpns += count;
        Ok(first)
    }

    pub(super) fn release_qpns(
        &mut self,
        function: FunctionId,
        first: Qpn,
        count: u32,
    ) -> Result<(), HcaError> {
        self.qpns.release(function, first, count)?;
        self.state_mut(function)?.reserved_qpns -= count;
        Ok(())
    }
}

/// Checks the objects and sizes that a new queue pair names.
fn check_objects(state: &FunctionState, spec: &QpSpec) -> Result<(), HcaError> {
    state.check_pd(spec.pd)?;
    state.cq(spec.send_cq)?;
    state.cq(spec.recv_cq)?;
    if let Some(srq) = spec.srq {
        state.srq(srq)?;
        if !matches!(spec.receives, ReceiveMode::Posted) {
            return Err(HcaError::InvalidParameter);
        }
    }
    check_caps(&spec.caps, &LIMITS)
}

fn apply(qp: &mut Qp, change: &QpModify) {
    if let Some(port) = change.port {
        qp.port = Some(port);
    }
    if let Some(index) = change.pkey_index {
        qp.pkey_index = index;
    }
    if let (Some(key), false) = (change.qkey, qp.is_tunnelled()) {
        qp.qkey = key;
    }
    if let Some(psn) = change.sq_psn {
        qp.sq_psn = psn;
    }
    if let Some(own) = qp.connected_mut() {
        own.attributes.apply(change);
    }
}
