//! The calls of a device that a service serves.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vhca_device::calls::{Calls, FailureCall, Sealed};
use vhca_device::{
    AddressSpace, Bar, BarMove, ConfigEffect, DeviceStatistics, Doorbell, Interrupts,
};
use vhca_vfio_user_codec::{ClientCommand, IrqInfo};

use crate::config::{CONFIG, Config, Layout};
use crate::doorbells::{self, Found, Placing};
use crate::error::LinkError;
use crate::link::Link;
use crate::messages::Messages;
use crate::sync::lock;
use crate::watcher::{Watched, Watcher, drain};

/// Shared by the handles of a device and its watcher.
///
/// # Orders
///
/// Of the locks that a thread holds at once, that of `placing` comes first, then `connection`, then `messages` or `failure`. The VMM's
/// [`Interrupts`] are called with `messages`, and its [`Doorbells`](vhca_device::Doorbells) with that of `placing`, so the calls of one
/// device come one after the other. Calls on failure are made without any.
pub(crate) struct Shared {
    layout: Layout,
    interrupts: Arc<dyn Interrupts>,
    connection: Mutex<Connection>,
    messages: Mutex<Messages>,
    /// An eventfd for each vector, which the service has while MSI-X is on.
    events: Vec<OwnedFd>,
    /// The eventfds that the watcher reads, by their vectors.
    signals: Vec<(u16, OwnedFd)>,
    placing: Placing,
    /// The eventfd by which the service signals that the doorbells are others.
    changed: OwnedFd,
    failure: Mutex<Failure>,
    memory: Mutex<Option<Box<dyn AddressSpace>>>,
    counters: Counters,
}

/// The eventfds of a device.
pub(crate) struct Events {
    /// One for each vector.
    pub(crate) events: Vec<OwnedFd>,
    /// The ones that the watcher reads, by their vectors.
    pub(crate) watched: Vec<(u16, OwnedFd)>,
    /// The one for changes of doorbells.
    pub(crate) changed: OwnedFd,
}

/// The connection to the service, and configuration space as it replied last.
struct Connection {
    /// `None` once it has failed, or the device is detached.
    link: Option<Link>,
    config: Config,
}

#[derive(Default)]
struct Failure {
    reason: Option<Arc<LinkError>>,
    calls: Vec<FailureCall>,
    is_detached: bool,
}

/// Calls to make because a device has failed.
#[must_use]
struct FailureCalls(Arc<LinkError>, Vec<FailureCall>);

impl FailureCalls {
    fn make(self) {
        let Self(reason, calls) = self;
        for call in calls {
            call(Arc::clone(&reason) as _);
        }
    }
}

