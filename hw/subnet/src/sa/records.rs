//! Records that show what discovery found: nodes, ports, switches, links, managers.

use ib_wire::mad::{MadStatus, Method};
use ib_wire::notice::ClassPortInfo;
use ib_wire::sa::{
    LinkRecord, NodeRecord, PortInfoRecord, SaRecord, SmInfoRecord, SwitchInfoRecord,
};
use ib_wire::smp::{LinkSpeed, LinkSpeedExt, NodeInfo, PortInfo, SmInfo};
use ib_wire::{MKey, PortNum, QKey, Qpn};
use zerocopy::IntoBytes;

use super::Sa;
use super::port_fields;
use super::request::{Found, Outcome, Records, Request};
use super::search::Search;
use crate::topology::{Node, NodeId, Port, PortId};

/// What the SA says of itself, the same as OpenSM without QoS: SubnetAdm notices, UD multicast,
/// MultiPathRecord and capability mask matching; full PortInfo records, extended speeds, alias
/// GUIDs, multicast service records, send-only full members and the newer link widths and speeds.
const CAPABILITY_MASK: u16 = 0x2602;
const CAPABILITY_MASK2: u32 = 0xb5e8;
/// 4.096 µs × 2^16: OpenSM's 200 ms transaction timeout, rounded up.
const RESP_TIME: u8 = 16;

/// The modifier bit of PortInfoRecord by which capability masks match if they contain the asked
/// ones.
const MATCH_CAPABILITIES: u32 = 1 << 31;
/// The option bit of PortInfoRecord by which the client knows extended speeds.
const KNOWS_EXTENDED_SPEEDS: u8 = 0x80;

impl Sa {
    pub(super) fn class_port_info(request: &Request<'_>) -> Outcome {
        if request.method() != Method::GET {
            return Err(MadStatus::SA_REQ_INVALID.into());
        }
        let mut info = ClassPortInfo {
            base_version: 1,
            class_version: 2,
            capability_mask: CAPABILITY_MASK.into(),
            redirect_qp: Qpn::GSI,
            redirect_qkey: QKey::GSI,
            trap_qkey: QKey::GSI,
            ..ClassPortInfo::default()
        };
        info.set_capability_mask2(CAPABILITY_MASK2);
        info.set_resp_time_value(RESP_TIME);
        Records::one(&ClassPortInfoRecord(info))
    }

    pub(super) fn node_records(request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: NodeRecord = request.record();
        let asking = request.requester()?.1;
        let lid = request.has(NodeRecord::LID).then_some(wanted.lid);
        let info = wanted.node_info();
        while let Some((_, node, port_num, port)) = search.next_port(request, lid) {
            let fits = node.is_end_port(port_num)
                && node_matches(request, &wanted, node)
                && request.matches(NodeRecord::PORT_GUID, info.port_guid, port.guid)
                && request.matches(NodeRecord::LOCAL_PORT_NUM, info.local_port, port_num)
                && lid.is_none_or(|lid| port.owns_lid(lid));
            if fits && port.shares_pkey(asking) {
                search.push(&node_record(node, port_num, port))?;
            }
        }
        Ok(())
    }

    pub(super) fn port_info_records(request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: PortInfoRecord = request.record();
        let asking = request.requester()?.1;
        let lid = request
            .has(PortInfoRecord::END_PORT_LID)
            .then_some(wanted.end_port_lid);
        while let Some((_, node, port_num, port)) = search.next_port(request, lid) {
            let owns = |lid| node.is_switch() || port.owns_lid(lid);
            let fits = request.matches(PortInfoRecord::PORT_NUM, wanted.port_num, port_num)
                && lid.is_none_or(owns)
                && port_matches(request, &wanted.port_info, node, port_num, port);
            if fits && port.shares_pkey(asking) {
                search.push(&port_info_record(request, &wanted, node, port_num, port))?;
            }
        }
        Ok(())
    }

