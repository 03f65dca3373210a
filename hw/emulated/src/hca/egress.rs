//! Packets that wait to leave by a port.

use std::collections::VecDeque;

use super::backlog::Backlog;
use super::qpn::QpRef;
use crate::{Frame, PacketRun};

/// A frame, or packets that become frames when they leave.
#[derive(Debug)]
pub(super) enum Leaving {
    Frame(Frame),
    Run { from: QpRef, run: PacketRun },
}

impl Leaving {
    const fn packets(&self) -> usize {
        match self {
            Self::Frame(_) => 1,
            Self::Run { run, .. } => run.transfer().packets() as usize,
        }
    }
}

/// Packets that wait to leave by one port, and queue pairs that have more.
#[derive(Debug, Default)]
pub(super) struct Egress {
    leaving: VecDeque<Leaving>,
    packets: usize,
    /// Queue pairs with something to send.
    pub(super) backlog: Backlog,
    /// The backlog was left while the egress had room, and is to be served again at once.
    pub(super) interrupted: bool,
}

impl Egress {
    /// Returns the packets that wait.
    pub(super) const fn len(&self) -> usize {
        self.packets
    }

    /// Adds a frame or a run that leaves last.
    pub(super) fn push(&mut self, leaving: Leaving) {
        self.packets += leaving.packets();
        self.leaving.push_back(leaving);
    }

    /// Returns the run that leaves next, or `None` if a frame does or nothing waits.
    pub(super) fn front_run(&self) -> Option<&PacketRun> {
        match self.leaving.front()? {
            Leaving::Frame(_) => None,
            Leaving::Run { run, .. } => Some(run),
        }
    }

    /// Takes the frame or the run that leaves next.
    pub(super) fn pop(&mut self) -> Option<Leaving> {
        let leaving = self.leaving.pop_front()?;
        self.packets -= leaving.packets();
        Some(leaving)
    }

    /// Puts the rest of a run back in front of all others.
    pub(super) fn put_back(&mut self, from: QpRef, run: PacketRun) {
        let leaving = Leaving::Run { from, run };
        self.packets += leaving.packets();
        self.leaving.push_front(leaving);
    }
}
