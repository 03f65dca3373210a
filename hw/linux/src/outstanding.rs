//! Requests of a queue pair that the host has.

use std::collections::VecDeque;

/// Numbers of requests are below.
const NUMBERS: u32 = 1 << 31;

/// The requests of a queue that are with the host, in their order: the one that completes completes all before it.
#[derive(Debug)]
pub(crate) struct Outstanding<T> {
    /// Number of the oldest.
    first: u32,
    requests: VecDeque<T>,
}

impl<T> Default for Outstanding<T> {
    fn default() -> Self {
        Self {
            first: 0,
            requests: VecDeque::new(),
        }
    }
}

impl<T> Outstanding<T> {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Returns the number of the next request.
    pub(crate) fn next(&self) -> u32 {
        let count = u32::try_from(self.requests.len()).unwrap_or(0);
        self.first.wrapping_add(count) % NUMBERS
    }

    /// Adds the request that has the next number.
    pub(crate) fn push(&mut self, request: T) {
        self.requests.push_back(request);
    }

    /// Takes a request by its number, and forgets all before it. Returns `None` if there is none of the number.
    pub(crate) fn complete(&mut self, number: u32) -> Option<T> {
        let before = number.wrapping_sub(self.first) % NUMBERS;
        let index = usize::try_from(before).ok()?;
        if index >= self.requests.len() {
            return None;
        }
        self.first = (number + 1) % NUMBERS;
        self.requests.drain(..=index).next_back()
    }

    /// Takes all requests, whose numbers name none from now on.
    pub(crate) fn take(&mut self) -> VecDeque<T> {
        self.first = self.next();
        std::mem::take(&mut self.requests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_ends_all_requests_before_it_and_none_twice() {
        let mut queue = Outstanding {
            first: NUMBERS - 2,
            requests: VecDeque::new(),
        };
        let mut numbers = Vec::new();
        for request in 0..4 {
            numbers.push(queue.next());
            queue.push(request);
        }
        assert_eq!(numbers, [NUMBERS - 2, NUMBERS - 1, 0, 1]);
        assert_eq!(queue.complete(numbers[2]), Some(2));
        assert_eq!((queue.complete(numbers[1]), queue.len()), (None, 1));
        assert_eq!(queue.take(), [3]);
        assert_eq!(queue.complete(numbers[3]), None);
        queue.push(9);
        assert_eq!(queue.complete(2), Some(9));
    }
}