    pub(super) fn switch_info_records(request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: SwitchInfoRecord = request.record();
        let asking = request.requester()?.1;
        while let Some((_, _, switch, port)) = search.next_switch(request) {
            let fits = !request.has(SwitchInfoRecord::LID) || port.owns_lid(wanted.lid);
            if fits && port.shares_pkey(asking) {
                let mut record = SwitchInfoRecord {
                    lid: port.info.lid,
                    ..SwitchInfoRecord::default()
                };
                record.set_switch_info(&switch.info);
                search.push(&record)?;
            }
        }
        Ok(())
    }

    pub(super) fn link_records(request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: LinkRecord = request.record();
        request.requester()?;
        let from = request.has(LinkRecord::FROM_LID).then_some(wanted.from_lid);
        while let Some((node, _, port, _)) = search.next_port(request, from) {
            if let Some(record) = link_record(request, &wanted, PortId { node, port }) {
                search.push(&record)?;
            }
        }
        Ok(())
    }

    pub(super) fn sm_info_records(request: &Request<'_>, search: &mut Search) -> Found {
        let wanted: SmInfoRecord = request.record();
        let asking = request.requester()?.1;
        let own = (request.view.manager.guid, request.view.manager);
        for (guid, info) in core::iter::once(own).chain(request.view.other_managers.iter().copied())
        {
            let port = request.topology().port_by_guid(guid);
            let Some(port) = port.and_then(|id| request.topology().port(id)) else {
                continue;
            };
            let asked = wanted.sm_info();
            let fits = (!request.has(SmInfoRecord::LID) || port.owns_lid(wanted.lid))
                && request.matches(SmInfoRecord::GUID, asked.guid, info.guid)
                && request.matches(SmInfoRecord::PRIORITY, asked.priority(), info.priority())
                && request.matches(SmInfoRecord::SM_STATE, asked.state(), info.state());
            if fits && port.shares_pkey(asking) {
                let mut record = SmInfoRecord {
                    lid: port.info.lid,
                    ..SmInfoRecord::default()
                };
                record.set_sm_info(&SmInfo {
                    sm_key: Default::default(),
                    ..info
                });
                search.push(&record)?;
            }
        }
        search.complete();
        Ok(())
    }
}

/// ClassPortInfo as the SA sends it: not a record, with AttributeOffset 0.
#[derive(
    zerocopy::FromBytes,
    zerocopy::IntoBytes,
    zerocopy::KnownLayout,
    zerocopy::Immutable,
    zerocopy::Unaligned,
)]
#[repr(transparent)]
struct ClassPortInfoRecord(ClassPortInfo);

impl SaRecord for ClassPortInfoRecord {
    const ATTRIBUTE_ID: ib_wire::mad::AttributeId = ib_wire::mad::AttributeId::CLASS_PORT_INFO;
    const ATTRIBUTE_OFFSET: u16 = 0;
}

fn node_matches(request: &Request<'_>, wanted: &NodeRecord, node: &Node) -> bool {
    let (asked, held): (NodeInfo, &NodeInfo) = (wanted.node_info(), &node.info);
    request.matches(NodeRecord::NODE_GUID, asked.node_guid, held.node_guid)
        && request.matches(
            NodeRecord::SYSTEM_IMAGE_GUID,
            asked.system_image_guid,
            held.system_image_guid,
        )
        && request.matches(
            NodeRecord::BASE_VERSION,
            asked.base_version,
            held.base_version,
        )
        && request.matches(
            NodeRecord::CLASS_VERSION,
            asked.class_version,
            held.class_version,
        )
        && request.matches(NodeRecord::NODE_TYPE, asked.node_type, held.node_type)
        && request.matches(NodeRecord::NUM_PORTS, asked.num_ports, held.num_ports)
        && request.matches(
            NodeRecord::PARTITION_CAP,
            asked.partition_cap,
            held.partition_cap,
        )
        && request.matches(NodeRecord::DEVICE_ID, asked.device_id, held.device_id)
        && request.matches(NodeRecord::REVISION, asked.revision, held.revision)
        && request.matches(NodeRecord::VENDOR_ID, asked.vendor_id, held.vendor_id)
        && request.matches(
            NodeRecord::NODE_DESCRIPTION,
            wanted.description.trimmed(),
            node.description.trimmed(),
        )
}

