//! Records that show the tables of ports and switches.

use ib_wire::PortNum;
use ib_wire::mad::MadStatus;
use ib_wire::sa::{LftRecord, MftRecord, PKeyTableRecord, SlToVlRecord, VlArbRecord};
use ib_wire::smp::PKeyTable;

use super::Sa;
use super::request::{Outcome, Records, Refusal, Request};
use crate::sm::{last_position, lft_block, lft_blocks, mft_block, mft_place};
use crate::topology::{Node, NodeId, Port};

/// The blocks of a VLArbitrationTable.
const VL_ARB_BLOCKS: core::ops::RangeInclusive<u8> = 1..=4;

/// The ports of a node that have tables: all ports of a switch, the end ports of others.
fn table_ports(node: &Node) -> impl Iterator<Item = (PortNum, &Port)> {
    node.ports()
}

impl Sa {
    /// P_Key tables, for trusted eyes only (IBA 15.2.4, C15-0.2-1.16).
    pub(super) fn pkey_table_records(&self, request: &Request<'_>) -> Outcome {
        request.only_queries()?;
        if request.mad.sm_key != self.config.sa_key {
            return Err(MadStatus::SA_REQ_INVALID.into());
        }
        let wanted: PKeyTableRecord = request.record();
        let asking = request.requester()?.1;
        let lid = request.has(PKeyTableRecord::LID).then_some(wanted.lid);
        let mut found = Records::none::<PKeyTableRecord>();
        for id in request.nodes(lid) {
            let node = request.topology().node(id);
            for (port_num, port) in node.ports() {
                let numbered = !node.is_switch()
                    || request.matches(PKeyTableRecord::PORT_NUM, wanted.port_num, port_num);
                let here = node.is_switch() || lid.is_none_or(|lid| port.owns_lid(lid));
                if numbered && here && port.shares_pkey(asking) {
                    add_pkeys(request, &wanted, node, port_num, port, &mut found)?;
                }
            }
        }
        Ok(found)
    }

    /// SL to VL tables. Without QoS the manager leaves them alone and, like OpenSM, shows zeros:
    /// everything on lane 0.
    pub(super) fn sl_to_vl_records(request: &Request<'_>) -> Outcome {
        request.only_queries()?;
        let wanted: SlToVlRecord = request.record();
        let lid = request.has(SlToVlRecord::LID).then_some(wanted.lid);
        let mut found = Records::none::<SlToVlRecord>();
        for_each_port(request, lid, |node, out_port| {
            let lid = node.lid(out_port);
            if !node.is_switch() {
                return found.push(&SlToVlRecord {
                    lid,
                    ..SlToVlRecord::default()
                });
            }
            if !request.matches(SlToVlRecord::OUT_PORT, wanted.out_port, out_port) {
                return Ok(());
            }
            for (in_port, _) in table_ports(node) {
                if request.matches(SlToVlRecord::IN_PORT, wanted.in_port, in_port) {
                    found.push(&SlToVlRecord {
                        lid,
                        in_port,
                        out_port,
                        ..SlToVlRecord::default()
                    })?;
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// VL arbitration tables; zeros without QoS, as those of [`Self::sl_to_vl_records`].
    pub(super) fn vl_arb_records(request: &Request<'_>) -> Outcome {
        request.only_queries()?;
        let wanted: VlArbRecord = request.record();
        let lid = request.has(VlArbRecord::LID).then_some(wanted.lid);
        let mut found = Records::none::<VlArbRecord>();
        for_each_port(request, lid, |node, out_port| {
            let numbered = request.matches(VlArbRecord::OUT_PORT, wanted.out_port, out_port);
            if node.is_switch() && !numbered {
                return Ok(());
            }
            for block in VL_ARB_BLOCKS {
                if request.matches(VlArbRecord::BLOCK, wanted.block, block) {
                    let lid = node.lid(out_port);
                    found.push(&VlArbRecord {
                        lid,
                        out_port,
                        block,
                        ..VlArbRecord::default()
                    })?;
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    pub(super) fn lft_records(request: &Request<'_>) -> Outcome {
        request.only_queries()?;
        let wanted: LftRecord = request.record();
        let topology = request.topology();
        let mut found = Records::none::<LftRecord>();
        for (id, port) in switches(request, request.has(LftRecord::LID).then_some(wanted.lid))? {
            for block in 0..lft_blocks(topology, id) {
                let number = u16::try_from(block).unwrap_or(u16::MAX);
                if !request.matches(LftRecord::BLOCK, wanted.block.get(), number) {
                    continue;
                }
                let Some(table) = lft_block(topology, id, block) else {
                    continue;
                };
                let (lid, block) = (port.info.lid, number.into());
                found.push(&LftRecord {
                    lid,
                    block,
                    ports: table.ports,
                    ..LftRecord::default()
                })?;
            }
        }
        Ok(found)
    }

    pub(super) fn mft_records(request: &Request<'_>) -> Outcome {
        request.only_queries()?;
        let wanted: MftRecord = request.record();
        let topology = request.topology();
        let mut found = Records::none::<MftRecord>();
        for (id, port) in switches(request, request.has(MftRecord::LID).then_some(wanted.lid))? {
            let Some(switch) = &topology.node(id).switch else {
                continue;
            };
            let Some(last) = switch.mft.keys().next_back() else {
                continue;
            };
            for block in 0..=mft_place(*last).0 {
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
                    found.push(&record)?;
                }
            }
        }
        Ok(found)
    }
}

/// Calls `add` for each port that has tables, shares a partition with the sender, and belongs to
/// the LID.
fn for_each_port(
    request: &Request<'_>,
    lid: Option<ib_wire::Lid>,
    mut add: impl FnMut(&Node, PortNum) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let asking = request.requester()?.1;
    for id in request.nodes(lid) {
        let node = request.topology().node(id);
        for (port_num, port) in table_ports(node) {
            let here = node.is_switch() || lid.is_none_or(|lid| port.owns_lid(lid));
            if here && port.shares_pkey(asking) {
                add(node, port_num)?;
            }
        }
    }
    Ok(())
}

/// The switches that a LID selects and the sender may see, with their management ports.
fn switches<'a>(
    request: &Request<'a>,
    lid: Option<ib_wire::Lid>,
) -> Result<Vec<(NodeId, &'a Port)>, Refusal> {
    let asking = request.requester()?.1;
    let topology = request.topology();
    let management = |id: &NodeId| {
        let port = topology.node(*id).port(PortNum::SWITCH_MANAGEMENT)?;
        Some((*id, port))
    };
    Ok(topology
        .switches()
        .iter()
        .filter_map(management)
        .filter(|(_, port)| port.shares_pkey(asking) && lid.is_none_or(|lid| port.owns_lid(lid)))
        .collect())
}

/// Adds the blocks of a port's P_Key table that the request names, as OpenSM does: a named block is shown even where the
/// port has none, and is in the byte order of a little-endian host, in which `saquery` reads it.
fn add_pkeys(
    request: &Request<'_>,
    wanted: &PKeyTableRecord,
    node: &Node,
    port_num: PortNum,
    port: &Port,
    found: &mut Records,
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
        found.push(&record)?;
    }
    Ok(())
}
