//! Reading tables back, for a sweep that takes nothing for granted.
//!
//! The manager knows what switches and ports answered when it wrote their tables. Another sender of
//! SMPs can write them as well, and no trap reports it. A sweep on demand therefore reads the
//! forwarding tables, so that the step that writes them finds what differs, and the GUID tables, and
//! writes those at once.

use ib_wire::Guid;
use ib_wire::mad::AttributeModifier;
use ib_wire::smp::{
    DirectedRouteSmp, GuidInfo, LinearForwardingTable, MulticastForwardingTable,
    MulticastTableModifier,
};

use super::Sm;
use super::forwarding::last_position;
use super::job::{GuidBlock, Job, get, set};
use crate::topology::NodeId;

/// Chains of requests that read one table. Each answer makes the next request of its chain, and the
/// first silence ends it: a switch that falls silent costs a few timeouts, however large its tables.
const CHAINS: u16 = 4;

/// Entries of a block of a multicast table, and the most blocks that a modifier can name.
const MFT_ENTRIES: u16 = 32;
const MAX_MFT_BLOCKS: u16 = 512;

impl Sm {
    /// Begins to read the tables of all switches and ports.
    pub(super) fn read_back(&mut self) {
        self.read_back_wanted = false;
        for node in self.topology.switches().to_vec() {
            for first in 0..CHAINS {
                self.read_lft(node, first);
                self.read_mft(node, first);
            }
        }
        let ports: Vec<Guid> = self.topology.end_ports().map(|(_, p)| p.guid).collect();
        for port in ports {
            for first in 0..CHAINS {
                self.read_guids(port, first);
            }
        }
    }

    /// Reads a block of a switch's linear table, if the manager wrote one there or beyond: the step
    /// that follows writes the others anyway.
    fn read_lft(&mut self, node: NodeId, block: u16) {
        let found = self.topology.node(node);
        let known = self.programmed.get(&found.info.node_guid);
        let last = known.and_then(|known| known.lft.last_key_value());
        let in_use = last.is_some_and(|(last, _)| usize::from(block) <= *last);
        if let Some(path) = self.path_of(found).filter(|_| in_use) {
            let request = get::<LinearForwardingTable>(&path, block.into());
            self.queue.push(request, Job::ReadLft { node, block });
        }
    }

    /// Reads a block of a switch's multicast table at one position. Blocks without groups are read as
    /// well: an entry in them has no other witness.
    fn read_mft(&mut self, node: NodeId, at: u16) {
        let found = self.topology.node(node);
        let Some(modifier) = self.mft_modifier(node, at) else {
            return;
        };
        if let Some(path) = self.path_of(found) {
            let request = get::<MulticastForwardingTable>(&path, modifier.encode().get());
            self.queue.push(request, Job::ReadMft { node, at });
        }
    }

    /// The block and position that are read as number `at`; `None` beyond the switch's capacity.
    fn mft_modifier(&self, node: NodeId, at: u16) -> Option<MulticastTableModifier> {
        let capacity = self.topology.node(node).switch.as_ref()?;
        let blocks = capacity.info.multicast_fdb_cap.get();
        let positions = u16::from(last_position(&self.topology, node)) + 1;
        let block = at / positions;
        let blocks = blocks.div_ceil(MFT_ENTRIES).min(MAX_MFT_BLOCKS);
        let position = u8::try_from(at % positions).ok()?;
        (block < blocks).then_some(MulticastTableModifier { position, block })
    }

    /// Reads a block of a port's GUID table. A table of one entry has the port's own GUID only.
    fn read_guids(&mut self, port: Guid, block: u16) {
        let id = self.topology.port_by_guid(port);
        let Some(found) = id.and_then(|id| self.topology.port(id)) else {
            return;
        };
        let entries = usize::from(found.info.guid_cap);
        let Ok(block) = u8::try_from(block) else {
            return;
        };
        if entries > 1 && usize::from(block) < entries.div_ceil(GuidInfo::ENTRIES) {
            let request = get::<GuidInfo>(&found.path, block.into());
            self.queue.push(request, Job::ReadGuids { port, block });
        }
    }

