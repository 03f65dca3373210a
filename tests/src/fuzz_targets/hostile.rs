//! What the targets that run operations share: operands from the input, and a wire that does to
//! MADs what the input says.

use ib_vtime::{Duration, Instant};
use ib_wire::mad::{Mad, MgmtClass};
use zerocopy::IntoBytes;

/// Operations of one input at most, so that inputs stay quick.
const OPERATIONS: usize = 2_000;

/// Items that [`remember`] keeps.
const REMEMBERED: usize = 64;

/// Timers that one pass of time may bring.
const TURNS: usize = 100_000;

/// MADs that the wire holds at most in each direction; more are lost.
const WIRE: usize = 256;

/// Reads operands off the input; zeros when it is used up.
pub(super) struct Input<'a> {
    rest: &'a [u8],
    operations: usize,
    honest: bool,
    seed: u64,
}

impl<'a> Input<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self {
            rest: data,
            operations: OPERATIONS,
            honest: false,
            seed: data.len() as u64,
        }
    }

    /// The same operands for a world without damage or noise that looks like an answer, in which a
    /// model can say more.
    pub(super) fn honest(data: &'a [u8]) -> Self {
        Self {
            honest: true,
            ..Self::new(data)
        }
    }

    pub(super) fn is_honest(&self) -> bool {
        self.honest
    }

    /// Returns true for half of the honest inputs: their machines have the quotas of a default configuration.
    pub(super) fn has_default_quotas(&self) -> bool {
        self.honest && !self.seed.is_multiple_of(2)
    }

    /// A number that takes no operand: the length of the input.
    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether there is another operation to do. Ask once before each.
    pub(super) fn has_operation(&mut self) -> bool {
        let more = self.operations > 0 && !self.rest.is_empty();
        self.operations = self.operations.saturating_sub(1);
        more
    }

    pub(super) fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((byte, rest)) => {
                self.rest = rest;
                *byte
            }
            None => 0,
        }
    }

    /// An index below `length`, or 0.
    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::from(self.byte()) % length.max(1)
    }

    /// Whether: half of all bytes say so.
    pub(super) fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// One of what there is.
    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let at = self.index(items.len());
        items.get(at).copied()
    }

    /// Takes one of what there is.
    pub(super) fn take<T>(&mut self, items: &mut Vec<T>) -> Option<T> {
        let at = self.index(items.len());
        (at < items.len()).then(|| items.swap_remove(at))
    }

    /// From a millisecond to nine minutes.
    pub(super) fn time(&mut self) -> Duration {
        Duration::from_millis(1 << (self.byte() % 20))
    }

    /// Damages up to three bytes, unless the world is honest.
    pub(super) fn damage(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.byte() % 4 {
            let (at, flips) = (self.index(bytes.len()), self.byte());
            bytes[at] ^= if self.honest { 0 } else { flips };
        }
    }

    /// Overwrites the front of `bytes` with up to 255 bytes of the input.
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        let length = usize::from(self.byte()).min(bytes.len());
        for byte in &mut bytes[..length] {
            *byte = self.byte();
        }
    }

    /// All that is left, up to a number of bytes.
    pub(super) fn rest(&self, most: usize) -> &'a [u8] {
        self.rest.get(..most).unwrap_or(self.rest)
    }

    /// A MAD of any bytes; in an honest world of a class that no other party uses.
    pub(super) fn mad(&mut self) -> Mad {
        let mut mad = Mad::default();
        self.fill(mad.as_mut_bytes());
        if self.honest {
            mad.header.mgmt_class = MgmtClass::PERF;
        }
        mad
    }
}

/// Lets time pass from timer to timer up to `end`. `turn` does what is due at the time, and gives the
/// next timer.
///
/// # Panics
/// If timers do not come to an end.
pub(super) fn pass_time(
    now: &mut Instant,
    end: Instant,
    mut turn: impl FnMut(Instant) -> Option<Instant>,
) {
    for _ in 0..TURNS {
        match turn(*now) {
            Some(due) if due <= end => *now = due.max(*now),
            _ => {
                *now = end;
                turn(end);
                return;
            }
        }
    }
    panic!("a timer without end at {now:?}");
}

/// Keeps an item for later; the oldest is forgotten if there are many.
pub(super) fn remember<T>(items: &mut Vec<T>, item: T) {
    if items.len() >= REMEMBERED {
        items.remove(0);
    }
    items.push(item);
}

/// The MADs under way, each way.
#[derive(Default)]
pub(super) struct Wire {
    ways: [Vec<Mad>; 2],
}

impl Wire {
    /// One end sends a MAD; it is lost if there is no room.
    pub(super) fn push(&mut self, side: usize, mad: Mad) {
        if self.ways[side].len() < WIRE {
            self.ways[side].push(mad);
        }
    }

    /// Takes a MAD of an end off the wire, as the input says: as it is, twice, or damaged. Any MAD
    /// may come first.
    pub(super) fn pass(&mut self, side: usize, input: &mut Input<'_>) -> Vec<Mad> {
        let (at, fate) = (input.index(self.ways[side].len()), input.byte());
        if at >= self.ways[side].len() {
            return Vec::new();
        }
        let mut mad = self.ways[side].remove(at);
        match fate {
            0 => vec![mad, mad],
            1 => {
                let byte = usize::from(input.byte());
                mad.as_mut_bytes()[byte] ^= input.byte();
                vec![mad]
            }
            _ => vec![mad],
        }
    }

    /// Loses a MAD of an end.
    pub(super) fn lose(&mut self, side: usize, input: &mut Input<'_>) {
        let at = input.index(self.ways[side].len());
        if at < self.ways[side].len() {
            self.ways[side].remove(at);
        }
    }

    /// Loses everything.
    pub(super) fn clear(&mut self) {
        self.ways.iter_mut().for_each(Vec::clear);
    }
}
