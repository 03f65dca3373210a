//! What the function says that it can do, and how much of everything there is: the one place of these
//! values, and the answers to the driver's queries made of them.

use hca_api::{DeviceAttributes, DeviceCaps, Hca, Limits, PhysicalState, SpecialQp};
use ib_wire::PortNum;
use mlx4_defs::mtt::MTT_ENTRY_SIZE;
use mlx4_defs::query::{
    MemoryFlags, QueryAdapter, QueryDevCap, QueryFirmware, QueryFuncCap, QueryFuncCapPort,
    QueryHca, QueryPort, dev_cap_flags,
};
use mlx4_defs::{CounterIndex, Mailbox, MailboxLayout, Status};
use zerocopy::network_endian::{U16, U32, U64};

use super::mad_ifc::port_info;
use super::resources::SpecialQpns;

/// Log2 of the queue pair numbers that there are: all numbers of the adapter, so that they are unique
/// modulo their count.
const LOG_QPS: u8 = 20;
/// Log2 of the completion queue numbers.
const LOG_CQS: u8 = 16;
/// Log2 of the shared receive queue numbers.
const LOG_SRQS: u8 = 16;
/// Log2 of the entries of the memory protection table: many more than regions, since an index is all of a key that a peer
/// has to guess. The reserved key lies beyond.
pub(super) const LOG_MPTS: u8 = 22;
const _: () = assert!(RESERVED_LKEY >> 8 >= 1 << LOG_MPTS);
/// Memory regions of a driver at most.
pub(super) const MAX_REGIONS: u32 = 1 << 16;
/// Log2 of the entries of the memory translation table: pages for 4 GiB in pages of 4096 bytes.
pub(super) const LOG_MTTS: u8 = 20;
/// Log2 of the event queue numbers.
const LOG_EQS: u8 = 6;
/// Event queue numbers, those that are not the driver's included.
pub(super) const MAX_EQS: u32 = 1 << LOG_EQS;
/// The driver's first event queue number; the doorbells of lower ones are in the page of the
/// communication channel.
pub(super) const FIRST_EQN: u32 = 4;
/// Numbers below are not given out. Of memory regions that keeps the key away that ends a list of
/// receives (0x100, `MLX4_INVALID_LKEY`).
const FIRST_NUMBER: u32 = 0x40;
/// Numbers of completion queues.
pub(super) const CQ_NUMBERS: (u32, u32) = (FIRST_NUMBER, 1 << LOG_CQS);
/// Numbers of shared receive queues.
pub(super) const SRQ_NUMBERS: (u32, u32) = (FIRST_NUMBER, 1 << LOG_SRQS);
/// Indices of memory regions.
pub(super) const MPT_NUMBERS: (u32, u32) = (FIRST_NUMBER, 1 << LOG_MPTS);
/// Counters. The last one is the sink of everybody who has none (`MLX4_SINK_COUNTER_INDEX`).
const COUNTERS: u32 = 128;
/// The sink.
pub(super) const SINK_COUNTER: CounterIndex = CounterIndex(127);
const _: () = assert!(SINK_COUNTER.0 as u32 == COUNTERS - 1);
/// Indices of counters.
pub(super) const COUNTER_NUMBERS: (u32, u32) = (0, COUNTERS - 1);
/// Completion queues of a driver. It makes its event queues of the next power of two above this and 128.
pub(super) const CQ_QUOTA: u32 = (1 << 13) - 0x80;
/// Log2 of the UAR area, 8 MiB.
const LOG_UAR_AREA: u8 = 23;
/// Bytes of the UAR area, all of BAR 2.
pub(super) const UAR_AREA: u64 = 1 << LOG_UAR_AREA;
/// Log2 of the UARs.
const LOG_UARS: u8 = LOG_UAR_AREA - 12;
/// Log2 of the bytes of a multicast group's entry at most: 248 queue pairs fit.
const LOG_MC_ENTRY: u8 = 10;
/// Log2 of the smallest entry of a multicast group, in which no queue pair fits.
const LOG_MIN_MC_ENTRY: u8 = 5;
/// The key that names all of a guest's memory in the work requests of its kernel. Its index is beyond
/// the protection table.
pub(super) const RESERVED_LKEY: u32 = 0x7fff_ff00;
/// Log2 of the work requests of a queue.
const LOG_MAX_WORK_REQUESTS: u8 = 14;
/// Log2 of the entries of a completion queue.
const LOG_MAX_CQ: u8 = 16;
/// Log2 of the protection domains, which the driver numbers itself.
const LOG_MAX_PDS: u8 = 15;
/// Local ACK delay, 4.096 us * 2^n.
const ACK_DELAY: u8 = 15;
/// Every static rate can be set.
const ALL_RATES: u16 = 0xffff;
/// Log2 of the unit of the UAR area's size.
const LOG_MIB: u8 = 20;
/// What the driver multiplies the indices of page addresses with in contexts.
const MTT_ENTRY_BYTES: u16 = 8;
const _: () = assert!(MTT_ENTRY_BYTES as u64 == MTT_ENTRY_SIZE);
/// The number of a function that does not tell it.
const NO_FUNCTION: u8 = 0xff;
/// A function has one GID at each port.
const GIDS: u16 = 1;
/// Ethernet only, but fewer than 2^7 make the driver warn.
const LOG_MACS_AND_VLANS: u8 = 7;
/// Log2 of the longest message.
const LOG_MAX_MESSAGE: u8 = 30;
/// Log2 of the bytes that the device cuts into packets.
pub(super) const LOG_MAX_GSO: u8 = 16;
/// Bytes of a message that the device cuts into packets, without their headers.
pub(super) const MAX_GSO: u64 = 1 << LOG_MAX_GSO;
/// Log2 of the RDMA reads and atomics at a time.
const LOG_RDMA_PER_QP: u8 = 4;
/// Log2 of the smallest page.
const LOG_MIN_PAGE: u8 = 12;
/// Longest descriptors of send and receive queues, bytes.
const MAX_SEND_DESCRIPTOR: u16 = 1008;
const MAX_RECEIVE_DESCRIPTOR: u16 = 512;
/// Scatter and gather entries.
const MAX_SGE: u8 = 32;
/// The board, as sysfs shows it.
const BOARD_ID: [u8; 16] = *b"VHCA_VF_CX3\0\0\0\0\0";
/// Firmware 2.42.5000, a late one of the adapter's.
const FIRMWARE: (u32, u16, u16) = (2, 42, 5000);