    /// Takes the content of a table that was read.
    pub(super) fn was_read(&mut self, job: Job, answer: &DirectedRouteSmp) {
        match job {
            Job::ReadLft { node, block } => {
                let switch = self.topology.node(node).info.node_guid;
                let known = self.programmed.entry(switch).or_default();
                known.lft.insert(block.into(), *answer.attribute());
            }
            Job::ReadMft { node, at } => self.mft_was_read(node, at, answer.attribute()),
            Job::ReadGuids { port, block } => {
                self.guids_were_read(port, block, &answer.attribute::<GuidInfo>().guids);
            }
            _ => {}
        }
        self.read_next(job);
    }

    /// Makes the next request of a chain, after an answer or a refusal.
    pub(super) fn read_next(&mut self, job: Job) {
        match job {
            Job::ReadLft { node, block } => self.read_lft(node, block.saturating_add(CHAINS)),
            Job::ReadMft { node, at } => self.read_mft(node, at.saturating_add(CHAINS)),
            Job::ReadGuids { port, block } => self.read_guids(port, u16::from(block) + CHAINS),
            _ => {}
        }
    }

    fn mft_was_read(&mut self, node: NodeId, at: u16, table: &MulticastForwardingTable) {
        let Some(place) = self.mft_modifier(node, at) else {
            return;
        };
        let place = (place.position, place.block);
        let switch = self.topology.node(node).info.node_guid;
        let known = self.programmed.entry(switch).or_default();
        // Empty blocks are the many. Without a note the step that writes leaves them alone.
        if known.mft.contains_key(&place) || *table != MulticastForwardingTable::default() {
            known.mft.insert(place, *table);
        }
    }

    /// Writes a block of a GUID table that differs from the wanted one.
    fn guids_were_read(&mut self, port: Guid, block: u8, held: &GuidBlock) {
        let id = self.topology.port_by_guid(port);
        let Some(found) = id.and_then(|id| self.topology.port(id)) else {
            return;
        };
        let wanted = self.wanted_guids(port, block);
        let first = usize::from(block) * GuidInfo::ENTRIES;
        // The port's own GUID cannot be written, nor can what lies beyond the table.
        let writable = 1..usize::from(found.info.guid_cap);
        let mut entries = (first..).zip(wanted.iter().zip(held));
        if entries.any(|(index, (wanted, held))| writable.contains(&index) && wanted != held) {
            self.set_guids(port, block, wanted);
        }
    }

    /// Returns the wanted content of a block of a port's GUID table.
    pub(super) fn wanted_guids(&self, port: Guid, block: u8) -> GuidBlock {
        self.guids.get(&(port, block)).copied().unwrap_or_else(|| {
            let mut block_of_port = [Guid::NONE; GuidInfo::ENTRIES];
            if block == 0 {
                block_of_port[0] = port;
            }
            block_of_port
        })
    }

    /// Sends a block of a port's GUID table.
    pub(super) fn set_guids(&mut self, port: Guid, block: u8, guids: GuidBlock) {
        let id = self.topology.port_by_guid(port);
        let Some(found) = id.and_then(|id| self.topology.port(id)) else {
            return;
        };
        let modifier = AttributeModifier::new(u32::from(block));
        let request = set(&found.path, modifier, self.config.mkey, &GuidInfo { guids });
        self.queue
            .push(request, Job::SetGuids { port, block, guids });
    }

    /// A Set of a block of a GUID table was answered. One that was sent again after a loss may have
    /// arrived later than its successor.
    pub(super) fn guids_were_set(&mut self, port: Guid, block: u8, guids: GuidBlock) {
        let wanted = self.wanted_guids(port, block);
        let is_of_block = |job: &Job| match job {
            Job::SetGuids {
                port: p, block: b, ..
            } => (*p, *b) == (port, block),
            _ => false,
        };
        if wanted != guids && !self.queue.contexts().any(is_of_block) {
            self.set_guids(port, block, wanted);
        }
    }
}
