//! What the SA grants: read from its answers as they pass.

use std::collections::{BTreeMap, VecDeque};

use ib_vtime::Instant;
use ib_wire::Guid;
use ib_wire::mad::{AttributeId, Mad, Method, MgmtClass};
use ib_wire::sa::{ComponentMask, GuidInfoRecord, SaMad};
use ib_wire::smp::GuidInfo;

use super::config::GUID_GRACE;
use super::near::aliases;
use super::tid::without_slot;

/// Requests about GUIDs that are remembered at most.
const MAX_REQUESTS: usize = 256;

/// What was asked, as far as the answer does not say it.
#[derive(Clone, Copy, Debug)]
struct Asked {
    tid: u64,
    method: Method,
    components: ComponentMask,
}

/// A block as the SA has it.
#[derive(Clone, Copy, Debug)]
struct Block {
    guids: GuidInfo,
    /// When it last changed.
    since: Instant,
}

/// The GUIDs that the SA has granted to the port, as far as its answers have said so.
#[derive(Debug, Default)]
pub(super) struct Grants {
    asked: VecDeque<Asked>,
    blocks: BTreeMap<u8, Block>,
}

impl Grants {
    /// Takes note of a MAD that the adapter sends.
    pub(super) fn sent(&mut self, mad: &Mad) {
        if !is_about_guids(mad) || mad.header.method.is_response() {
            return;
        }
        if self.asked.len() == MAX_REQUESTS {
            self.asked.pop_front();
        }
        let sa: &SaMad = mad.view();
        self.asked.push_back(Asked {
            tid: without_slot(mad.header.tid),
            method: mad.header.method,
            components: sa.component_mask,
        });
    }

    /// Takes note of an answer for the adapter. Gives the block that it is about.
    pub(super) fn received(&mut self, now: Instant, mad: &Mad) -> Option<u8> {
        if !is_about_guids(mad) || !mad.header.method.is_response() {
            return None;
        }
        let tid = without_slot(mad.header.tid);
        let at = self.asked.iter().position(|asked| asked.tid == tid)?;
        let asked = self.asked.remove(at)?;
        if mad.header.status.get() != 0 {
            return None;
        }
        let record: GuidInfoRecord = mad.view::<SaMad>().record();
        let block = self.blocks.entry(record.block).or_insert_with(|| Block {
            guids: GuidInfo::default(),
            since: now,
        });
        let before = block.guids;
        for (index, guid) in record.guids.into_iter().enumerate() {
            let component = GuidInfoRecord::guid_component(index);
            let is_named = asked.components.intersects(component);
            match asked.method {
                Method::DELETE if is_named => block.guids.guids[index] = Guid::NONE,
                Method::SET if is_named => block.guids.guids[index] = guid,
                Method::GET => block.guids.guids[index] = guid,
                _ => {}
            }
        }
        block.guids = aliases(record.block, &block.guids);
        if block.guids != before {
            block.since = now;
        }
        Some(record.block)
    }

    /// The blocks of the GUID table as the SA has them.
    pub(super) fn table(&self) -> BTreeMap<u8, GuidInfo> {
        let blocks = self.blocks.iter();
        blocks
            .map(|(number, block)| (*number, block.guids))
            .collect()
    }

    /// Whether a granted GUID has been missing from what the fabric shows for longer than it takes a
    /// subnet manager to write it.
    pub(super) fn are_refused(&self, now: Instant, shown: &BTreeMap<u8, GuidInfo>) -> bool {
        self.missing(shown).any(|since| since + GUID_GRACE <= now)
    }

    /// When [`Grants::are_refused`] may say otherwise.
    pub(super) fn poll_timeout(
        &self,
        now: Instant,
        shown: &BTreeMap<u8, GuidInfo>,
    ) -> Option<Instant> {
        let ends = self.missing(shown).map(|since| since + GUID_GRACE);
        ends.filter(|end| *end > now).min()
    }

    /// Whether a granted GUID is missing from what the fabric shows.
    pub(super) fn is_missing(&self, shown: &BTreeMap<u8, GuidInfo>) -> bool {
        self.missing(shown).next().is_some()
    }

    fn missing<'g>(
        &'g self,
        shown: &'g BTreeMap<u8, GuidInfo>,
    ) -> impl Iterator<Item = Instant> + 'g {
        self.blocks.iter().filter_map(|(number, block)| {
            let shown = shown.get(number).copied().unwrap_or_default();
            let mut granted = block.guids.guids.into_iter().zip(shown.guids);
            let lacks = |(granted, shown): (Guid, Guid)| !granted.is_none() && granted != shown;
            granted.any(lacks).then_some(block.since)
        })
    }

    /// Nothing is granted any more: the subnet manager that did is gone.
    pub(super) fn clear(&mut self) {
        self.blocks.clear();
    }
}

fn is_about_guids(mad: &Mad) -> bool {
    mad.header.mgmt_class == MgmtClass::SUBN_ADM
        && mad.header.attribute_id == AttributeId::GUID_INFO_RECORD
}
