//! Where a hostile guest's choices come from: a seed, or a fuzzer's bytes.

use core::fmt;

use ib_vtime::SplitMix64;

/// A source of choices that never runs dry.
pub struct Choices<'c> {
    next: Box<dyn FnMut() -> u8 + 'c>,
}

impl fmt::Debug for Choices<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Choices")
    }
}

impl Choices<'static> {
    /// Choices that follow from a seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut bytes = Vec::new();
        Self::new(move || {
            if bytes.is_empty() {
                bytes.extend(random.next().to_le_bytes());
            }
            bytes.pop().unwrap_or(0)
        })
    }
}

impl<'c> Choices<'c> {
    /// Choices made of bytes.
    #[must_use]
    pub fn new(next: impl FnMut() -> u8 + 'c) -> Self {
        Self {
            next: Box::new(next),
        }
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        (self.next)()
    }

    /// Whether: one time in `in_so_many`.
    pub fn seldom(&mut self, in_so_many: u8) -> bool {
        self.byte().is_multiple_of(in_so_many)
    }

    /// An index below `len`, or 0.
    pub fn index(&mut self, len: usize) -> usize {
        let [a, b] = [self.byte(), self.byte()];
        usize::from(u16::from_le_bytes([a, b])) % len.max(1)
    }

    /// One of what there is.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        let at = self.index(items.len());
        items.get(at).copied()
    }

    /// Any number, often a small one or one of few bits.
    pub fn number(&mut self) -> u32 {
        let [a, b, c, d] = [(); 4].map(|()| self.byte());
        match a % 4 {
            0 => u32::from(b),
            1 => 1 << (b % 32),
            2 => u32::from_le_bytes([b, c, 0, 0]),
            _ => u32::from_le_bytes([a, b, c, d]),
        }
    }

    /// Changes up to three bytes.
    pub fn damage(&mut self, bytes: &mut [u8]) {
        for _ in 0..self.byte() % 4 {
            let at = self.index(bytes.len());
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= self.byte();
            }
        }
    }
}
