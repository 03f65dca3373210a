//! Rings of completion queues, as the library in a program knows them.

use std::collections::BTreeMap;

use zerocopy::FromBytes;

use crate::Command;
use crate::abi::AnsweredHandleCommand;
use crate::abi::command;
use crate::abi::completion_queue::{
    CreateCqAnswer, ExtendedCreateCqAnswer, ResizeCq, ResizeCqAnswer, RxeCqAnswer,
};
use crate::abi::ring::PRODUCER_INDEX;

/// Places of the rings of a file's completion queues in the memory file: the library arms a queue without an answer, and so says
/// which completions the program has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompletionRings(BTreeMap<u32, u64>);

impl CompletionRings {
    /// Takes note of a command that succeeded, and its answer.
    pub fn observe(&mut self, command: &Command<'_>, answer: &[u8]) {
        match command.number {
            command::CREATE_CQ => {
                let base = if command.extended {
                    size_of::<ExtendedCreateCqAnswer>()
                } else {
                    size_of::<CreateCqAnswer>()
                };
                if let Ok((created, _)) = CreateCqAnswer::read_from_prefix(answer) {
                    self.note(created.cq_handle.get(), answer.get(base..));
                }
            }
            command::RESIZE_CQ => {
                if let Ok((resized, _)) = command.read::<ResizeCq>() {
                    let place = answer.get(size_of::<ResizeCqAnswer>()..);
                    self.note(resized.cq_handle.get(), place);
                }
            }
            command::DESTROY_CQ => {
                if let Ok((destroyed, _)) = command.read::<AnsweredHandleCommand>() {
                    self.0.remove(&destroyed.handle.get());
                }
            }
            _ => {}
        }
    }

    /// Returns where the producer index of a queue is in the memory file.
    #[must_use]
    pub fn producer_index(&self, cq: u32) -> Option<u64> {
        self.0.get(&cq)?.checked_add(PRODUCER_INDEX)
    }

    fn note(&mut self, cq: u32, place: Option<&[u8]>) {
        let place = place.and_then(|place| RxeCqAnswer::read_from_prefix(place).ok());
        match place {
            Some((place, _)) => self.0.insert(cq, place.ring.offset.get()),
            None => self.0.remove(&cq),
        };
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::{Immutable, IntoBytes};

    use super::*;
    use crate::abi::completion_queue::{CreateCq, ReqNotifyCq};
    use crate::abi::ring::MappedRing;
    use crate::testing::command_bytes;

    fn observe(
        rings: &mut CompletionRings,
        number: u32,
        payload: &(impl IntoBytes + Immutable),
        answer: &[u8],
    ) {
        let bytes = command_bytes(number, payload, 0);
        rings.observe(&Command::decode(&bytes).unwrap(), answer);
    }

    fn answer(base: &(impl IntoBytes + Immutable), offset: u64) -> Vec<u8> {
        let place = RxeCqAnswer {
            ring: MappedRing {
                offset: offset.into(),
                size: 4096.into(),
                padding: 0.into(),
            },
        };
        [base.as_bytes(), place.as_bytes()].concat()
    }

    #[test]
    fn a_queue_has_its_ring_until_it_gets_another_or_is_destroyed() {
        let mut rings = CompletionRings::default();
        let created = CreateCqAnswer {
            cq_handle: 7.into(),
            cqe: 63.into(),
        };
        let create = CreateCq::default();
        let made = answer(&created, 0x1000);
        observe(&mut rings, command::CREATE_CQ, &create, &made);
        assert_eq!(rings.producer_index(7), Some(0x1080));
        assert_eq!(rings.producer_index(8), None);
        let arm = ReqNotifyCq::default();
        observe(&mut rings, command::REQ_NOTIFY_CQ, &arm, &[]);
        let resize = ResizeCq {
            cq_handle: 7.into(),
            ..ResizeCq::default()
        };
        let resized = answer(&ResizeCqAnswer::default(), 0x8000);
        observe(&mut rings, command::RESIZE_CQ, &resize, &resized);
        assert_eq!(rings.producer_index(7), Some(0x8080));
        let destroy = AnsweredHandleCommand {
            handle: 7.into(),
            ..AnsweredHandleCommand::default()
        };
        observe(&mut rings, command::DESTROY_CQ, &destroy, &[]);
        assert_eq!(rings.producer_index(7), None);
        let short = created.as_bytes();
        observe(&mut rings, command::CREATE_CQ, &create, short);
        assert_eq!(rings.producer_index(7), None, "an answer without a ring");
    }
}
