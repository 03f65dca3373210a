//! A search through what the SA knows, which stops between two candidates and goes on there later.

use ib_wire::sa::SaRecord;
use ib_wire::{Lid, PortNum};

use super::request::{Records, Refusal, Request};
use crate::topology::{Node, NodeId, Port, Switch};

/// Work of one candidate: a port, a group, a service.
const CANDIDATE: usize = 1;

/// A place among the candidates, which stand in the order of a number that each has.
pub(super) type Place = u128;

/// The search for the records that answer a query.
///
/// It names candidates by what is theirs (GUIDs, MGIDs, numbers), so it goes on soundly after the
/// subnet or the tables of the SA have changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    /// Found so far.
    pub(super) records: Records,
    /// Where the next candidate is looked for; `None` when there is none.
    next: Option<Place>,
    /// The candidate that the last piece stopped in.
    stopped: Option<(Place, Inside)>,
    /// How far the present candidate was searched before.
    inside: Inside,
    /// Work left for this piece.
    work: usize,
    is_complete: bool,
}

/// How far a candidate with parts was searched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Inside {
    /// The next part.
    pub(super) part: u64,
    /// Parts that were found to fit.
    pub(super) found: usize,
}

impl Search {
    /// Returns a search that stands before all candidates.
    pub(super) fn new() -> Self {
        Self {
            next: Some(0),
            ..Self::default()
        }
    }

    /// Allows so much work until the search stops.
    pub(super) const fn allow(&mut self, work: usize) {
        self.work = work;
    }

    /// Returns `true` if every candidate was looked at.
    pub(super) const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Ends the search: what was found is the answer.
    pub(super) const fn complete(&mut self) {
        self.is_complete = true;
    }

    /// Adds a record to those found.
    pub(super) fn push<R: SaRecord>(&mut self, record: &R) -> Result<(), Refusal> {
        self.records.push(record)
    }

    /// Counts work, and returns `true` if there was some left.
    pub(super) const fn spend(&mut self, work: usize) -> bool {
        let is_left = self.work > 0;
        self.work = self.work.saturating_sub(work);
        is_left
    }

    /// Returns the next candidate, which `find` returns with its place: the first at or behind the
    /// place that it gets. `None` at the end of the candidates or of the work.
    pub(super) fn next<T>(
        &mut self,
        find: impl FnOnce(Place) -> Option<(Place, T)>,
    ) -> Option<(Place, T)> {
        // One that the last piece stopped in was counted before.
        let cost = if self.stopped.is_some() { 0 } else { CANDIDATE };
        if self.is_complete || !self.spend(cost) {
            return None;
        }
        let Some((place, candidate)) = self.next.and_then(find) else {
            self.is_complete = true;
            return None;
        };
        let stopped = self.stopped.take().filter(|(at, _)| *at == place);
        self.inside = stopped.map_or_else(Inside::default, |(_, inside)| inside);
        self.next = place.checked_add(1);
        Some((place, candidate))
    }

    /// Takes how far the candidate that [`Self::next`] returned was searched before.
    pub(super) const fn take_inside(&mut self) -> Inside {
        core::mem::replace(&mut self.inside, Inside { part: 0, found: 0 })
    }

    /// Stops inside a candidate, where the next piece goes on.
    pub(super) const fn stop_inside(&mut self, place: Place, inside: Inside) {
        self.next = Some(place);
        self.stopped = Some((place, inside));
        self.work = 0;
    }

    /// Returns the next port that was read, of the owner of a LID or of any node, in the order of
    /// the nodes' GUIDs and the ports' numbers.
    pub(super) fn next_port<'a>(
        &mut self,
        request: &Request<'a>,
        lid: Option<Lid>,
    ) -> Option<(NodeId, &'a Node, PortNum, &'a Port)> {
        let topology = request.topology();
        let owner = lid.map(|lid| topology.port_by_lid(lid).map(|port| port.node));
        let found = self.next(|place| {
            let guid = ib_wire::Guid::new(u64::try_from(place >> 8).ok()?);
            let first = PortNum(place.to_le_bytes()[0]);
            let nodes = match owner {
                Some(owner) => {
                    let owner = owner?;
                    (topology.node(owner).info.node_guid >= guid).then_some(owner)
                }
                None => None,
            };
            let all = owner.is_none().then(|| topology.nodes_from(guid));
            let mut candidates = nodes.into_iter().chain(all.into_iter().flatten());
            candidates.find_map(|id| {
                let node = topology.node(id);
                let own = node.info.node_guid;
                let first = if own == guid { first } else { PortNum(0) };
                let (number, port) = node.ports().find(|(number, _)| *number >= first)?;
                let place = Place::from(own.get()) << 8 | Place::from(number.0);
                Some((place, (id, node, number, port)))
            })
        });
        found.map(|(_, port)| port)
    }

    /// Returns the next switch with its place and its management port, in the order of GUIDs.
    pub(super) fn next_switch<'a>(
        &mut self,
        request: &Request<'a>,
    ) -> Option<(Place, NodeId, &'a Switch, &'a Port)> {
        let topology = request.topology();
        let found = self.next(|place| {
            let guid = |id: &NodeId| topology.node(*id).info.node_guid;
            let switches = topology.switches();
            let first = switches.partition_point(|id| Place::from(guid(id).get()) < place);
            switches[first..].iter().find_map(|id| {
                let node = topology.node(*id);
                let port = node.port(PortNum::SWITCH_MANAGEMENT)?;
                let place = Place::from(node.info.node_guid.get());
                Some((place, (*id, node.switch.as_ref()?, port)))
            })
        });
        found.map(|(place, (id, switch, port))| (place, id, switch, port))
    }
}
