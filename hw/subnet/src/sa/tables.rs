//! Records that show the tables of ports and switches.

use ib_wire::mad::MadStatus;
use ib_wire::sa::{LftRecord, MftRecord, PKeyTableRecord, SlToVlRecord, VlArbRecord};
use ib_wire::smp::PKeyTable;
use ib_wire::{Lid, PortNum};

use super::Sa;
use super::request::{Found, Refusal, Request};
use super::search::{Inside, Search};
use crate::sm::{last_position, lft_block, lft_blocks, mft_block, mft_place};
use crate::topology::{Node, Port};

/// The blocks of a VLArbitrationTable.
const VL_ARB_BLOCKS: core::ops::RangeInclusive<u8> = 1..=4;

impl Sa {
    /// P_Key tables, for trusted eyes only (IBA 15.2.4, C15-0.2-1.16).
    pub(super) fn pkey_table_records(&self, request: &Request<'_>, search: &mut Search) -> Found {
        if request.mad.sm_key != self.config.sa_key {
            return Err(MadStatus::SA_REQ_INVALID.into());
        }
        let wanted: PKeyTableRecord = request.record();
        let asking = request.requester()?.1;
        let lid = request.has(PKeyTableRecord::LID).then_some(wanted.lid);
        while let Some((_, node, port_num, port)) = search.next_port(request, lid) {
            let numbered = !node.is_switch()
                || request.matches(PKeyTableRecord::PORT_NUM, wanted.port_num, port_num);
            let here = node.is_switch() || lid.is_none_or(|lid| port.owns_lid(lid));
            if numbered && here && port.shares_pkey(asking) {
                add_pkeys(request, &wanted, node, port_num, port, search)?;
            }
        }
        Ok(())
    }

    /// SL to VL tables. Without QoS the manager leaves them alone and, like OpenSM, shows zeros:
    /// everything on lane 0.
    pub(super) fn sl_to_vl_records(request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: SlToVlRecord = request.record();
        let lid = request.has(SlToVlRecord::LID).then_some(wanted.lid);
        while let Some((node, out_port)) = next_table_port(request, lid, search)? {
            let lid = node.lid(out_port);
            if !node.is_switch() {
                search.push(&SlToVlRecord {
                    lid,
                    ..SlToVlRecord::default()
                })?;
                continue;
            }
            if !request.matches(SlToVlRecord::OUT_PORT, wanted.out_port, out_port) {
                continue;
            }
            for (in_port, _) in node.ports() {
                search.spend(1);
                if request.matches(SlToVlRecord::IN_PORT, wanted.in_port, in_port) {
                    search.push(&SlToVlRecord {
                        lid,
                        in_port,
                        out_port,
                        ..SlToVlRecord::default()
                    })?;
                }
            }
        }
        Ok(())
    }

