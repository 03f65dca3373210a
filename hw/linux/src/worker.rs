//! Calls of the kernel that take long, in a thread: registrations and deregistrations of large regions, of which each page is pinned or given
//! back, and ends of queue pairs.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;

use hca_api::{AccessFlags, FileRun, HcaError, PdHandle};

/// Runs that a region has at most where the caller registers it: each is a mapping, 3 to 11 us to make and as many to take away.
const FEW_RUNS: usize = 32;

/// Bytes that it has at most there.
const FEW_BYTES: u64 = 4 << 20;

/// Registrations of a protection domain that are under way, or whose outcome was not asked for.
const MAX_PENDING: usize = 16;

/// Queue pairs that wait for their end at most, since no quota counts them.
const MAX_ENDING_PAIRS: usize = 1024;

/// Returns `true` for a region that the thread is to register.
pub(crate) fn is_large(runs: &[FileRun]) -> bool {
    runs.len() > FEW_RUNS || runs.iter().map(|run| run.len).sum::<u64>() > FEW_BYTES
}

/// A registration, as it is asked for again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Registration {
    pub(crate) pd: PdHandle,
    /// The region's own first address.
    pub(crate) iova: u64,
    pub(crate) len: u64,
    pub(crate) access: AccessFlags,
    pub(crate) source: Source,
}

/// Memory of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// One range from an address on.
    Range(u64),
    /// Pages of `1 << shift` bytes, from an offset in the first one on.
    Pages {
        pages: Arc<Vec<u64>>,
        shift: u8,
        first_offset: u64,
    },
}

/// Makes a region.
pub(crate) type Job<R> = Box<dyn FnOnce() -> Outcome<R> + Send>;

enum Order<R> {
    Register(u64, Job<R>),
    /// The thread drops an object. A region comes with its protection domain if its owner asks again for its end.
    Drop(Box<dyn Send>, Option<PdHandle>),
}

/// Work that the thread has done.
enum Done<R> {
    Registered(u64, Outcome<R>),
    Deregistered(PdHandle),
}

type Outcome<R> = Result<R, HcaError>;

/// The end of a region that the thread deregisters.
#[derive(Debug)]
pub(crate) struct RegionEnd(Weak<()>);

impl RegionEnd {
    /// Returns `true` once the region is gone.
    pub(crate) fn is_done(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// The thread, and the registrations for which it was asked. It takes its work in the order in which it was asked, and ends with this value,
/// once it has done everything.
#[derive(Debug)]
pub(crate) struct Worker<R> {
    orders: Sender<Order<R>>,
    done: Receiver<Done<R>>,
    /// Can be read when there are outcomes.
    news: UnixStream,
    pending: BTreeMap<u64, (Registration, Option<Outcome<R>>)>,
    next: u64,
    /// Each queue pair that waits for its end holds a clone, and the clones are counted.
    ending_pairs: Arc<()>,
}

impl<R: Send + 'static> Worker<R> {
    /// Starts the thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (news, teller) = UnixStream::pair()?;
        for end in [&news, &teller] {
            end.set_nonblocking(true)?;
        }
        let (orders, taken) = channel();
        let (finished, done) = channel();
        let thread = thread::Builder::new().name("verbs".to_owned());
        thread.spawn(move || work(&taken, &finished, teller))?;
        Ok(Self {
            orders,
            done,
            news,
            pending: BTreeMap::new(),
            next: 0,
            ending_pairs: Arc::default(),
        })
    }

