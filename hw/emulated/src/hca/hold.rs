//! Functions that are held: nothing of their memory is touched, and what comes for them waits.

use hca_api::FunctionId;
use ib_transport::Transfer;
use ib_wire::PortNum;

use super::Device;
use super::held::Waiting;
use super::inbound::Inbound;
use super::memory::Arrived;
use super::qpn::QpRef;
use super::receive::Arrival;
use crate::DropReason;

impl Device {
    /// Holds a function, or lets it go on. While it is held the device neither reads nor writes its memory: what it has to
    /// send stays, and messages for it wait up to 256 KiB, then they are dropped ([`DropReason::Held`]). Its consumer is
    /// not to use it meanwhile.
    pub fn hold(&mut self, function: FunctionId, held: bool) {
        if !held {
            return self.release(function);
        }
        let slot = self.functions.get_mut(usize::from(function.0));
        if let Some(state) = slot.and_then(Option::as_mut)
            && state.held.is_none()
        {
            for egress in &mut self.egress {
                egress.copy_payload(function, &state.memory);
            }
            state.held = Some(Box::default());
        }
    }

    /// Returns `true` if a function is held.
    pub(super) fn is_held(&self, function: FunctionId) -> bool {
        self.state(function).is_ok_and(|state| state.held.is_some())
    }

    fn release(&mut self, function: FunctionId) {
        let Ok(state) = self.state_mut(function) else {
            return;
        };
        let Some(held) = state.held.take() else {
            return;
        };
        let queue_pairs = state.qps.iter();
        let queue_pairs: Vec<_> = queue_pairs
            .filter_map(|(index, _)| u32::try_from(index).ok())
            .collect();
        for index in queue_pairs {
            let at = QpRef { function, index };
            self.rearm(at);
            self.join_backlog(at);
        }
        for (to, message) in held.waiting {
            match message {
                Waiting::Datagram {
                    grh,
                    source,
                    immediate,
                    flags,
                    payload,
                } => self.deposit(
                    to,
                    &Arrival {
                        grh: grh.as_ref(),
                        source,
                        immediate,
                        flags,
                        payload: &payload,
                    },
                ),
                Waiting::Transfer {
                    port,
                    source,
                    transfer,
                    payload,
                } => {
                    // The queue pair may have another peer by now.
                    let own = self.connected_mut(to);
                    match own.map_or(Ok(()), |own| own.check_source(source)) {
                        Ok(()) => self.handle_transfer(to, &transfer, Arrived::Bytes(&payload)),
                        Err(reason) => self.node.count_drop(port, to.function, reason),
                    }
                }
            }
        }
    }

    /// Keeps a datagram if its function is held. Returns `false` if it is not.
    pub(super) fn keep_datagram(&mut self, to: QpRef, arrival: &Arrival<'_>) -> bool {
        let message = || Waiting::Datagram {
            grh: arrival.grh.copied(),
            source: arrival.source,
            immediate: arrival.immediate,
            flags: arrival.flags,
            payload: arrival.payload.to_vec(),
        };
        self.keep(to, arrival.source.port, message)
    }

    /// Keeps a packet of a connection if its function is held. Returns `false` if it is not.
    pub(super) fn keep_transfer(
        &mut self,
        to: QpRef,
        port: PortNum,
        packet: &Inbound<'_>,
        transfer: &Transfer,
    ) -> bool {
        let message = || Waiting::Transfer {
            port,
            source: packet.source,
            transfer: *transfer,
            payload: packet.payload.to_vec(),
        };
        self.keep(to, port, message)
    }

    fn keep(&mut self, to: QpRef, port: PortNum, message: impl FnOnce() -> Waiting) -> bool {
        if !self.is_held(to.function) {
            return false;
        }
        let held = self.state_mut(to.function).ok();
        let held = held.and_then(|state| state.held.as_deref_mut());
        if !held.is_some_and(|held| held.keep(to, message())) {
            self.node.count_drop(port, to.function, DropReason::Held);
        }
        true
    }
}
