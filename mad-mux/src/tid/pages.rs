//! A growing array in pages that never move: it neither copies nor doubles when it grows.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

const PAGE_BITS: u32 = 7;
const PAGE: usize = 1 << PAGE_BITS;

/// The array. Elements are added at its end and stay.
#[derive(Clone, Debug)]
pub(super) struct Pages<T> {
    pages: Vec<Box<[T; PAGE]>>,
    len: u32,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self {
            pages: Vec::new(),
            len: 0,
        }
    }
}

const fn split(at: u32) -> (usize, usize) {
    ((at >> PAGE_BITS) as usize, at as usize & (PAGE - 1))
}

impl<T: Copy> Pages<T> {
    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn push(&mut self, value: T) {
        let (page, place) = split(self.len);
        if page == self.pages.len() {
            self.pages.push(Box::new([value; PAGE]));
        }
        self.pages[page][place] = value;
        self.len += 1;
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        (at < self.len).then(|| &self[at])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages
            .iter()
            .flat_map(|page| page.iter())
            .take(self.len as usize)
    }

    /// Bytes of the pages and of where they are.
    pub(super) const fn bytes(&self) -> usize {
        self.pages.len() * (PAGE * size_of::<T>() + size_of::<Box<[T; PAGE]>>())
    }
}

impl<T> Index<u32> for Pages<T> {
    type Output = T;

    fn index(&self, at: u32) -> &T {
        let (page, place) = split(at);
        &self.pages[page][place]
    }
}

impl<T> IndexMut<u32> for Pages<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        let (page, place) = split(at);
        &mut self.pages[page][place]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_stay_where_they_were_put_across_pages() {
        let mut pages = Pages::default();
        for n in 0..2000_u32 {
            pages.push(n);
        }
        assert_eq!(pages.len(), 2000);
        assert!((0..2000).all(|n| pages[n] == n));
        assert!(pages.iter().copied().eq(0..2000));
        assert_eq!(pages.get(2000), None, "the last page has room for more");
        assert_eq!(
            pages.bytes(),
            16 * (PAGE * 4 + size_of::<Box<[u32; PAGE]>>())
        );
        pages[1999] = 7;
        assert_eq!(pages.get(1999), Some(&7));
    }
}
