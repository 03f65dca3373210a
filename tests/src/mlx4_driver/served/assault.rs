//! Hostile guests, whose VMMs come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use ib_vtime::Duration;

use super::super::hostile::{Choices, Depth, HostileGuest};
use super::Site;

/// Things that a hostile guest does before its VMM goes without a word, and another one comes.
const STEPS: u32 = 2000;

/// How long its drivers wait for the device: some ten times what it needs on a busy machine.
const PATIENCE: Duration = Duration::from_millis(100);

/// What hostile guests did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Assaulted {
    /// How often they got how far.
    pub depth: Depth,
    /// Things that they did.
    pub steps: u64,
    /// VMMs that they had.
    pub vmms: u64,
    /// VMMs that were turned away, since the one before was not missed yet.
    pub turned_away: u64,
    /// VMMs that were cut off from their VF.
    pub cut_off: u64,
}

/// What a hostile guest is told, and tells.
#[derive(Debug, Default)]
struct Order {
    is_over: AtomicBool,
    steps: AtomicU64,
}

/// Hostile guests.
#[derive(Debug)]
pub struct Assault {
    order: Arc<Order>,
    guests: Vec<JoinHandle<Assaulted>>,
}

impl Assault {
    /// Starts a hostile guest at each of these sites.
    ///
    /// # Panics
    /// If the system has no threads left.
    #[must_use]
    pub fn start<S: Site>(sites: &[S], seed: u64) -> Self {
        let order = Arc::new(Order::default());
        let guests = sites.iter().cloned().zip(seed..).map(|(site, seed)| {
            let order = order.clone();
            std::thread::spawn(move || attack(&site, seed, &order))
        });
        Self {
            guests: guests.collect(),
            order,
        }
    }

    /// Things that they did so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.order.steps.load(Ordering::Relaxed)
    }

    /// Ends them as they are.
    ///
    /// # Panics
    /// If one of them did.
    #[must_use]
    pub fn end(self) -> Assaulted {
        self.order.is_over.store(true, Ordering::Relaxed);
        let mut all = Assaulted::default();
        for guest in self.guests {
            let one = guest
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.depth += one.depth;
            all.steps += one.steps;
            all.vmms += one.vmms;
            all.turned_away += one.turned_away;
            all.cut_off += one.cut_off;
        }
        all
    }
}

fn attack(site: &impl Site, seed: u64, order: &Order) -> Assaulted {
    let mut choices = Choices::seeded(seed);
    let mut done = Assaulted::default();
    while !order.is_over.load(Ordering::Relaxed) {
        let Ok((mut bus, memory)) = site.attach() else {
            done.turned_away += 1;
            std::thread::yield_now();
            continue;
        };
        done.vmms += 1;
        let mut hostile = HostileGuest::new(memory).with_patience(PATIENCE);
        for _ in 0..STEPS {
            if order.is_over.load(Ordering::Relaxed) {
                break;
            }
            if site.is_cut_off(&bus) {
                done.cut_off += 1;
                break;
            }
            hostile.step(&mut bus, &mut choices);
            done.steps += 1;
            order.steps.fetch_add(1, Ordering::Relaxed);
        }
        done.depth += hostile.depth;
    }
    done
}