/// How many objects of each kind the driver may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quotas {
    pub(super) qps: u32,
    pub(super) cqs: u32,
    pub(super) srqs: u32,
    pub(super) mpts: u32,
    pub(super) counters: u32,
    groups: u32,
}

impl Quotas {
    pub(super) fn of(limits: &Limits) -> Self {
        Self {
            qps: limits.max_qp.min(1 << (LOG_QPS - 4)),
            cqs: limits.max_cq.min(CQ_QUOTA),
            srqs: limits.max_srq.min(1 << (LOG_SRQS - 1)),
            mpts: limits.max_mr.min(MAX_REGIONS),
            counters: COUNTERS - 1,
            groups: limits.max_mcast_grp,
        }
    }
}

/// Ports of a function: the driver can do with two.
const MAX_PORTS: u8 = 2;

/// How many ports the function has.
fn ports(device: &DeviceAttributes) -> u8 {
    device.num_ports.min(MAX_PORTS)
}

/// Whether the function has a port.
///
/// # Errors
/// [`Status::BAD_PARAM`].
pub(super) fn check_port(hca: &dyn Hca, port: PortNum) -> Result<(), Status> {
    if (1..=ports(&hca.attributes())).contains(&port.0) {
        Ok(())
    } else {
        Err(Status::BAD_PARAM)
    }
}

/// A mailbox with an answer.
pub(super) fn answer<T: MailboxLayout>(layout: &T) -> Box<Mailbox> {
    Box::new(Mailbox::with(layout))
}

/// Log2 of a limit, rounded down, if it is smaller than our own.
fn log2(limit: u32, own: u8) -> u8 {
    let log = u8::try_from(limit.max(1).ilog2()).unwrap_or(own);
    log.min(own)
}

fn low_byte(value: u32, own: u8) -> u8 {
    u8::try_from(value).unwrap_or(own).min(own)
}

/// Log2 of the bytes of the largest entry of a multicast group in which no more than so many queue pairs fit.
fn log_mc_entry(qps: u32) -> u8 {
    let fits = |log: &u8| (1 << log) / 4 - 8 <= qps;
    (LOG_MIN_MC_ENTRY..=LOG_MC_ENTRY)
        .rev()
        .find(fits)
        .unwrap_or(LOG_MIN_MC_ENTRY)
}