#[derive(Default)]
struct Counters {
    writes: AtomicU64,
    rings: AtomicU64,
    interrupts: AtomicU64,
    after_detach: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Shared {
    pub(crate) fn new(
        layout: Layout,
        (link, config): (Link, Config),
        interrupts: Arc<dyn Interrupts>,
        placing: Placing,
        Events {
            events,
            watched,
            changed,
        }: Events,
        memory: Box<dyn AddressSpace>,
    ) -> Self {
        let link = Some(link);
        Self {
            messages: Mutex::new(Messages::new(layout.vectors)),
            layout,
            interrupts,
            connection: Mutex::new(Connection { link, config }),
            events,
            signals: watched,
            placing,
            changed,
            failure: Mutex::default(),
            memory: Mutex::new(Some(memory)),
            counters: Counters::default(),
        }
    }

    /// Calls something with the connection, and ends that if the call fails. `None` if it has ended.
    fn with_link<T>(
        &self,
        call: impl FnOnce(&mut Link, &mut Config) -> Result<T, LinkError>,
    ) -> Option<T> {
        let called = self.try_link(call);
        if !matches!(called, Ok(Some(_))) {
            count(&self.counters.after_detach);
        }
        called.unwrap_or_else(|calls| {
            calls.make();
            None
        })
    }

    /// Calls something with the connection as [`Self::with_link`] does, and leaves the calls on failure to the caller.
    fn try_link<T>(
        &self,
        call: impl FnOnce(&mut Link, &mut Config) -> Result<T, LinkError>,
    ) -> Result<Option<T>, FailureCalls> {
        let mut connection = lock(&self.connection);
        let Connection { link, config } = &mut *connection;
        let Some(open) = link else {
            return Ok(None);
        };
        call(open, config).map(Some).map_err(|error| {
            // Noted before the watcher sees the end of the socket, which is no reason of its own.
            let calls = self.note_failure(error);
            if let Some(link) = link.take() {
                link.socket().shut();
            }
            calls
        })
    }

    /// Notes the reason of a failure, unless there was one before. The calls that wait for it are to be made without any lock.
    fn note_failure(&self, error: LinkError) -> FailureCalls {
        let mut failure = lock(&self.failure);
        let reason = Arc::new(error);
        if failure.is_detached || failure.reason.is_some() {
            return FailureCalls(reason, Vec::new());
        }
        failure.reason = Some(Arc::clone(&reason));
        FailureCalls(reason, core::mem::take(&mut failure.calls))
    }

    /// Changes the messages of vectors, and reports them to the VMM. Vectors that waited for that are signalled.
    fn change_messages(&self, change: impl FnOnce(&mut Messages)) {
        let mut messages = lock(&self.messages);
        change(&mut messages);
        let changes = messages.take_changes();
        if !changes.is_empty() {
            self.interrupts.update(&changes);
        }
        for (vector, message) in messages.take_released() {
            count(&self.counters.interrupts);
            self.interrupts.trigger(vector, message);
        }
    }

    /// Follows a change of configuration space, and returns the registers that it moved. `written` is a write to it;
    /// `None` after a reset.
    fn follow(
        &self,
        link: &mut Link,
        config: &mut Config,
        written: Option<(u16, &[u8])>,
    ) -> Result<ConfigEffect, LinkError> {
        let now = self.layout.read(link, config, written)?;
        match (config.is_enabled, now.is_enabled) {
            (false, true) => link.signal_by(IrqInfo::MSIX, &self.events)?,
            (true, false) => link.signal_none(IrqInfo::MSIX)?,
            _ => {}
        }
        let is_reset = written.is_none_or(|(offset, written)| self.layout.resets(offset, written));
        self.change_messages(|messages| {
            if is_reset {
                messages.reset();
                for (_, signal) in &self.signals {
                    drain(signal);
                }
            }
            messages.set_sends(now.sends);
        });
        let before = core::mem::replace(config, now);
        let mut effect = ConfigEffect::default();
        let moves = before.addresses().zip(config.addresses());
        for (bar, (from, to)) in self.layout.bars.iter().zip(moves) {
            if from != to {
                effect.moved.push(BarMove {
                    bar: bar.index,
                    size: bar.size,
                    from,
                    to,
                });
            }
        }
        Ok(effect)
    }

    /// Asks for the doorbells, and passes them on to the VMM.
    pub(crate) fn place_doorbells(&self) {
        if !self.layout.has_doorbells {
            return;
        }
        let ask = |link: &mut Link, config: &mut Config| {
            let bars = self.layout.bars.iter().map(|bar| bar.index);
            let placed = bars.zip(config.addresses());
            Ok(Found {
                addresses: placed
                    .filter_map(|(bar, address)| Some((bar, address?)))
                    .collect(),
                doorbells: doorbells::ask(link, &self.layout.bars)?,
            })
        };
        let mut failed = None;
        self.placing.place(|| {
            let asked = self.try_link(ask);
            asked.map_err(|calls| failed = Some(calls)).ok().flatten()
        });
        if let Some(calls) = failed {
            calls.make();
        }
    }

    fn has(&self, bar: u8) -> bool {
        self.layout.bars.iter().any(|found| found.index == bar)
    }

    /// Returns the part of a write that is for the MSI-X table, and its place there.
    fn table_part<'b>(&self, bar: u8, offset: u64, bytes: &'b [u8]) -> Option<(u64, &'b [u8])> {
        let (table, start) = self.layout.table;
        let before = usize::try_from(start.saturating_sub(offset)).ok()?;
        let part = bytes.get(before..)?;
        (bar == table).then_some((offset.saturating_sub(start), part))
    }
}

impl Watched for Shared {
    fn signals(&self) -> &[(u16, OwnedFd)] {
        &self.signals
    }

    fn signal(&self, vector: u16, signal: &OwnedFd) {
        let mut messages = lock(&self.messages);
        // It may have been drained by a reset since it was found ready.
        if !drain(signal) {
            return;
        }
        if let Some(message) = messages.raise(vector) {
            count(&self.counters.interrupts);
            self.interrupts.trigger(vector, message);
        }
    }

