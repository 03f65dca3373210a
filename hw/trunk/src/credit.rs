//! Credits: bytes of packets that the other end has room for, for each data lane.

use ib_wire::Vl;
use zerocopy::network_endian::U64;

use crate::close::CloseReason;
use crate::record::{CreditBody, DATA_LANES};

/// Bytes of packets of one lane that are on their way at most: enough for 1 Gbit/s and 8 ms.
pub const WINDOW: u64 = 1 << 20;

/// Bytes that were taken since the last credit record and are worth another one.
const STEP: u64 = WINDOW / 8;

/// Credits of the other end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowance {
    sent: [u64; DATA_LANES],
    limits: [u64; DATA_LANES],
}

impl Allowance {
    /// Returns `true` if a packet may leave on a lane.
    pub(crate) fn has(&self, lane: Vl, bytes: usize) -> bool {
        let lane = usize::from(lane.get());
        match (self.sent.get(lane), self.limits.get(lane)) {
            (Some(sent), Some(limit)) => sent.saturating_add(bytes as u64) <= *limit,
            _ => false,
        }
    }

    pub(crate) fn spend(&mut self, lane: Vl, bytes: usize) {
        if let Some(sent) = self.sent.get_mut(usize::from(lane.get())) {
            *sent += bytes as u64;
        }
    }

    /// Takes a credit record. Limits never go back, nor further ahead of the sent bytes than any end has room.
    pub(crate) fn raise(&mut self, body: &CreditBody) -> Result<(), CloseReason> {
        /// Room of one lane that an end may claim: a mebibyte of another version may be a gibibyte.
        const MOST: u64 = 1 << 30;
        for ((limit, sent), new) in self.limits.iter_mut().zip(self.sent).zip(body.limits) {
            let new = new.get();
            if new < *limit || new.saturating_sub(sent) > MOST {
                return Err(CloseReason::Garbage);
            }
            *limit = new;
        }
        Ok(())
    }
}

/// Room for packets of the other end.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    received: [u64; DATA_LANES],
    taken: [u64; DATA_LANES],
    announced: [u64; DATA_LANES],
}

impl Default for Room {
    fn default() -> Self {
        Self {
            received: [0; DATA_LANES],
            taken: [0; DATA_LANES],
            announced: [0; DATA_LANES],
        }
    }
}

impl Room {
    /// Notes a packet that came.
    ///
    /// # Errors
    /// [`CloseReason::Overrun`] if there was no room for it.
    pub(crate) fn receive(&mut self, lane: Vl, bytes: usize) -> Result<(), CloseReason> {
        let lane = usize::from(lane.get());
        let received = self.received.get_mut(lane).ok_or(CloseReason::Garbage)?;
        *received = received.saturating_add(bytes as u64);
        match self.announced.get(lane) {
            Some(limit) if *received <= *limit => Ok(()),
            _ => Err(CloseReason::Overrun),
        }
    }

    /// Notes that a packet was taken.
    pub(crate) fn take(&mut self, lane: Vl, bytes: usize) {
        if let Some(taken) = self.taken.get_mut(usize::from(lane.get())) {
            *taken += bytes as u64;
        }
    }

    /// Returns the next credit record if it is worth one.
    pub(crate) fn announce(&mut self) -> Option<CreditBody> {
        let is_due = self.taken.iter().zip(&self.announced);
        let mut is_due = is_due.map(|(taken, announced)| taken + WINDOW - announced);
        if !is_due.any(|more| more >= STEP) {
            return None;
        }
        self.announced = self.taken.map(|taken| taken + WINDOW);
        Some(CreditBody {
            limits: self.announced.map(U64::new),
        })
    }
}