/// The answer to QUERY_HCA.
pub(super) fn query_hca(device: &DeviceAttributes) -> Box<Mailbox> {
    let mut hca = QueryHca {
        log_uars: LOG_UARS,
        ..QueryHca::default()
    };
    hca.set_log_qps(LOG_QPS);
    hca.set_log_cqs(LOG_CQS);
    hca.set_log_srqs(LOG_SRQS);
    hca.set_log_eqs(LOG_EQS);
    hca.set_log_mpts(LOG_MPTS);
    hca.set_log_rdma_per_qp(LOG_RDMA_PER_QP);
    hca.set_log_mc_entry_size(log_mc_entry(device.limits.max_mcast_qp_attach));
    answer(&hca)
}

/// The answer to QUERY_DEV_CAP.
pub(super) fn query_dev_cap(device: &DeviceAttributes) -> Box<Mailbox> {
    let limits = &device.limits;
    let mut cap = QueryDevCap {
        log_max_srq_size: log2(limits.max_srq_wr, LOG_MAX_WORK_REQUESTS),
        log_max_qp_size: log2(limits.max_qp_wr, LOG_MAX_WORK_REQUESTS),
        log_max_qps: LOG_QPS,
        log_max_srqs: LOG_SRQS,
        log_max_cq_size: log2(limits.max_cqe, LOG_MAX_CQ),
        log_max_cqs: LOG_CQS,
        log_max_mpts: LOG_MPTS,
        log_max_eqs: LOG_EQS,
        log_max_initiator_depth: LOG_RDMA_PER_QP,
        log_max_responder_depth: LOG_RDMA_PER_QP,
        ack_delay: ACK_DELAY,
        log_max_message: LOG_MAX_MESSAGE,
        log_max_gso: LOG_MAX_GSO,
        rates: U16::new(ALL_RATES),
        log_uar_bar_size: LOG_UAR_AREA - LOG_MIB,
        log_min_page_size: LOG_MIN_PAGE,
        max_sq_segments: low_byte(limits.max_sge, MAX_SGE),
        max_sq_wqe_size: U16::new(MAX_SEND_DESCRIPTOR),
        max_rq_segments: low_byte(limits.max_sge, MAX_SGE),
        max_rq_wqe_size: U16::new(MAX_RECEIVE_DESCRIPTOR),
        log_max_qps_per_mcg: log2(limits.max_mcast_qp_attach, LOG_QPS),
        log_max_mcgs: log2(limits.max_mcast_grp, LOG_QPS),
        log_max_pds: LOG_MAX_PDS,
        max_counters: U32::new(COUNTERS),
        mtt_entry_size: U16::new(MTT_ENTRY_BYTES),
        memory_flags: memory_flags(device.caps),
        reserved_lkey: U32::new(RESERVED_LKEY),
        ..QueryDevCap::default()
    };
    cap.set_ports(ports(device));
    cap.set_reserved_pds(1);
    cap.set_flags(flags(device.caps));
    answer(&cap)
}

/// The flags of what guests can use.
fn flags(caps: DeviceCaps) -> u64 {
    let always = dev_cap_flags::UD_AV_PORT
        | dev_cap_flags::UD_MULTICAST
        | dev_cap_flags::COUNTERS
        | dev_cap_flags::PORT_MANAGEMENT_EVENTS;
    [
        (DeviceCaps::RC, dev_cap_flags::RC),
        (DeviceCaps::UC, dev_cap_flags::UC),
        (
            DeviceCaps::UD,
            dev_cap_flags::UD | dev_cap_flags::IPOIB_CSUM | dev_cap_flags::BLH,
        ),
        (DeviceCaps::ATOMIC, dev_cap_flags::ATOMIC),
        (DeviceCaps::SRQ, dev_cap_flags::SRQ),
        (
            DeviceCaps::BAD_PKEY_COUNTER,
            dev_cap_flags::BAD_PKEY_COUNTER,
        ),
        (
            DeviceCaps::BAD_QKEY_COUNTER,
            dev_cap_flags::BAD_QKEY_COUNTER,
        ),
    ]
    .into_iter()
    .filter(|(cap, _)| caps.contains(*cap))
    .fold(always, |flags, (_, flag)| flags | flag)
}

fn memory_flags(caps: DeviceCaps) -> MemoryFlags {
    let by_work_request = caps.contains(DeviceCaps::MEM_MGT_EXTENSIONS);
    let mut flags = MemoryFlags::default();
    flags.set_reserved_lkey(true);
    flags.set_local_invalidate(by_work_request);
    flags.set_remote_invalidate(by_work_request);
    flags.set_fast_register(by_work_request);
    flags
}