    fn changed(&self) -> &OwnedFd {
        &self.changed
    }

    fn handle_changed(&self) {
        drain(&self.changed);
        self.place_doorbells();
    }

    fn end(&self, error: LinkError) {
        let mut connection = lock(&self.connection);
        let calls = self.note_failure(error);
        connection.link = None;
        drop(connection);
        calls.make();
    }
}

/// A device that a service serves. Its watcher ends with it.
pub(crate) struct RemoteDevice {
    pub(crate) shared: Arc<Shared>,
    pub(crate) watcher: Watcher,
}

impl Sealed for RemoteDevice {}

impl Calls for RemoteDevice {
    fn bars(&self) -> &[Bar] {
        &self.shared.layout.bars
    }

    fn vectors(&self) -> u16 {
        self.shared.layout.vectors
    }

    fn config_read(&self, offset: u16, out: &mut [u8]) {
        let read = self
            .shared
            .with_link(|link, _| link.read(CONFIG, offset.into(), out));
        if read.is_none() {
            out.fill(0xff);
        }
    }

    fn config_write(&self, offset: u16, bytes: &[u8]) -> ConfigEffect {
        let shared = &self.shared;
        let effect = shared.with_link(|link, config| {
            link.write(CONFIG, offset.into(), bytes)?;
            shared.follow(link, config, Some((offset, bytes)))
        });
        let effect = effect.unwrap_or_default();
        if !effect.moved.is_empty() {
            shared.place_doorbells();
        }
        effect
    }

    fn bar_read(&self, bar: u8, offset: u64, out: &mut [u8]) {
        // A register's number is that of its region; others are not registers.
        if !self.shared.has(bar) {
            return out.fill(0);
        }
        let read = self
            .shared
            .with_link(|link, _| link.read(bar.into(), offset, out));
        if read.is_none() {
            out.fill(0xff);
        }
    }

    fn bar_write(&self, bar: u8, offset: u64, bytes: &[u8]) {
        let shared = &self.shared;
        count(&shared.counters.writes);
        if !shared.has(bar) {
            return;
        }
        shared.with_link(|link, config| {
            // The VMM has the message before the service can signal by it.
            if let Some((at, part)) = shared.table_part(bar, offset, bytes)
                && config.answers
            {
                shared.change_messages(|messages| messages.write(at, part));
            }
            link.post(bar.into(), offset, bytes)
        });
    }

    fn ring(&self, doorbell: Doorbell) {
        if self.shared.placing.ring(&doorbell) {
            count(&self.shared.counters.rings);
        }
    }

    fn reset(&self) -> ConfigEffect {
        let shared = &self.shared;
        let effect = shared.with_link(|link, config| {
            link.carry_out(&ClientCommand::Reset, &[])?;
            shared.follow(link, config, None)
        });
        shared.place_doorbells();
        effect.unwrap_or_default()
    }

    fn pause(&self) {}

    fn resume(&self) {}

    fn is_paused(&self) -> bool {
        false
    }

    fn detach(&self) -> Option<Box<dyn AddressSpace>> {
        let shared = &self.shared;
        let mut failure = lock(&shared.failure);
        failure.is_detached = true;
        let calls = core::mem::take(&mut failure.calls);
        drop((failure, calls));
        if let Some(link) = lock(&shared.connection).link.take() {
            link.socket().shut();
        } else {
            count(&shared.counters.after_detach);
        }
        self.watcher.stop();
        // Without a connection there are none, so the VMM gives the eventfds up.
        shared.placing.place(|| None);
        // An interrupt may be under way in another thread.
        drop(lock(&shared.messages));
        lock(&shared.memory).take()
    }

    fn on_failure(&self, call: FailureCall) {
        let mut failure = lock(&self.shared.failure);
        if failure.is_detached {
            return;
        }
        let Some(reason) = failure.reason.clone() else {
            return failure.calls.push(call);
        };
        drop(failure);
        call(reason);
    }

    fn statistics(&self) -> DeviceStatistics {
        let Counters {
            writes,
            rings,
            interrupts,
            after_detach,
        } = &self.shared.counters;
        let mut statistics = DeviceStatistics::default();
        statistics.writes = writes.load(Ordering::Relaxed);
        statistics.rings = rings.load(Ordering::Relaxed);
        statistics.interrupts = interrupts.load(Ordering::Relaxed);
        statistics.after_detach = after_detach.load(Ordering::Relaxed);
        statistics
    }
}