    /// Returns the file that can be read when [`Self::take_outcomes`] has something.
    pub(crate) fn news(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Takes the outcome of a registration, which is [`HcaError::Pending`] until the thread has done it. Returns `None` if the thread
    /// was not asked for it.
    pub(crate) fn outcome(&mut self, asked: &Registration) -> Option<Outcome<R>> {
        let mut pending = self.pending.iter();
        let (ticket, (_, outcome)) = pending.find(|(_, (of, _))| of == asked)?;
        let (ticket, is_done) = (*ticket, outcome.is_some());
        let done = is_done.then(|| self.pending.remove(&ticket)).flatten();
        let outcome = done.and_then(|(_, outcome)| outcome);
        Some(outcome.unwrap_or(Err(HcaError::Pending)))
    }

    /// Asks for a registration, with the job that makes it.
    ///
    /// # Errors
    /// [`HcaError::Pending`], or why it cannot be asked for.
    pub(crate) fn register(&mut self, asked: Registration, job: Job<R>) -> Outcome<R> {
        let of_domain = self.pending.values().filter(|(of, _)| of.pd == asked.pd);
        if of_domain.count() >= MAX_PENDING {
            return Err(HcaError::InsufficientResources);
        }
        let ticket = self.next;
        let order = Order::Register(ticket, job);
        self.orders
            .send(order)
            .map_err(|_| HcaError::DeviceFailed)?;
        self.next += 1;
        self.pending.insert(ticket, (asked, None));
        Err(HcaError::Pending)
    }

    /// Deregisters a region.
    pub(crate) fn deregister(&self, region: R) {
        self.drop_later(region, None);
    }

    /// Deregisters a region of a protection domain, which [`Self::take_outcomes`] returns once the region is gone.
    pub(crate) fn begin_end(&self, pd: PdHandle, region: R) -> RegionEnd {
        let end = Arc::new(());
        let watched = RegionEnd(Arc::downgrade(&end));
        // The end is done once it is dropped, behind the region.
        self.drop_later((region, end), Some(pd));
        watched
    }

    /// Destroys a queue pair: in the thread, unless too many wait there.
    pub(crate) fn destroy(&self, pair: impl Send + 'static) {
        if Arc::strong_count(&self.ending_pairs) <= MAX_ENDING_PAIRS {
            self.drop_later((pair, self.ending_pairs.clone()), None);
        }
    }

    fn drop_later(&self, object: impl Send + 'static, pd: Option<PdHandle>) {
        // Without the thread it is dropped here.
        let _ = self.orders.send(Order::Drop(Box::new(object), pd));
    }

    /// Takes outcomes. Returns the protection domains of their registrations and deregistrations.
    pub(crate) fn take_outcomes(&mut self) -> Vec<PdHandle> {
        let mut bytes = [0; 64];
        while self
            .news
            .read(&mut bytes)
            .is_ok_and(|read| read == bytes.len())
        {}
        let mut domains = Vec::new();
        while let Ok(done) = self.done.try_recv() {
            let (ticket, outcome) = match done {
                Done::Registered(ticket, outcome) => (ticket, outcome),
                Done::Deregistered(pd) => {
                    domains.push(pd);
                    continue;
                }
            };
            match self.pending.get_mut(&ticket) {
                Some((asked, place)) => {
                    domains.push(asked.pd);
                    *place = Some(outcome);
                }
                None => self.withdraw(outcome),
            }
        }
        domains
    }

    /// Forgets the registrations of a protection domain that is gone.
    pub(crate) fn forget(&mut self, pd: PdHandle) {
        let gone: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, (of, _))| of.pd == pd)
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in gone {
            if let Some((_, Some(outcome))) = self.pending.remove(&ticket) {
                self.withdraw(outcome);
            }
        }
    }

    fn withdraw(&self, outcome: Outcome<R>) {
        if let Ok(region) = outcome {
            self.deregister(region);
        }
    }
}

