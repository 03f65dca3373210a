//! Memory that only its VMM reaches: by messages to it, and a wait for its answers.
//!
//! The one place where a VMM is waited for, since whoever reads memory needs it now. What all VMMs together can take
//! of the service's time is bounded ([`Patience`]); beyond, accesses fail as if there were no memory.
//!
//! QEMU answers only while none of its vCPUs waits for this server. A guest that polls a register while its device
//! reads memory makes both wait for each other until the patience ends, so a guest in QEMU needs shared memory; what
//! does not wait with a lock held gets by without.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::codec::{dma_read, dma_write, parse_dma_reply};
use super::connection::Connection;
use super::memory::RemoteMemory;

/// The longest wait for one answer.
const LONGEST: Duration = Duration::from_millis(100);

/// The most that is waited in a row by all.
const MOST: Duration = Duration::from_millis(500);

/// The part of the time that can be waited in the long run: one in so many.
const SHARE: u32 = 4;

/// How much longer VMMs may be waited for: a part of the time that has passed, up to a limit.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    at: Instant,
    was_spent: bool,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            left: MOST,
            at: Instant::now(),
            was_spent: false,
        }
    }
}

impl Patience {
    /// Whether somebody was waited for since this was last asked. Then messages may wait that no socket tells of.
    pub const fn take_was_spent(&mut self) -> bool {
        core::mem::replace(&mut self.was_spent, false)
    }

    /// Until when an answer may be waited for.
    fn deadline(&mut self) -> Instant {
        let now = Instant::now();
        let more = now.duration_since(self.at) / SHARE;
        self.left = (self.left + more).min(MOST);
        self.at = now;
        now + self.left.min(LONGEST)
    }

    /// Notes that there was a wait since [`Self::deadline`].
    fn spend(&mut self) {
        let now = Instant::now();
        self.left = self.left.saturating_sub(now.duration_since(self.at));
        self.at = now;
        self.was_spent = true;
    }
}

/// The memory behind a connection.
#[derive(Debug)]
pub struct Remote {
    connection: Arc<Mutex<Connection>>,
    patience: Arc<Mutex<Patience>>,
    /// The most bytes that the VMM takes in one message.
    most: usize,
    id: u16,
}

impl Remote {
    /// The memory behind a connection, whose VMM takes so many bytes in one message. `patience` is that of all VMMs
    /// together.
    #[must_use]
    pub fn new(
        connection: Arc<Mutex<Connection>>,
        patience: Arc<Mutex<Patience>>,
        most: usize,
    ) -> Self {
        Self {
            connection,
            patience,
            most: most.max(1),
            id: 0,
        }
    }

    fn ask(&mut self, request: &[u8], take: impl FnOnce(&[u8]) -> bool) -> bool {
        let mut patience = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        let deadline = patience.deadline();
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let reply = connection.ask(request, self.id, deadline);
        patience.spend();
        reply.as_ref().and_then(parse_dma_reply).is_some_and(take)
    }
}

impl RemoteMemory for Remote {
    fn read(&mut self, mut address: u64, buf: &mut [u8]) -> bool {
        for part in buf.chunks_mut(self.most) {
            self.id = self.id.wrapping_add(1);
            let request = dma_read(self.id, address, part.len() as u64);
            let is_read = self.ask(&request, |data| {
                let fits = data.len() == part.len();
                if fits {
                    part.copy_from_slice(data);
                }
                fits
            });
            if !is_read {
                return false;
            }
            address = address.wrapping_add(part.len() as u64);
        }
        true
    }

    fn write(&mut self, mut address: u64, bytes: &[u8]) -> bool {
        for part in bytes.chunks(self.most) {
            self.id = self.id.wrapping_add(1);
            let request = dma_write(self.id, address, part);
            if !self.ask(&request, |_| true) {
                return false;
            }
            address = address.wrapping_add(part.len() as u64);
        }
        true
    }
}
