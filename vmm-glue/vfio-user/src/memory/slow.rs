//! Accesses that wait for a page.
//!
//! A load or store of a page that is being punched out of its file, or cleared, takes as long as that does. Nothing says so in
//! advance, and the time of an access alone does not say it afterwards: the host takes the processor away from a thread at any
//! place. So a long access counts if the thread had a page fault and either slept or computed meanwhile.
//!
//! `unsafe`: the call that returns what the thread used.
#![expect(
    unsafe_code,
    reason = "no crate in use wraps getrusage(2) of one thread"
)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use rustix::param::page_size;
use rustix::time::{ClockId, clock_gettime};

/// Time of a short access after which it may have waited.
const LONG: Duration = Duration::from_millis(1);

/// Time that each further page may take, which the kernel may have to clear.
const OF_A_PAGE: Duration = Duration::from_micros(10);

/// Resources that a thread has used.
#[derive(Clone, Copy, Debug)]
struct Usage {
    at: Instant,
    faults: i64,
    /// Times that it gave the processor up by itself.
    sleeps: i64,
    processor: Duration,
}

/// Processor time in which the kernel clears a page of 1 GiB, and not much less.
const CLEARING: Duration = Duration::from_millis(10);

thread_local! {
    /// Usage at some moment of the last millisecond before an access.
    static SAMPLE: Cell<Option<Usage>> = const { Cell::new(None) };
}

impl Usage {
    fn of_this_thread(at: Instant) -> Option<Self> {
        let mut usage = MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: there is room for the structure, which the kernel fills if the call succeeds, and zeros are one otherwise.
        let (result, usage) = unsafe {
            let result = libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
            (result, usage.assume_init())
        };
        // The times of the structure may be as coarse as the kernel's tick.
        let used = clock_gettime(ClockId::ThreadCPUTime);
        (result == 0).then(|| Self {
            at,
            faults: usage.ru_minflt + usage.ru_majflt,
            sleeps: usage.ru_nvcsw,
            processor: Duration::try_from(used).unwrap_or_default(),
        })
    }

    /// Returns `true` if the thread waited for a page since: it had a fault, and slept or computed for long.
    fn has_waited_since(&self, before: &Self) -> bool {
        let used = self.processor.saturating_sub(before.processor);
        self.faults > before.faults && (self.sleeps > before.sleeps || used > CLEARING)
    }
}

/// Makes an access of so many bytes. Returns `true` beside its result if it waited for a page for longer than such an access takes.
pub fn timed<T>(bytes: usize, access: impl FnOnce() -> T) -> (T, bool) {
    let begun = Instant::now();
    if SAMPLE.get().is_none_or(|sample| begun - sample.at > LONG) {
        SAMPLE.set(Usage::of_this_thread(begun));
    }
    let done = access();
    let ended = Instant::now();
    if ended - begun <= LONG {
        return (done, false);
    }
    let pages = u32::try_from(bytes / page_size()).unwrap_or(u32::MAX);
    if ended - begun <= LONG + OF_A_PAGE * pages {
        return (done, false);
    }
    let before = SAMPLE.replace(None);
    let after = Usage::of_this_thread(ended);
    let has_waited = match (before, after) {
        (Some(before), Some(after)) => after.has_waited_since(&before),
        _ => true,
    };
    (done, has_waited)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_that_sleeps_with_a_fault_has_waited_and_a_delayed_one_has_not() {
        assert_eq!(timed(8, || 7), (7, false));
        // The thread sleeps, as it may between two accesses, and has no fault.
        let fresh = || std::hint::black_box(vec![1_u8; 16 << 20]).len();
        let (_, delayed) = timed(8, || std::thread::sleep(2 * LONG));
        assert!(!delayed);
        let (_, waited) = timed(8, || {
            std::thread::sleep(2 * LONG);
            fresh()
        });
        assert!(waited);
    }
}
