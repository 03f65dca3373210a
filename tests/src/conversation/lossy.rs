//! A channel that misbehaves, by a seed.

use std::time::Duration;

use ib_endpoint::{MadAddress, Transmit};
use ib_vtime::{Instant, TimerQueue};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use vhca_exercises::conversations::{Arrival, Channel, NodeAddress};

/// How a channel misbehaves. Whatever it does to a MAD, no copy stays under way for longer than
/// `max_delay`: that is the packet life time that the connections' fields promise.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Probability that a MAD is lost.
    pub loss: f64,
    /// Probability that a MAD arrives twice.
    pub duplication: f64,
    /// The shortest way.
    pub min_delay: Duration,
    /// The longest way; the difference reorders.
    pub max_delay: Duration,
}

/// An in-memory channel.
#[derive(Debug)]
pub struct LossyChannel {
    weather: Weather,
    nodes: Vec<NodeAddress>,
    dice: ChaCha8Rng,
    under_way: TimerQueue<Arrival>,
}

impl LossyChannel {
    /// A channel between the nodes.
    #[must_use]
    pub fn new(seed: u64, weather: Weather, nodes: &[NodeAddress]) -> Self {
        Self {
            weather,
            nodes: nodes.to_vec(),
            dice: ChaCha8Rng::seed_from_u64(seed),
            under_way: TimerQueue::new(),
        }
    }
}

impl Channel for LossyChannel {
    fn send(&mut self, now: Instant, node: usize, transmit: &Transmit) {
        let Some(to) = self.nodes.iter().position(|n| n.lid == transmit.to.lid) else {
            return;
        };
        let copies = if self.dice.random_bool(self.weather.duplication) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let lost = self.dice.random_bool(self.weather.loss);
            let delay = self.dice.random_range(
                self.weather.min_delay.as_nanos()..=self.weather.max_delay.as_nanos(),
            );
            if lost {
                continue;
            }
            let delay = Duration::from_nanos(u64::try_from(delay).unwrap_or(u64::MAX));
            let arrival = Arrival {
                node: to,
                from: MadAddress::gsi(self.nodes[node].lid),
                mad: transmit.mad,
            };
            self.under_way.set(now + delay, arrival);
        }
    }

    fn next_time(&self) -> Option<Instant> {
        self.under_way.next_deadline()
    }

    fn receive(&mut self, now: Instant) -> Option<Arrival> {
        self.under_way.pop_due(now).map(|(_, arrival)| arrival)
    }
}
