//! How much of their guests' memory VFs may touch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How much of its guest's memory a VF may touch.
#[derive(Clone, Debug, Default)]
pub enum MemoryLimit {
    /// All that its VMM shares.
    #[default]
    Unlimited,
    /// So many bytes.
    Bytes(u64),
    /// A share of what VFs may touch together.
    Pool(Arc<MemoryPool>),
}

/// Bytes that several VFs may touch together.
///
/// A VF may have as much as it leaves free (the dynamic threshold of shared packet buffers): one alone takes up to a
/// half, two up to a third each, and however many take all they can, something is left for the next.
#[derive(Debug)]
pub struct MemoryPool {
    most: u64,
    used: AtomicU64,
}

impl MemoryPool {
    /// A pool of so many bytes.
    #[must_use]
    pub const fn new(most: u64) -> Self {
        Self {
            most,
            used: AtomicU64::new(0),
        }
    }

    /// Returns how many bytes all VFs together may touch.
    #[must_use]
    pub const fn most(&self) -> u64 {
        self.most
    }

    /// Returns how many bytes a VF that has `own` of them may have as things stand.
    fn share(&self, own: u64) -> u64 {
        let free = self.most.saturating_sub(self.used.load(Ordering::Relaxed));
        u64::midpoint(own, free).max(own)
    }

    /// Takes bytes for a VF that has `own` of them. Returns `false` if that is more than its share.
    #[must_use]
    pub fn take(&self, own: u64, bytes: u64) -> bool {
        let order = Ordering::Relaxed;
        let more = |used: u64| {
            let used = used.checked_add(bytes)?;
            let free = self.most.checked_sub(used)?;
            (own.checked_add(bytes)? <= free).then_some(used)
        };
        self.used.fetch_update(order, order, more).is_ok()
    }

    /// Returns bytes that were taken.
    pub fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes of a VF, counted against its limit.
#[derive(Debug)]
pub(super) struct Account {
    limit: MemoryLimit,
    used: AtomicU64,
}

impl Account {
    pub(super) const fn new(limit: MemoryLimit) -> Self {
        Self {
            limit,
            used: AtomicU64::new(0),
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) const fn is_limited(&self) -> bool {
        !matches!(self.limit, MemoryLimit::Unlimited)
    }

    /// Returns how many bytes the VF may have now, if that is limited.
    pub(super) fn most(&self) -> Option<u64> {
        match &self.limit {
            MemoryLimit::Unlimited => None,
            MemoryLimit::Bytes(most) => Some(*most),
            MemoryLimit::Pool(pool) => Some(pool.share(self.used())),
        }
    }

    /// Takes bytes. Returns `false` if that is more than the limit allows.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let used = self.used();
        let is_allowed = match &self.limit {
            MemoryLimit::Unlimited => true,
            MemoryLimit::Bytes(most) => used.checked_add(bytes).is_some_and(|used| used <= *most),
            MemoryLimit::Pool(pool) => pool.take(used, bytes),
        };
        if is_allowed {
            self.used.fetch_add(bytes, Ordering::Relaxed);
        }
        is_allowed
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let MemoryLimit::Pool(pool) = &self.limit {
            pool.give_back(bytes);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let MemoryLimit::Pool(pool) = &self.limit {
            pool.give_back(*self.used.get_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(account: &Account) -> u64 {
        while account.take(1) {}
        account.used()
    }

    #[test]
    fn a_pool_is_never_exceeded_and_has_something_left_for_the_next() {
        let pool = Arc::new(MemoryPool::new(1200));
        let accounts: Vec<_> = (0..100)
            .map(|_| Account::new(MemoryLimit::Pool(pool.clone())))
            .collect();
        let shares: Vec<u64> = accounts.iter().map(fill).collect();
        assert_eq!(shares[..3], [600, 300, 150]);
        assert!(shares.iter().sum::<u64>() <= pool.most());
        // Those who began late grow as others go.
        accounts[0].give_back(600);
        assert!(fill(&accounts[2]) > shares[2]);
        drop(accounts);
        assert_eq!(pool.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_a_vf_may_have_is_what_it_gets() {
        let pool = Arc::new(MemoryPool::new(1000));
        let first = Account::new(MemoryLimit::Pool(pool.clone()));
        assert!(first.take(100));
        let second = Account::new(MemoryLimit::Pool(pool));
        for account in [&first, &second] {
            let most = account.most().unwrap();
            assert_eq!(fill(account), most);
        }
    }
}
