//! The process that takes clients' descriptors, watched: a service without it takes none.

use vhca::watch::{EventSet, Ready};
use vhca_receiver::Receiver;

use super::way_in::{Turn, WayIn};

/// Ends the service when the receiver is gone.
#[derive(Debug)]
pub(super) struct ReceiverWatch(Receiver);

impl ReceiverWatch {
    pub(super) const fn new(receiver: Receiver) -> Self {
        Self(receiver)
    }
}

impl WayIn for ReceiverWatch {
    fn start(&mut self, turn: &mut Turn<'_>) {
        turn.watches.add(&self.0.channel(), EventSet::IN);
    }

    fn handle_ready(&mut self, turn: &mut Turn<'_>, _: Ready) {
        turn.watches.modify(&self.0.channel(), EventSet::empty());
        turn.lose("the receiver");
    }

    fn flush(&mut self, _: &mut Turn<'_>) {}
}