/// The answer to QUERY_FW.
pub(super) fn query_firmware() -> Box<Mailbox> {
    let (major, minor, subminor) = FIRMWARE;
    answer(&QueryFirmware {
        major: U32::new(major),
        minor: U16::new(minor),
        subminor: U16::new(subminor),
        function: NO_FUNCTION,
        ..QueryFirmware::default()
    })
}

/// The answer to QUERY_ADAPTER.
pub(super) fn query_adapter() -> Box<Mailbox> {
    let mut adapter = QueryAdapter::default();
    adapter.set_board_id(BOARD_ID);
    answer(&adapter)
}

/// The answer to QUERY_FUNC_CAP about the function.
pub(super) fn query_func_cap(device: &DeviceAttributes) -> Box<Mailbox> {
    let quotas = Quotas::of(&device.limits);
    let mut cap = QueryFuncCap {
        ports: ports(device),
        qp_quota_deprecated: U32::new(quotas.qps),
        cq_quota_deprecated: U32::new(quotas.cqs),
        srq_quota_deprecated: U32::new(quotas.srqs),
        mpt_quota_deprecated: U32::new(quotas.mpts),
        mtt_quota_deprecated: U32::new(1 << LOG_MTTS),
        mcg_quota_deprecated: U32::new(quotas.groups),
        max_eqs: U32::new(MAX_EQS),
        reserved_eqs: U32::new(FIRST_EQN),
        reserved_lkey: U32::new(RESERVED_LKEY),
        qp_quota: U32::new(quotas.qps),
        cq_quota: U32::new(quotas.cqs),
        srq_quota: U32::new(quotas.srqs),
        mpt_quota: U32::new(quotas.mpts),
        mtt_quota: U32::new(1 << LOG_MTTS),
        mcg_quota: U32::new(quotas.groups),
        ..QueryFuncCap::default()
    };
    cap.set_rdma(true);
    cap.set_has_quotas(true);
    cap.set_has_reserved_lkey(true);
    cap.set_has_qp_alloc_flags(true);
    answer(&cap)
}

/// The answer to QUERY_FUNC_CAP about a port.
pub(super) fn query_func_cap_port(
    device: &DeviceAttributes,
    port: PortNum,
    special: SpecialQpns,
) -> Box<Mailbox> {
    let mut cap = QueryFuncCapPort {
        physical_port: port.0,
        qp0_tunnel: special.tunnel(SpecialQp::Smi, port),
        qp0_proxy: special.proxy(SpecialQp::Smi, port),
        qp1_tunnel: special.tunnel(SpecialQp::Gsi, port),
        qp1_proxy: special.proxy(SpecialQp::Gsi, port),
        // Every function of the adapter tells the same of a port.
        physical_port_id: U64::new(
            device
                .system_image_guid
                .get()
                .wrapping_add(u64::from(port.0)),
        ),
        ..QueryFuncCapPort::default()
    };
    cap.set_has_physical_port_id(true);
    answer(&cap)
}

/// The answer to QUERY_PORT.
///
/// # Errors
/// [`Status::BAD_PARAM`] for a port that the function does not have.
pub(super) fn query_port(hca: &mut dyn Hca, port: PortNum) -> Result<Box<Mailbox>, Status> {
    check_port(hca, port)?;
    let attributes = hca.query_port(port).map_err(|_| Status::BAD_PARAM)?;
    let info = port_info(hca, port)?;
    let mut answered = QueryPort {
        pkey_table_len: U16::new(attributes.pkey_table_len),
        gid_table_len: U16::new(GIDS),
        ..QueryPort::default()
    };
    answered.set_infiniband(true);
    answered.set_link_up(attributes.physical_state == PhysicalState::LinkUp);
    answered.set_max_mtu(attributes.max_mtu);
    answered.set_max_width(info.link_width_supported.0);
    answered.set_log_macs(LOG_MACS_AND_VLANS);
    answered.set_log_vlans(LOG_MACS_AND_VLANS);
    answered.set_max_vl(data_lanes(info.vl_cap()));
    Ok(answer(&answered))
}

/// How many data lanes a code of PortInfo:VLCap stands for (IBA 14.2.5.6).
const fn data_lanes(code: u8) -> u8 {
    match code {
        0 | 1 => 1,
        2 => 2,
        3 => 4,
        4 => 8,
        _ => 15,
    }
}

