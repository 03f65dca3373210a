//! What a server needs of the fabric that its clients attach to.

use core::fmt;

use ib_endpoint::{MadAddress, Message};
use ib_wire::mad::Mad;
use ib_wire::{Lid, Qpn};

/// On whose behalf a port's own agent is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The driver's, which needs no M_Key.
    Driver,
    /// A program's: the M_Key guards the port as it does against the subnet.
    Program,
}

/// Why a client's MADs cannot use a port's QP0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Smi {
    /// They can.
    Open,
    /// Somebody else has it, such as a subnet manager that runs on the port.
    Taken,
}

/// The ports of a fabric, lent to a [`Server`](crate::server::Server) for each call.
///
/// On each port that a client attached to, the server is the raw client of the port's MAD agents
/// ([`ib_endpoint::MadAgent::register_raw`]).
pub trait Ports {
    /// Names a port.
    type Port: Copy + Ord + fmt::Debug;

    /// The port that a client means: by a node's id or description, or a GUID; the first node's for an
    /// empty name.
    fn find(&self, name: &[u8]) -> Option<Self::Port>;

    /// Takes a port into use. `None` if it has no software on it.
    fn open(&mut self, port: Self::Port) -> Option<Smi>;

    /// Gives a port up that no client is attached to any more.
    fn close(&mut self, port: Self::Port);

    /// The port's LID.
    fn lid(&self, port: Self::Port) -> Lid;

    /// The answer of the port's own management agent to an SMP of its host.
    fn ask_own_agent(&mut self, port: Self::Port, asker: Asker, smp: &Mad) -> Option<Mad>;

    /// Sets or clears IsSM.
    fn set_is_sm(&mut self, port: Self::Port, is_sm: bool);

    /// Whether a MAD to this LID gets anywhere as links and forwarding tables are now; for a directed
    /// route from end to end the LID is the permissive one.
    fn reaches(&self, port: Self::Port, dlid: Lid, mad: &Mad) -> bool;

    /// Sends a MAD as the raw client. `false` if there is no room for it.
    fn send(&mut self, port: Self::Port, to: &MadAddress, mad: &Mad) -> bool;

    /// The next MAD for the raw client, and the queue pair, QP0 or QP1, on which it came.
    fn receive(&mut self, port: Self::Port) -> Option<(Qpn, MadAddress, Message)>;

    /// Does with a request that no client takes what is done with one that nobody takes.
    fn decline(&mut self, port: Self::Port, qpn: Qpn, from: &MadAddress, mad: &Mad);
}
