//! The SA and the SM behind it, as OpenSM does it.

use std::collections::{BTreeMap, BTreeSet};

use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{GuidInfoRecord, SaMad};
use ib_wire::{Guid, Lid};

use super::LID;

/// The SA's own choices start here.
const CHOSEN: u64 = 0x1000;

#[derive(Default)]
pub(super) struct Sa {
    pub(super) table: BTreeMap<u16, u64>,
    /// GUIDs of other ports.
    pub(super) foreign: BTreeSet<u64>,
    pub(super) in_groups: BTreeSet<u64>,
    choices: u64,
}

impl Sa {
    /// Carries out a request and answers with the whole block.
    pub(super) fn take(&mut self, asked: &SaMad) -> Result<GuidInfoRecord, MadStatus> {
        let entries = entries(asked);
        if asked.header.method == Method::SET {
            for (index, guid) in entries {
                self.set(index, guid);
            }
        } else {
            let held = |(index, _): &(u16, u64)| self.table.get(index);
            if entries
                .iter()
                .filter_map(held)
                .any(|guid| self.in_groups.contains(guid))
            {
                return Err(MadStatus::SA_DENIED);
            }
            for (index, _) in entries {
                self.table.remove(&index);
            }
        }
        let number = asked.record::<GuidInfoRecord>().block;
        let mut guids = [Guid::NONE; 8];
        for (index, guid) in (u16::from(number) * 8..).zip(&mut guids) {
            *guid = Guid::new(self.table.get(&index).copied().unwrap_or(0));
        }
        Ok(block(number, guids))
    }

    fn set(&mut self, index: u16, guid: u64) {
        if guid == 0 {
            self.choices += 1;
            let choice = CHOSEN + self.choices;
            self.table.entry(index).or_insert(choice);
        } else if !self.foreign.contains(&guid) && !self.holds(guid) {
            self.table.insert(index, guid);
        }
    }

    fn holds(&self, guid: u64) -> bool {
        self.table.values().any(|held| *held == guid)
    }

    /// Another port takes a GUID, or gives it back.
    pub(super) fn take_elsewhere(&mut self, guid: u64, is_taken: bool) {
        self.foreign.remove(&guid);
        if is_taken && !self.holds(guid) {
            self.foreign.insert(guid);
        }
    }

    pub(super) fn fail_over(&mut self) {
        self.table.clear();
        self.in_groups.clear();
    }
}

pub(super) fn block(number: u8, guids: [Guid; 8]) -> GuidInfoRecord {
    GuidInfoRecord {
        lid: Lid::new(LID),
        block: number,
        guids,
        ..GuidInfoRecord::default()
    }
}

/// The entries that a request's component mask names, by table index, with the GUIDs asked for.
pub(super) fn entries(asked: &SaMad) -> Vec<(u16, u64)> {
    let record: GuidInfoRecord = asked.record();
    let first = u16::from(record.block) * 8;
    let named = (first..).zip(record.guids).enumerate();
    named
        .filter(|(at, _)| {
            let component = GuidInfoRecord::guid_component(*at);
            asked.component_mask.contains(component)
        })
        .map(|(_, (index, guid))| (index, guid.get()))
        .collect()
}