    /// VL arbitration tables; zeros without QoS, as those of [`Self::sl_to_vl_records`].
    pub(super) fn vl_arb_records(request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: VlArbRecord = request.record();
        let lid = request.has(VlArbRecord::LID).then_some(wanted.lid);
        while let Some((node, out_port)) = next_table_port(request, lid, search)? {
            let numbered = request.matches(VlArbRecord::OUT_PORT, wanted.out_port, out_port);
            if node.is_switch() && !numbered {
                continue;
            }
            for block in VL_ARB_BLOCKS {
                if request.matches(VlArbRecord::BLOCK, wanted.block, block) {
                    let lid = node.lid(out_port);
                    search.push(&VlArbRecord {
                        lid,
                        out_port,
                        block,
                        ..VlArbRecord::default()
                    })?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn lft_records(request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: LftRecord = request.record();
        let topology = request.topology();
        let (asking, owns) = switch_filter(request, request.has(LftRecord::LID), wanted.lid)?;
        while let Some((place, id, _, port)) = search.next_switch(request) {
            if !port.shares_pkey(asking) || !owns(port) {
                continue;
            }
            let first = usize::try_from(search.take_inside().part).unwrap_or(usize::MAX);
            for block in first..lft_blocks(topology, id) {
                let number = u16::try_from(block).unwrap_or(u16::MAX);
                if !request.matches(LftRecord::BLOCK, wanted.block.get(), number) {
                    continue;
                }
                let Some(table) = lft_block(topology, id, block) else {
                    continue;
                };
                if !search.spend(1) {
                    let part = block as u64;
                    search.stop_inside(place, Inside { part, found: 0 });
                    break;
                }
                let (lid, block) = (port.info.lid, number.into());
                search.push(&LftRecord {
                    lid,
                    block,
                    ports: table.ports,
                    ..LftRecord::default()
                })?;
            }
        }
        Ok(())
    }

    pub(super) fn mft_records(request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: MftRecord = request.record();
        let topology = request.topology();
        let (asking, owns) = switch_filter(request, request.has(MftRecord::LID), wanted.lid)?;
        while let Some((place, id, switch, port)) = search.next_switch(request) {
            let Some(last) = switch.mft.keys().next_back() else {
                continue;
            };
            if !port.shares_pkey(asking) || !owns(port) {
                continue;
            }
            let first = u16::try_from(search.take_inside().part).unwrap_or(u16::MAX);
            for block in first..=mft_place(*last).0 {
                if !search.spend(1) {
                    let part = u64::from(block);
                    search.stop_inside(place, Inside { part, found: 0 });
                    break;
                }
                for position in 0..=last_position(topology, id) {
                    let fits = request.matches(MftRecord::BLOCK, wanted.block(), block)
                        && request.matches(MftRecord::POSITION, wanted.position(), position);
                    if !fits {
                        continue;
                    }
                    let mut record = MftRecord {
                        lid: port.info.lid,
                        ..MftRecord::default()
                    };
                    record.set_position(position);
                    record.set_block(block);
                    record.port_masks = mft_block(&switch.mft, position, block).masks;
                    search.push(&record)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the next port that has tables, shares a partition with the sender, and belongs to the
/// LID.
fn next_table_port<'a>(
    request: &Request<'a>,
    lid: Option<Lid>,
    search: &mut Search,
) -> Result<Option<(&'a Node, PortNum)>, Refusal> {
    let asking = request.requester()?.1;
    while let Some((_, node, number, port)) = search.next_port(request, lid) {
        let here = node.is_switch() || lid.is_none_or(|lid| port.owns_lid(lid));
        if here && port.shares_pkey(asking) {
            return Ok(Some((node, number)));
        }
    }
    Ok(None)
}

/// Returns the sender's port, and the judge of whether a switch has the LID that is asked for.
fn switch_filter<'a>(
    request: &Request<'a>,
    is_asked: bool,
    lid: Lid,
) -> Result<(&'a Port, impl Fn(&Port) -> bool), Refusal> {
    let asking = request.requester()?.1;
    Ok((asking, move |port: &Port| !is_asked || port.owns_lid(lid)))
}

/// Adds the blocks of a port's P_Key table that the request names, as OpenSM does: a named block is shown even where the
/// port has none, and is in the byte order of a little-endian host, in which `saquery` reads it.
fn add_pkeys(
    request: &Request<'_>,
    wanted: &PKeyTableRecord,
    node: &Node,
    port_num: PortNum,
    port: &Port,
    search: &mut Search,
) -> Result<(), Refusal> {
    let held = port.pkeys.as_chunks::<{ PKeyTable::ENTRIES }>().0;
    let blocks = if request.has(PKeyTableRecord::BLOCK) {
        let wanted = wanted.block.get();
        wanted..=wanted
    } else {
        match u16::try_from(held.len())
            .ok()
            .and_then(|len| len.checked_sub(1))
        {
            Some(last) => 0..=last,
            None => return Ok(()),
        }
    };
    for block in blocks {
        let pkeys = held.get(usize::from(block)).copied();
        let record = PKeyTableRecord {
            lid: node.lid(port_num),
            block: block.swap_bytes().into(),
            port_num,
            pkeys: pkeys.unwrap_or_else(|| PKeyTable::default().pkeys),
            ..PKeyTableRecord::default()
        };
        search.push(&record)?;
    }
    Ok(())
}
