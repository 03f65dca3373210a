//! A hostile program on libibverbs: its commands, its rings, its questions and its ids of the RDMA CM.

mod objects;
mod program;
mod questions;
mod rdma_cm;
mod rings;
mod shared_memory;

use super::hostile::Input;
use objects::Objects;
use program::Program;
use rings::Talkers;

pub(super) use questions::verbs_questions;
pub(super) use rdma_cm::rdma_cm;

/// Progress of an input, for the tests of seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Depth {
    /// Commands that succeeded.
    commands: usize,
    /// Commands that made an object, each counted once.
    kinds: usize,
    /// Requests that completed without an error.
    completed: usize,
    /// Requests that completed with one.
    failed: usize,
}

/// Creates, changes and destroys objects, well and badly: no input makes the device panic, own more than the quota of its
/// function, or leave something behind a file or a process that is gone.
pub(super) fn uverbs_commands(data: &[u8]) {
    play_commands(data);
}

fn play_commands(data: &[u8]) -> Depth {
    let mut input = Input::new(data);
    let mut program = Program::new();
    let mut objects = Objects::new(&mut program);
    while input.has_operation() {
        objects.step(&mut program, &mut input);
        program.check();
    }
    let depth = objects.depth(&program);
    program.end();
    depth
}

/// Writes anything into the rings of connected queue pairs, also while they are read: the same holds, and each step of the
/// device ends.
pub(super) fn uverbs_rings(data: &[u8]) {
    play_rings(data);
}

fn play_rings(data: &[u8]) -> Depth {
    let mut input = Input::new(data);
    let mut program = Program::new();
    let mut talkers = Talkers::new(&mut program);
    while input.has_operation() {
        talkers.step(&mut program, &mut input);
        program.check();
    }
    let depth = talkers.depth(&program);
    program.end();
    depth
}

#[cfg(test)]
mod tests {
    use verbs_link::abi::rdma_cm::cm_event;

    use super::*;

    #[test]
    fn the_seeds_get_deep() {
        let commands = play_commands(include_bytes!("../../../fuzz/corpus/uverbs_commands/deep"));
        assert!(
            commands.kinds == 8 && commands.commands > 100,
            "{commands:?}"
        );
        let rings = play_rings(include_bytes!("../../../fuzz/corpus/uverbs_rings/deep"));
        assert!(rings.completed > 50 && rings.failed > 20, "{rings:?}");
        let events = rdma_cm::play(include_bytes!("../../../fuzz/corpus/rdma_cm/deep"));
        for number in [
            cm_event::ADDR_ERROR,
            cm_event::ROUTE_RESOLVED,
            cm_event::CONNECT_REQUEST,
            cm_event::REJECTED,
        ] {
            assert!(events.contains(&number), "{number} of {events:?}");
        }
        let seed = include_bytes!("../../../fuzz/corpus/rdma_cm/multicast");
        let events = rdma_cm::play(seed);
        for number in [cm_event::MULTICAST_JOIN, cm_event::MULTICAST_ERROR] {
            assert!(events.contains(&number), "{number} of {events:?}");
        }
    }
}