/// Carries orders out until the worker is dropped.
fn work<R>(orders: &Receiver<Order<R>>, done: &Sender<Done<R>>, mut news: UnixStream) {
    for order in orders {
        let outcome = match order {
            Order::Register(ticket, job) => Done::Registered(ticket, job()),
            Order::Drop(object, pd) => {
                drop(object);
                let Some(pd) = pd else {
                    continue;
                };
                Done::Deregistered(pd)
            }
        };
        if done.send(outcome).is_err() {
            return;
        }
        // Where there is no room, there is something to be read.
        let _ = news.write(&[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region that says when it is gone.
    #[derive(Debug)]
    struct Region(u32, Sender<u32>);

    impl Drop for Region {
        fn drop(&mut self) {
            let _ = self.1.send(self.0);
        }
    }

    fn asked(pd: u32, iova: u64) -> Registration {
        Registration {
            pd: PdHandle(pd),
            iova,
            len: 8 << 20,
            access: AccessFlags::LOCAL_WRITE,
            source: Source::Range(0x1000),
        }
    }

    /// Waits for outcomes as a caller does that polls the file.
    fn outcomes(worker: &mut Worker<Region>) -> Vec<PdHandle> {
        loop {
            let domains = worker.take_outcomes();
            if !domains.is_empty() {
                return domains;
            }
            thread::yield_now();
        }
    }

    #[test]
    fn the_outcome_of_a_registration_is_for_the_one_that_asks_again() {
        let (gone, left) = channel();
        let mut worker = Worker::start().unwrap();
        let [one, two] = [asked(1, 0), asked(1, 4096)];
        assert!(worker.outcome(&one).is_none());
        let region = Region(7, gone);
        let pending = worker.register(one.clone(), Box::new(|| Ok(region)));
        assert_eq!(pending.unwrap_err(), HcaError::Pending);
        assert_eq!(outcomes(&mut worker), [PdHandle(1)]);
        let failed = Box::new(|| Err(HcaError::InsufficientResources));
        let _ = worker.register(two.clone(), failed);
        outcomes(&mut worker);
        let refused = worker.outcome(&two).map(Result::unwrap_err);
        assert_eq!(refused, Some(HcaError::InsufficientResources));
        let region = worker.outcome(&one).unwrap().unwrap();
        assert!(worker.outcome(&one).is_none(), "it is asked for anew");
        worker.deregister(region);
        assert_eq!(left.recv(), Ok(7));
    }

    #[test]
    fn outcomes_of_a_domain_that_is_gone_are_taken_back() {
        let (gone, left) = channel();
        let (begin, begun) = channel();
        let mut worker = Worker::start().unwrap();
        let [early, late] = [Region(1, gone.clone()), Region(2, gone)];
        let _ = worker.register(asked(1, 1), Box::new(|| Ok(early)));
        outcomes(&mut worker);
        let waits = move || {
            begun.recv().unwrap();
            Ok(late)
        };
        let _ = worker.register(asked(1, 2), Box::new(waits));
        worker.forget(PdHandle(1));
        begin.send(()).unwrap();
        assert_eq!(left.recv(), Ok(1));
        let mut second = left.try_recv();
        while second.is_err() {
            assert_eq!(worker.take_outcomes(), []);
            second = left.try_recv();
        }
        assert_eq!(second, Ok(2));
    }

    #[test]
    fn the_end_of_a_region_is_done_once_the_region_is_gone() {
        let (gone, left) = channel();
        let (begin, begun) = channel();
        let mut worker = Worker::start().unwrap();
        let waits = move || {
            begun.recv().unwrap();
            Err(HcaError::InvalidParameter)
        };
        let _ = worker.register(asked(1, 0), Box::new(waits));
        let end = worker.begin_end(PdHandle(2), Region(7, gone));
        assert!(!end.is_done() && left.try_recv().is_err());
        begin.send(()).unwrap();
        let mut domains = outcomes(&mut worker);
        while domains.len() < 2 {
            domains.extend(worker.take_outcomes());
        }
        assert_eq!(domains, [PdHandle(1), PdHandle(2)]);
        assert!(end.is_done());
        assert_eq!(left.try_recv(), Ok(7));
    }

    #[test]
    fn a_queue_pair_beyond_the_bound_is_destroyed_at_once() {
        let (gone, left) = channel();
        let (begin, begun) = channel();
        let mut worker = Worker::<Region>::start().unwrap();
        let waits = move || {
            begun.recv().unwrap();
            Err(HcaError::InvalidParameter)
        };
        let _ = worker.register(asked(1, 0), Box::new(waits));
        let last = u32::try_from(MAX_ENDING_PAIRS).unwrap();
        for number in 0..=last {
            worker.destroy(Region(number, gone.clone()));
        }
        assert_eq!(left.try_recv(), Ok(last));
        assert!(left.try_recv().is_err());
        begin.send(()).unwrap();
        drop(gone);
        let ended: Vec<u32> = left.iter().take(MAX_ENDING_PAIRS).collect();
        assert!(ended.into_iter().eq(0..last));
    }

    #[test]
    fn a_domain_has_few_registrations_under_way() {
        let mut worker = Worker::<Region>::start().unwrap();
        let mut ask = |pd, iova| {
            let refused = Box::new(|| Err(HcaError::InvalidParameter));
            worker.register(asked(pd, iova), refused).unwrap_err()
        };
        for iova in 0..MAX_PENDING as u64 {
            assert_eq!(ask(1, iova), HcaError::Pending);
        }
        assert_eq!(ask(1, 99), HcaError::InsufficientResources);
        assert_eq!(ask(2, 99), HcaError::Pending);
    }

    #[test]
    fn regions_are_large_by_their_runs_or_their_bytes() {
        let run = |len| FileRun {
            file: 0,
            offset: 0,
            len,
        };
        assert!(!is_large(&vec![run(4096); FEW_RUNS]));
        assert!(is_large(&vec![run(4096); FEW_RUNS + 1]));
        assert!(!is_large(&[run(FEW_BYTES)]));
        assert!(is_large(&[run(FEW_BYTES), run(1)]));
    }
}
