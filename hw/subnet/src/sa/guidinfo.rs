//! GUIDInfoRecord: looking up, setting and deleting alias GUIDs.

use ib_wire::mad::{MadStatus, Method};
use ib_wire::sa::{ComponentMask, GuidInfoRecord};
use ib_wire::{Guid, Lid};

use super::Sa;
use super::alias_guids::{GUIDS_PER_BLOCK, GuidChange, GuidRefusal, GuidRequest};
use super::request::{Found, Outcome, Records, Refusal, Request};
use super::search::Search;
use crate::topology::Port;

impl From<GuidRefusal> for Refusal {
    fn from(refusal: GuidRefusal) -> Self {
        Self::Status(match refusal {
            GuidRefusal::NoSuchBlock => MadStatus::SA_NO_RECORDS,
            GuidRefusal::PortGuid => MadStatus::SA_REQ_INVALID,
            GuidRefusal::InUse => MadStatus::SA_DENIED,
        })
    }
}

impl Sa {
    pub(super) fn query_guids(&self, request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: GuidInfoRecord = request.record();
        let asking = request.requester()?.1;
        let lid = request.has(GuidInfoRecord::LID).then_some(wanted.lid);
        while let Some((_, node, number, port)) = search.next_port(request, lid) {
            let here = node.is_end_port(number) && lid.is_none_or(|lid| port.owns_lid(lid));
            if here && port.shares_pkey(asking) {
                self.add_blocks(request, &wanted, port, search)?;
            }
        }
        Ok(())
    }

    fn add_blocks(
        &self,
        request: &Request<'_>,
        wanted: &GuidInfoRecord,
        port: &Port,
        search: &mut Search,
    ) -> Result<(), Refusal> {
        for block in 0..blocks(port) {
            search.spend(1);
            let guids = self.aliases.block(port.guid, block);
            let fits = request.matches(GuidInfoRecord::BLOCK, wanted.block, block)
                && (0..GUIDS_PER_BLOCK).all(|i| {
                    let component = GuidInfoRecord::guid_component(i);
                    request.matches(component, wanted.guids[i], guids[i])
                });
            if fits {
                let lid = port.info.lid;
                search.push(&GuidInfoRecord {
                    lid,
                    block,
                    guids,
                    ..GuidInfoRecord::default()
                })?;
            }
        }
        Ok(())
    }

    pub(super) fn change_guids(&mut self, request: &Request<'_>) -> Outcome {
        if !request.has(GuidInfoRecord::LID | GuidInfoRecord::BLOCK) {
            return Err(MadStatus::SA_INSUFFICIENT_COMPONENTS.into());
        }
        let mut record: GuidInfoRecord = request.record();
        let asking = request.requester()?.1;
        let port = owner(request, record.lid).ok_or(MadStatus::SA_NO_RECORDS)?;
        if !port.shares_pkey(asking) {
            return Err(Refusal::Silent);
        }
        let change = GuidRequest {
            port: port.guid,
            capacity: port.info.guid_cap,
            block: record.block,
            mask: entries(request.mad.component_mask),
        };
        let GuidChange { block, changed } = if request.method() == Method::SET {
            let is_port_guid = |guid| request.topology().port_by_guid(guid).is_some();
            self.aliases.set(change, &record.guids, is_port_guid)?
        } else {
            let groups = &self.groups;
            self.aliases
                .delete(change, |alias| groups.has_member(alias))?
        };
        if changed {
            self.changed_guids.insert((port.guid, record.block));
        }
        record.guids = block;
        Records::one(&record)
    }

    /// The next block of a port's GUID table that changed, for the manager to write: port, block
    /// number, GUIDs.
    pub fn poll_guid_change(&mut self) -> Option<(Guid, u8, [Guid; GUIDS_PER_BLOCK])> {
        let (port, block) = self.changed_guids.pop_first()?;
        Some((port, block, self.aliases.block(port, block)))
    }
}

fn owner<'a>(request: &Request<'a>, lid: Lid) -> Option<&'a Port> {
    request
        .topology()
        .port(request.topology().port_by_lid(lid)?)
}

/// How many blocks the port's GUID table has.
fn blocks(port: &Port) -> u8 {
    port.info.guid_cap.div_ceil(8)
}

/// The entries of a block that a component mask means, as bits.
fn entries(mask: ComponentMask) -> u8 {
    (0..GUIDS_PER_BLOCK)
        .filter(|i| mask.contains(GuidInfoRecord::guid_component(*i)))
        .fold(0, |bits, i| bits | 1 << i)
}