#[cfg(test)]
mod tests {
    use emulated_hca::{Adapters, Fabric, HcaConfig};
    use hca_api::FunctionId;
    use ib_wire::Guid;
    use ib_wire::smp::LinkWidth;
    use zerocopy::IntoBytes;

    use super::*;

    fn device() -> DeviceAttributes {
        let mut fabric = Fabric::new(1);
        let node = fabric.add_hca(&HcaConfig::new(Guid::new(1), "test"));
        let hca = fabric.hca(node, FunctionId::PF).unwrap();
        DeviceAttributes {
            caps: DeviceCaps::all(),
            ..hca.attributes()
        }
    }

    #[test]
    fn the_device_has_the_bytes_that_a_simple_driver_wants() {
        let mailbox = query_dev_cap(&device());
        let bytes = mailbox.as_bytes();
        let expected: &[(usize, &[u8])] = &[
            (0x10, &[14, 14]),
            (0x19, &[16]),
            (0x26, &[0, 0]),
            (0x2d, &[16]),
            (0x37, &[2, 30]),
            (0x40, &[0x08, 0x01, 0, 0, 0, 0x34, 0x83, 0xc7]),
            (0x48, &[0, 3, 0, 12, 0]),
            (0x51, &[32, 0x03, 0xf0, 0, 32, 0x02, 0]),
            (0x64, &[0x10, 15]),
            (0x68, &[0, 0, 0, 128]),
            (0x70, &[0; 12]),
            (0x90, &[0, 8]),
            (0x94, &[0, 0, 0x0c, 0xc0, 0x7f, 0xff, 0xff, 0]),
        ];
        for (at, value) in expected {
            assert_eq!(&bytes[*at..*at + value.len()], *value, "at 0x{at:x}");
        }
    }

    /// `mlx4_core` counts the queue pairs of a group by the size of its entry: 4 × (2^log / 16 − 2).
    #[test]
    fn a_groups_entry_holds_no_more_queue_pairs_than_the_function_may_attach() {
        let mut device = device();
        for (most, log) in [
            (1 << 20, 10),
            (248, 10),
            (247, 9),
            (24, 7),
            (8, 6),
            (7, 5),
            (0, 5),
        ] {
            device.limits.max_mcast_qp_attach = most;
            let mut expected = QueryHca::default();
            expected.set_log_mc_entry_size(log);
            let said: QueryHca = *query_hca(&device).view();
            assert_eq!(said.log_mc_entry_size(), log, "of {most}");
            assert!(4 * ((1 << log) / 16 - 2) <= most);
        }
        device.limits.max_mcast_qp_attach = 24;
        let said: QueryDevCap = *query_dev_cap(&device).view();
        assert_eq!(said.log_max_qps_per_mcg, 4);
    }

    #[test]
    fn the_function_says_what_it_says_valid() {
        let mailbox = query_func_cap(&device());
        let bytes = mailbox.as_bytes();
        assert_eq!(bytes[..8], [0x5c, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[0x2c..0x34], [0, 0, 0, 64, 0, 0, 0, 4]);
        assert_eq!(bytes[0x48..0x4c], [0x7f, 0xff, 0xff, 0]);
        assert_eq!(bytes[0x54..0x58], [0, 0, 0x1f, 0x80]);
    }

    #[test]
    fn a_port_has_the_widths_and_lanes_of_its_port_info() {
        let mut config = HcaConfig::new(Guid::new(1), "test");
        for (widths, vl_cap, expected) in [
            (LinkWidth(0b11), 4, [5, 3, 0x77, 8]),
            (LinkWidth(0b1011), 3, [5, 0b1011, 0x77, 4]),
            (LinkWidth(0b1_0001), 5, [5, 1, 0x77, 15]),
        ] {
            config.port.widths = widths;
            config.port.vl_cap = vl_cap;
            let mut fabric = Fabric::new(1);
            let node = fabric.add_hca(&config);
            let mut hca = fabric.hca(node, FunctionId::PF).unwrap();
            let mailbox = query_port(&mut hca, PortNum(1)).unwrap();
            let bytes = mailbox.as_bytes();
            assert_eq!([bytes[1], bytes[6], bytes[10], bytes[11]], expected);
        }
    }

    #[test]
    fn the_firmware_and_the_board_are_named() {
        let firmware = query_firmware();
        assert_eq!(
            firmware.as_bytes()[..10],
            [0, 0, 0, 2, 0x13, 0x88, 0, 42, 0, 0xff]
        );
        assert_eq!(query_adapter().as_bytes()[0xf0..0xf4], *b"ACHV");
    }
}
