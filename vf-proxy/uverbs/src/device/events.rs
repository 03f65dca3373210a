//! Channels that programs open, and the events that go to them.

use hca_api::{AsyncEvent, Hca, PortChange};
use ib_wire::PortNum;
use verbs_link::Errno;
use verbs_link::abi::completion_queue::{AsyncRecord, CompletionRecord, event_type};
use verbs_link::budget::cost;
use verbs_link::{ChannelId, EventRecord};
use zerocopy::IntoBytes;

use super::{ContextId, Owned, ProcessDevice};

/// Channels of a process at most.
const MAX_CHANNELS: usize = 1024;

impl ProcessDevice {
    pub(super) fn open_channel(&mut self, context: ContextId) -> Result<ChannelId, Errno> {
        if self.channels.len() >= MAX_CHANNELS {
            return Err(Errno::ENOMEM);
        }
        let channel = Owned {
            context,
            object: (),
            _charge: self.charge(cost::CHANNEL)?,
        };
        let id = ChannelId(self.next_channel);
        self.next_channel = self.next_channel.wrapping_add(1);
        self.channels.insert(id, channel);
        Ok(id)
    }

    /// Ends a channel that the program has closed.
    pub fn close_channel(&mut self, channel: ChannelId) {
        self.channels.remove(&channel);
    }

    /// Returns `true` if [`Self::poll_event`] has a record.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next record to be passed on. To be polled after each command and each poll.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<EventRecord> {
        self.events.pop()
    }

    /// Queues a record. Returns `true` unless there is no such channel, or no room.
    fn tell(&mut self, channel: ChannelId, bytes: &[u8]) -> bool {
        let record = EventRecord {
            channel,
            bytes: bytes.to_vec(),
        };
        let queued = self.channels.contains_key(&channel) && self.events.push(&self.budget, record);
        self.dropped_events += u64::from(!queued);
        queued
    }

    pub(super) fn tell_completion(&mut self, channel: ChannelId, user_handle: u64) -> bool {
        let record = CompletionRecord {
            cq_handle: user_handle.into(),
        };
        self.tell(channel, record.as_bytes())
    }

    /// Queues an asynchronous event about an object of a context.
    fn tell_async(&mut self, context: ContextId, element: u64, event_type: u32) -> bool {
        let channel = self.contexts.get(&context).and_then(|found| found.events);
        let record = AsyncRecord {
            element: element.into(),
            event_type: event_type.into(),
            reserved: 0.into(),
        };
        channel.is_some_and(|channel| self.tell(channel, record.as_bytes()))
    }

    fn tell_contexts(&mut self, element: u64, event_type: u32) {
        let contexts: Vec<ContextId> = self.contexts.keys().copied().collect();
        for context in contexts {
            self.tell_async(context, element, event_type);
        }
    }

    pub(super) fn tell_of_qp(&mut self, handle: u32, event_type: u32) {
        let Some(qp) = self.qps.0.get(&handle) else {
            return;
        };
        let (context, element) = (qp.context, qp.object.user_handle);
        if self.tell_async(context, element, event_type)
            && let Some(qp) = self.qps.0.get_mut(&handle)
        {
            qp.object.async_events += 1;
        }
    }

    fn tell_of_srq(&mut self, handle: u32, event_type: u32) {
        let Some(srq) = self.srqs.0.get(&handle) else {
            return;
        };
        let (context, element) = (srq.context, srq.object.user_handle);
        if self.tell_async(context, element, event_type)
            && let Some(srq) = self.srqs.0.get_mut(&handle)
        {
            srq.object.async_events += 1;
        }
    }

    pub(super) fn tell_of_cq(&mut self, handle: u32, event_type: u32) {
        let Some(cq) = self.cqs.0.get(&handle) else {
            return;
        };
        let (context, element) = (cq.context, cq.object.user_handle);
        if self.tell_async(context, element, event_type)
            && let Some(cq) = self.cqs.0.get_mut(&handle)
        {
            cq.object.async_events += 1;
        }
    }

    pub(super) fn handle_async(&mut self, hca: &mut dyn Hca, event: AsyncEvent) {
        let qp = |provider, event_type| Some((provider, event_type));
        let about_qp = match event {
            AsyncEvent::Port { port, change } => {
                self.port_changed(port, change);
                None
            }
            AsyncEvent::CommunicationEstablished(at) => qp(at, event_type::COMM_EST),
            AsyncEvent::SendQueueDrained(at) => qp(at, event_type::SQ_DRAINED),
            AsyncEvent::QpFatal(at) => qp(at, event_type::QP_FATAL),
            AsyncEvent::QpRequestError(at) => qp(at, event_type::QP_REQ_ERR),
            AsyncEvent::QpAccessError(at) => qp(at, event_type::QP_ACCESS_ERR),
            AsyncEvent::LastWqeReached(at) => qp(at, event_type::QP_LAST_WQE_REACHED),
            AsyncEvent::PathMigrated(at) => qp(at, event_type::PATH_MIG),
            AsyncEvent::PathMigrationFailed(at) => qp(at, event_type::PATH_MIG_ERR),
            AsyncEvent::CqError(cq) => {
                if let Some(handle) = self.cq_by_provider.get(&cq).copied() {
                    self.tell_of_cq(handle, event_type::CQ_ERR);
                }
                None
            }
            AsyncEvent::SrqError(srq) => {
                if let Some(handle) = self.srq_of(srq) {
                    self.tell_of_srq(handle, event_type::SRQ_ERR);
                }
                None
            }
            AsyncEvent::SrqLimitReached(srq) => {
                if let Some(handle) = self.srq_of(srq) {
                    self.tell_of_srq(handle, event_type::SRQ_LIMIT_REACHED);
                }
                None
            }
            AsyncEvent::DeviceFatal => {
                self.tell_contexts(0, event_type::DEVICE_FATAL);
                None
            }
            AsyncEvent::RegistrationDone(_) | AsyncEvent::FunctionReset => None,
        };
        if let Some((provider, event_type)) = about_qp
            && let Some(handle) = self.qp_of(provider)
        {
            self.tell_of_qp(handle, event_type);
            self.follow_provider(hca, handle);
        }
    }

    fn port_changed(&mut self, port: PortNum, change: PortChange) {
        for (bit, event_type) in [
            (PortChange::ACTIVE, event_type::PORT_ACTIVE),
            (PortChange::DOWN, event_type::PORT_ERR),
            (PortChange::LID, event_type::LID_CHANGE),
            (PortChange::PKEY_TABLE, event_type::PKEY_CHANGE),
            (PortChange::SM, event_type::SM_CHANGE),
            (PortChange::CLIENT_REREGISTER, event_type::CLIENT_REREGISTER),
            (PortChange::GID_TABLE, event_type::GID_CHANGE),
        ] {
            if change.contains(bit) {
                self.tell_contexts(port.0.into(), event_type);
            }
        }
    }

    /// Reports to the process that its device failed, and forgets its objects.
    pub(super) fn device_gone(&mut self) {
        if !self.resetting {
            self.tell_contexts(0, event_type::DEVICE_FATAL);
        }
        let events = core::mem::take(&mut self.events);
        let contexts = core::mem::take(&mut self.contexts);
        let channels = core::mem::take(&mut self.channels);
        self.forget();
        if let Some(rings) = &self.rings {
            rings.release_all();
            (self.events, self.contexts, self.channels) = (events, contexts, channels);
            self.extents = crate::ring_memory::Extents::new(rings.memory.len());
        }
    }
}