fn node_record(node: &Node, port_num: PortNum, port: &Port) -> NodeRecord {
    let mut record = NodeRecord {
        lid: port.info.lid,
        description: node.description,
        ..NodeRecord::default()
    };
    record.set_node_info(&NodeInfo {
        port_guid: port.guid,
        local_port: port_num,
        ..node.info
    });
    record
}

fn port_matches(
    request: &Request<'_>,
    asked: &PortInfo,
    node: &Node,
    port_num: PortNum,
    port: &Port,
) -> bool {
    let mask = request.mad.component_mask;
    let contained = request.mad.header.attribute_modifier.get() & MATCH_CAPABILITIES != 0;
    let extended = node.extended_speeds(port_num);
    port_fields::FIELDS
        .iter()
        .filter(|field| mask.contains(field.component))
        .all(|field| {
            if field.extended_speeds && !extended {
                return true;
            }
            field.matches(asked.as_bytes(), port.info.as_bytes(), contained)
        })
}

fn port_info_record(
    request: &Request<'_>,
    wanted: &PortInfoRecord,
    node: &Node,
    port_num: PortNum,
    port: &Port,
) -> PortInfoRecord {
    let options = if request.has(PortInfoRecord::OPTIONS) {
        wanted.options
    } else {
        0
    };
    let mut record = PortInfoRecord {
        end_port_lid: node.lid(port_num),
        port_num,
        options,
        port_info: port.info,
        ..PortInfoRecord::default()
    };
    let info = &mut record.port_info;
    // A client that does not know extended speeds sees QDR instead.
    let fast = info.link_speed_ext_active() != LinkSpeedExt::NONE;
    if options & KNOWS_EXTENDED_SPEEDS == 0 && fast && node.extended_speeds(port_num) {
        let and_qdr =
            |speed: LinkSpeed| LinkSpeed::from_low_bits(speed.get() | LinkSpeed::QDR.get());
        info.set_link_speed_enabled(and_qdr(info.link_speed_enabled()));
        info.set_link_speed_supported(and_qdr(info.link_speed_supported()));
        info.set_link_speed_active(and_qdr(info.link_speed_active()));
    }
    if !request.is_trusted() {
        info.mkey = MKey::default();
    }
    record
}

fn link_record(request: &Request<'_>, wanted: &LinkRecord, from: PortId) -> Option<LinkRecord> {
    let topology = request.topology();
    let to = topology.peer(from)?;
    let (near, far, asking) = (
        topology.port(from)?,
        topology.port(to)?,
        request.requester().ok()?.1,
    );
    let lid = |id: PortId| topology.node(id.node).lid(id.port);
    let owns = |node: NodeId, asked| {
        topology
            .port_by_lid(asked)
            .is_some_and(|id| id.node == node)
    };
    let fits = request.matches(LinkRecord::FROM_PORT, wanted.from_port, from.port)
        && request.matches(LinkRecord::TO_PORT, wanted.to_port, to.port)
        && (!request.has(LinkRecord::FROM_LID) || owns(from.node, wanted.from_lid))
        && (!request.has(LinkRecord::TO_LID) || owns(to.node, wanted.to_lid));
    let visible = near.shares_pkey(far) && near.shares_pkey(asking) && far.shares_pkey(asking);
    (fits && visible).then(|| LinkRecord {
        from_lid: lid(from),
        from_port: from.port,
        to_port: to.port,
        to_lid: lid(to),
        ..LinkRecord::default()
    })
}
