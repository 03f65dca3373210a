//! Local keys in work requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hca_api::{LKey, Sge};
use mlx4_defs::wqe::DataSegment;

use super::super::capability::{LOG_MPTS, RESERVED_LKEY};

/// Which keys the work requests of a queue may use.
///
/// The guest's own keys name entries of its protection table, by index. The reserved key names all of the
/// guest's memory, for queues of its kernel only; the provider has another one for that, which differs
/// with the protection domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LocalKeys {
    /// What stands for the reserved key, if the queue may use it.
    pub(super) whole_space: Option<LKey>,
}

/// A key that no region has: its index is beyond the protection table.
const NO_KEY: LKey = LKey(RESERVED_LKEY);

impl LocalKeys {
    /// The provider's key for one in a work request. A key that the guest cannot have becomes one that
    /// names nothing, so that the request fails as it does for any wrong key.
    pub(super) const fn resolve(self, key: u32) -> LKey {
        match self.whole_space {
            Some(whole) if key == RESERVED_LKEY => whole,
            _ if key >> 8 < 1 << LOG_MPTS => LKey(key),
            _ => NO_KEY,
        }
    }

    /// A segment as the provider takes it.
    pub(super) fn sge(self, segment: &DataSegment) -> Sge {
        Sge {
            addr: segment.address.get(),
            // The top bit tells inline data.
            len: segment.byte_count.get() & 0x7fff_ffff,
            lkey: self.resolve(segment.lkey.get()),
        }
    }

    /// Memory that no queue may use.
    pub(super) const NOWHERE: Sge = Sge {
        addr: 0,
        len: 0x7fff_ffff,
        lkey: NO_KEY,
    };
}

/// The keys of a queue that several queue pairs share. They can change while the provider holds the
/// queue: only queue pairs of the guest's kernel open its memory.
#[derive(Clone, Debug)]
pub(super) struct SharedKeys(Arc<AtomicU64>);

const NONE: u64 = u64::MAX;

impl SharedKeys {
    /// No reserved key.
    pub(super) fn new() -> Self {
        Self(Arc::new(AtomicU64::new(NONE)))
    }

    /// Changes what stands for the reserved key.
    pub(super) fn set(&self, keys: LocalKeys) {
        let value = keys.whole_space.map_or(NONE, |key| u64::from(key.0));
        self.0.store(value, Ordering::Relaxed);
    }

    /// The keys now.
    pub(super) fn get(&self) -> LocalKeys {
        let key = u32::try_from(self.0.load(Ordering::Relaxed)).ok();
        LocalKeys {
            whole_space: key.map(LKey),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: LKey = LKey(0x8000_1200);

    #[test]
    fn the_reserved_key_is_for_queues_that_may_use_it() {
        let kernel = LocalKeys {
            whole_space: Some(WHOLE),
        };
        assert_eq!(kernel.resolve(RESERVED_LKEY), WHOLE);
        assert_eq!(LocalKeys::default().resolve(RESERVED_LKEY), NO_KEY);
        let shared = SharedKeys::new();
        assert_eq!(shared.get(), LocalKeys::default());
        shared.set(kernel);
        assert_eq!(shared.clone().get(), kernel);
    }

    #[test]
    fn keys_beyond_the_protection_table_name_nothing() {
        let keys = LocalKeys {
            whole_space: Some(WHOLE),
        };
        let last = (1 << (LOG_MPTS + 8)) - 1;
        assert_eq!(keys.resolve(last), LKey(last));
        for foreign in [last + 1, WHOLE.0, u32::MAX] {
            assert_eq!(keys.resolve(foreign), NO_KEY, "0x{foreign:x}");
        }
    }
}
