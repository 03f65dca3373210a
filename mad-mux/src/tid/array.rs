//! A growing array with little room to spare.

use std::ops::{Index, IndexMut};

use prefetch_index::prefetch_index;

/// Elements that there is room for at the first.
const FIRST: usize = 64;

/// The array. Elements are added at its end and stay. It grows by a sixteenth, since what it has room
/// for is counted with what it holds.
#[derive(Clone, Debug)]
pub(super) struct Array<T>(Vec<T>);

impl<T> Default for Array<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Array<T> {
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn push(&mut self, value: T) {
        if self.0.len() == self.0.capacity() {
            self.0.reserve_exact(self.0.len() / 16 + FIRST);
        }
        self.0.push(value);
    }

    #[inline]
    pub(super) fn get(&self, at: u32) -> Option<&T> {
        self.0.get(at as usize)
    }

    /// Asks for an element to be brought near, and waits for nothing.
    pub(super) fn approach(&self, at: u32) {
        // An element can begin in one line of the cache and end in the next.
        prefetch_index(&self.0, at as usize);
        prefetch_index(&self.0, at as usize + 1);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    /// Bytes of the elements and of the room for more.
    pub(super) const fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<T>()
    }
}

impl<T> Index<u32> for Array<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: u32) -> &T {
        &self.0[at as usize]
    }
}

impl<T> IndexMut<u32> for Array<T> {
    #[inline]
    fn index_mut(&mut self, at: u32) -> &mut T {
        &mut self.0[at as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_was_put_in_with_little_room_to_spare() {
        let mut array = Array::default();
        let (mut bytes, mut moves) = (0, 0);
        for n in 0..20_000_u32 {
            array.push(n);
            moves += u32::from(array.bytes() != bytes);
            bytes = array.bytes();
            let most = (n as usize + 1) * 17 / 16 + FIRST;
            assert!(array.bytes() <= most * size_of::<u32>(), "{n}");
        }
        assert!(moves < 80, "the elements moved {moves} times");
        assert_eq!(array.len(), 20_000);
        assert!(array.iter().copied().eq(0..20_000));
        array[19_999] = 7;
        assert_eq!((array[19_999], array.get(20_000)), (7, None));
    }
}
