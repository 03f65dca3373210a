//! The memory that a service may spend on one process.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Memory that several budgets draw from.
pub trait MemoryReserve: fmt::Debug + Send + Sync {
    /// Takes bytes for a budget that has `own` of them. Returns `false` if that is more than its share.
    fn take(&self, own: u64, bytes: u64) -> bool;

    /// Returns bytes that were taken.
    fn give_back(&self, bytes: u64);
}

/// Bytes that a service may spend on one process: pages of rings, objects, and events that wait to be read.
///
/// Copies share one budget. The bytes in use never exceed it; dropping a [`Charge`] releases its bytes.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    most: u64,
    used: AtomicU64,
    reserve: Option<Arc<dyn MemoryReserve>>,
}

impl Default for Budget {
    /// Returns a budget without a limit.
    fn default() -> Self {
        Self::new(u64::MAX, None)
    }
}

impl Budget {
    /// Creates a budget of so many bytes, which come from a reserve if there is one.
    #[must_use]
    pub fn new(most: u64, reserve: Option<Arc<dyn MemoryReserve>>) -> Self {
        Self(Arc::new(Account {
            most,
            used: AtomicU64::new(0),
            reserve,
        }))
    }

    /// Returns the bytes that are spent.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Returns the bytes that may be spent.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.0.most
    }

    /// Charges bytes. Returns `None` if they are more than the budget has left.
    #[must_use]
    pub fn charge(&self, bytes: u64) -> Option<Charge> {
        self.take(bytes).then(|| Charge {
            budget: self.clone(),
            bytes,
        })
    }

    fn take(&self, bytes: u64) -> bool {
        let Account {
            most,
            used,
            reserve,
        } = &*self.0;
        let order = Ordering::Relaxed;
        let more = |used: u64| used.checked_add(bytes).filter(|used| used <= most);
        let Ok(before) = used.fetch_update(order, order, more) else {
            return false;
        };
        let granted = reserve
            .as_ref()
            .is_none_or(|reserve| reserve.take(before, bytes));
        if !granted {
            used.fetch_sub(bytes, order);
        }
        granted
    }

    fn give_back(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(reserve) = &self.0.reserve {
            reserve.give_back(bytes);
        }
    }
}

/// Bytes of a budget, which come back when this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    bytes: u64,
}

impl Charge {
    /// Returns the bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the bytes. Returns `false`, and changes nothing, if the budget does not have so many left.
    pub fn resize(&mut self, bytes: u64) -> bool {
        match bytes.checked_sub(self.bytes) {
            Some(more) if !self.budget.take(more) => return false,
            Some(_) => {}
            None => self.budget.give_back(self.bytes - bytes),
        }
        self.bytes = bytes;
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// Bytes that objects cost the service beside their rings, rounded up: tables of the device and of the adapter.
pub mod cost {
    /// Protection domain.
    pub const PROTECTION_DOMAIN: u64 = 128;
    /// Memory region.
    pub const REGION: u64 = 256;
    /// Memory window.
    pub const WINDOW: u64 = 256;
    /// Address handle.
    pub const ADDRESS: u64 = 256;
    /// Completion queue.
    pub const COMPLETION_QUEUE: u64 = 1024;
    /// Shared receive queue.
    pub const SHARED_RECEIVE_QUEUE: u64 = 1024;
    /// Queue pair.
    pub const QUEUE_PAIR: u64 = 4096;
    /// Id of the RDMA CM, with its connection.
    pub const CM_ID: u64 = 2048;
    /// Multicast group that a queue pair or an id of the RDMA CM has joined.
    pub const GROUP: u64 = 1024;
    /// Channel, with the records that its socket holds unread: see [`CHANNEL_BUFFER`](crate::CHANNEL_BUFFER).
    pub const CHANNEL: u64 = crate::CHANNEL_BUFFER as u64;
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A reserve of so many bytes for all.
    #[derive(Debug)]
    struct Few(Mutex<u64>);

    impl MemoryReserve for Few {
        fn take(&self, _: u64, bytes: u64) -> bool {
            let mut left = self.0.lock().unwrap();
            let enough = bytes <= *left;
            if enough {
                *left -= bytes;
            }
            enough
        }

        fn give_back(&self, bytes: u64) {
            *self.0.lock().unwrap() += bytes;
        }
    }

    #[test]
    fn a_budget_is_not_exceeded_and_charges_come_back() {
        let budget = Budget::new(100, None);
        let mut charge = budget.charge(60).unwrap();
        assert!(budget.charge(41).is_none());
        assert!(!charge.resize(101) && charge.bytes() == 60);
        assert!(charge.resize(100) && budget.used() == 100);
        assert!(charge.resize(10) && budget.used() == 10);
        drop(charge);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_the_reserve_refuses_is_not_spent() {
        let reserve = Arc::new(Few(Mutex::new(100)));
        let budgets = [(); 2].map(|()| Budget::new(80, Some(reserve.clone())));
        let first = budgets[0].charge(80).unwrap();
        assert!(budgets[1].charge(21).is_none() && budgets[1].used() == 0);
        let second = budgets[1].charge(20).unwrap();
        drop(first);
        assert!(budgets[1].charge(60).is_some());
        drop(second);
        assert_eq!(*reserve.0.lock().unwrap(), 100);
    }
}
