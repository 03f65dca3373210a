//! Capabilities of the device, and those that the driver refuses.

use alloc::vec::Vec;

use ib_wire::Qpn;
use mlx4_defs::bar::{RESERVED_UARS, UAR_SIZE};
use mlx4_defs::mtt::MTT_ENTRY_SIZE;
use mlx4_defs::query::{
    FuncCapRequest, QueryAdapter, QueryDevCap, QueryFirmware, QueryFuncCap, QueryFuncCapPort,
    QueryHca, QueryPort, dev_cap_flags,
};
use mlx4_defs::{MailboxLayout, Opcode};

use super::command::CommandPort;
use super::error::refused;
use super::pci::PciDevice;
use super::{Bus, Command, DriverError, Output};

/// Ports that the driver supports (`MLX4_MAX_PORTS`).
const MAX_PORTS: u8 = 2;

/// Bits of the PF's behaviour that the driver knows (`PF_CONTEXT_BEHAVIOUR_MASK`).
const PF_BEHAVIOUR: u32 = 7;

/// Log2 of the driver's pages.
const PAGE_SHIFT: u8 = 12;

/// MSI-X vectors at most (`MAX_MSIX`).
const MAX_VECTORS: u32 = 128;

/// Entries of queues that the driver does not give to users (`MLX4_IB_SQ_MAX_SPARE`).
pub(super) const SQ_MAX_SPARE: u32 = 33;

/// Capabilities of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCapabilities {
    /// Entries of the P_Key table.
    pub pkeys: u16,
    /// Entries of the GID table.
    pub gids: u16,
    /// The queue pair that stands for QP0.
    pub qp0_proxy: Qpn,
    /// Destination of its sends.
    pub qp0_tunnel: Qpn,
    /// The queue pair that stands for QP1.
    pub qp1_proxy: Qpn,
    /// Destination of its sends.
    pub qp1_tunnel: Qpn,
    /// The Q_Key of QP0, if the function may send SMPs.
    pub qp0_qkey: u32,
}

/// Capabilities of the device (`struct mlx4_caps`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Major, minor and sub-minor version of the firmware.
    pub firmware: (u32, u16, u16),
    /// The board's id.
    pub board_id: [u8; 16],
    /// Features ([`dev_cap_flags`]).
    pub flags: u64,
    /// Queue pairs, a power of two.
    pub num_qps: u32,
    /// Shared receive queues, a power of two.
    pub num_srqs: u32,
    /// Completion queues, a power of two.
    pub num_cqs: u32,
    /// Memory regions, a power of two.
    pub num_mpts: u32,
    /// Event queues.
    pub num_eqs: u32,
    /// The first event queue that is the driver's.
    pub reserved_eqs: u32,
    /// UAR pages, a power of two.
    pub num_uars: u32,
    /// The first UAR that is the driver's.
    pub reserved_uars: u32,
    /// The first protection domain that is the driver's.
    pub reserved_pds: u32,
    /// Completions that a queue can hold.
    pub max_cqes: u32,
    /// Requests that a queue can hold.
    pub max_wqes: u32,
    /// Requests that a shared receive queue can hold.
    pub max_srq_wqes: u32,
    /// Segments of a send.
    pub max_sq_sg: u32,
    /// Segments of a receive.
    pub max_rq_sg: u32,
    /// Bytes of a send.
    pub max_sq_desc: u32,
    /// Queue pairs that the function may own.
    pub qp_quota: u32,
    /// Completion queues that the function may own.
    pub cq_quota: u32,
    /// Shared receive queues that the function may own.
    pub srq_quota: u32,
    /// Memory regions that the function may own.
    pub mpt_quota: u32,
    /// Page addresses that the function may own.
    pub mtt_quota: u32,
    /// Counters.
    pub max_counters: u32,
    /// The key that stands for all memory.
    pub reserved_lkey: Option<u32>,
    /// `true` if there are events about ports' attributes.
    pub has_port_events: bool,
    /// The ports.
    pub ports: Vec<PortCapabilities>,
}

/// Asks, and waits by polling.
fn ask<T: MailboxLayout + Clone>(
    bus: &mut dyn Bus,
    commands: &mut CommandPort,
    command: Command,
) -> Result<T, DriverError> {
    let reply = commands.execute_polling(bus, &command.giving(Output::Mailbox))?;
    Ok(reply.mailbox.view::<T>().clone())
}

fn check(holds: bool, else_says: &str) -> Result<(), DriverError> {
    if holds {
        Ok(())
    } else {
        Err(refused(else_says))
    }
}

impl Capabilities {
    /// Asks for everything in the order of `mlx4_slave_cap` and `mlx4_init_hca`.
    pub(super) fn query(
        bus: &mut dyn Bus,
        commands: &mut CommandPort,
        pci: &PciDevice,
    ) -> Result<Self, DriverError> {
        let hca: QueryHca = ask(bus, commands, Command::new(Opcode::QUERY_HCA, 0))?;
        check(
            hca.global_caps.get() == 0,
            "Unknown hca global capabilities",
        )?;
        let dev: QueryDevCap = ask(bus, commands, Command::new(Opcode::QUERY_DEV_CAP, 0))?;
        for port in 1..=dev.ports() {
            query_port(bus, commands, port)?;
        }
        let uar_size = check_device(&dev, pci.uar_bar_len)?;
        let firmware: QueryFirmware = ask(bus, commands, Command::new(Opcode::QUERY_FW, 0))?;
        check(
            hca.uar_page_size == 0,
            "uar page size is larger than system page size",
        )?;
        let mut request = FuncCapRequest::default();
        request.set_any_eq_count(true);
        request.set_vst_qinq(true);
        let command = Command::new(Opcode::QUERY_FUNC_CAP, request.word.get());
        let function: QueryFuncCap = ask(bus, commands, command)?;
        check_function(&function)?;
        let ports = (1..=function.ports)
            .map(|port| query_special_qps(bus, commands, port))
            .collect::<Result<Vec<_>, _>>()?;
        let adapter: QueryAdapter = ask(bus, commands, Command::new(Opcode::QUERY_ADAPTER, 0))?;
        let caps = Self {
            firmware: (
                firmware.major.get(),
                firmware.minor.get(),
                firmware.subminor.get(),
            ),
            board_id: adapter.board_id(),
            flags: dev.flags(),
            num_qps: 1 << hca.log_qps(),
            num_srqs: 1 << hca.log_srqs(),
            num_cqs: 1 << hca.log_cqs(),
            num_mpts: 1 << hca.log_mpts(),
            num_eqs: function.max_eqs.get() & 0xff_ffff,
            reserved_eqs: function.reserved_eqs.get() & 0xff_ffff,
            num_uars: u32::try_from(uar_size / UAR_SIZE).unwrap_or(u32::MAX),
            reserved_uars: RESERVED_UARS.max(u32::from(dev.reserved_uars >> 4)),
            reserved_pds: u32::from(dev.reserved_pds()),
            max_cqes: (1 << dev.log_max_cq_size) - 1,
            max_wqes: 1 << dev.log_max_qp_size,
            max_srq_wqes: 1 << dev.log_max_srq_size,
            max_sq_sg: u32::from(dev.max_sq_segments),
            max_rq_sg: u32::from(dev.max_rq_segments),
            max_sq_desc: u32::from(dev.max_sq_wqe_size.get()),
            qp_quota: function.qp_quota.get(),
            cq_quota: function.cq_quota.get(),
            srq_quota: function.srq_quota.get(),
            mpt_quota: function.mpt_quota.get(),
            mtt_quota: function.mtt_quota.get(),
            max_counters: dev.max_counters.get(),
            reserved_lkey: (dev.memory_flags.reserved_lkey() && function.has_reserved_lkey())
                .then(|| function.reserved_lkey.get()),
            has_port_events: dev.flags() & dev_cap_flags::PORT_MANAGEMENT_EVENTS != 0,
            ports,
        };
        caps.check(&hca, pci.uar_bar_len)?;
        Ok(caps)
    }

    /// Checks that depend on several answers.
    fn check(&self, hca: &QueryHca, bar_len: u64) -> Result<(), DriverError> {
        let users = u64::from(self.num_uars.saturating_sub(self.reserved_uars));
        check(
            users * UAR_SIZE <= bar_len,
            "HCA reported UAR region size bigger than PCI resource 2 size",
        )?;
        check(
            !(hca.eqe_64() || hca.cqe_64()) && hca.entry_stride == 0,
            "this driver knows queue entries of 32 bytes",
        )?;
        check(
            !hca.flow_steering(),
            "this driver attaches multicast groups without flow steering",
        )?;
        check(hca.log_qps() >= 8, "libmlx4 needs at least 256 queue pairs")?;
        let specials = self.ports.iter().flat_map(|port| {
            [
                port.qp0_proxy,
                port.qp0_tunnel,
                port.qp1_proxy,
                port.qp1_tunnel,
            ]
        });
        let mut slots: Vec<u32> = specials.map(|qpn| qpn.get() & (self.num_qps - 1)).collect();
        slots.sort_unstable();
        let all = slots.len();
        slots.dedup();
        check(
            slots.len() == all && !slots.contains(&0),
            "special queue pairs share a number",
        )?;
        check(
            self.reserved_lkey
                .is_none_or(|key| key >> 8 >= self.num_mpts && key != 0x100),
            "the reserved L_Key can be that of a region",
        )
    }

    /// MSI-X vectors that the driver wants (`mlx4_enable_msi_x`).
    pub(super) fn wanted_vectors(&self, processors: u16) -> u16 {
        let ports = u32::try_from(self.ports.len()).unwrap_or(u32::MAX);
        let by_processors = ports * u32::from(processors) + 1;
        let by_eqs = self.num_eqs.saturating_sub(self.reserved_eqs);
        let wanted = by_processors.min(by_eqs).min(MAX_VECTORS);
        u16::try_from(wanted).unwrap_or(u16::MAX)
    }
}

/// Refuses as `mlx4_dev_cap` does. Returns the bytes of all UARs.
fn check_device(dev: &QueryDevCap, bar_len: u64) -> Result<u64, DriverError> {
    check(
        dev.log_min_page_size <= PAGE_SHIFT,
        "HCA minimum page size bigger than kernel PAGE_SIZE, aborting",
    )?;
    check(dev.ports() <= MAX_PORTS, "HCA has too many ports")?;
    let uar_size = 1_u64 << ((dev.log_uar_bar_size & 0x3f) + 20);
    check(
        uar_size <= bar_len,
        "HCA reported UAR size bigger than PCI resource 2 size, aborting",
    )?;
    check(
        uar_size / UAR_SIZE > u64::from(RESERVED_UARS),
        "Only few UAR pages (need more than 128)",
    )?;
    check(
        u64::from(dev.mtt_entry_size.get()) == MTT_ENTRY_SIZE,
        "this driver counts in page addresses of 8 bytes",
    )?;
    check(
        dev.sys_eqs.get() & 0xfff == 0,
        "event queues of the system in a virtual function",
    )?;
    let unwanted = dev_cap_flags::IBOE | dev_cap_flags::DPDP | dev_cap_flags::XRC;
    check(
        dev.flags() & unwanted == 0,
        "features that an InfiniBand function does not have",
    )?;
    Ok(uar_size)
}

/// Refuses as `mlx4_QUERY_FUNC_CAP` and `mlx4_slave_cap` do.
fn check_function(function: &QueryFuncCap) -> Result<(), DriverError> {
    check(
        function.ethernet() || function.rdma(),
        "neither Ethernet nor RDMA",
    )?;
    check(
        function.pf_behaviour.get() | PF_BEHAVIOUR == PF_BEHAVIOUR,
        "Unknown pf context behaviour",
    )?;
    check(function.has_quotas(), "this driver reads the new quotas")?;
    check(
        (1..=MAX_PORTS).contains(&function.ports),
        "HCA has too many ports or none",
    )
}

/// `mlx4_QUERY_PORT`. The port must be InfiniBand, or another driver binds.
fn query_port(
    bus: &mut dyn Bus,
    commands: &mut CommandPort,
    port: u8,
) -> Result<QueryPort, DriverError> {
    let command = Command::new(Opcode::QUERY_PORT, u32::from(port));
    let answer: QueryPort = ask(bus, commands, command)?;
    check(
        answer.infiniband() && !answer.ethernet(),
        "the port is not InfiniBand alone",
    )?;
    check(
        answer.log_macs() >= 7 && answer.log_vlans() >= 7,
        "Requested number of MACs is too much for port, reducing",
    )?;
    Ok(answer)
}

/// `mlx4_slave_special_qp_cap`, one port.
fn query_special_qps(
    bus: &mut dyn Bus,
    commands: &mut CommandPort,
    port: u8,
) -> Result<PortCapabilities, DriverError> {
    let command = Command::new(Opcode::QUERY_FUNC_CAP, u32::from(port)).variant(1);
    let special: QueryFuncCapPort = ask(bus, commands, command)?;
    check(
        special.physical_port == port,
        "the physical port is not the one that was asked for",
    )?;
    check(
        special.flags0 & 0x80 == 0,
        "phy_wqe_gid is enforced on this IB port",
    )?;
    let limits = query_port(bus, commands, port)?;
    check(
        limits.pkey_table_len.get() > 0 && limits.gid_table_len.get() > 0,
        "a port without P_Keys or GIDs",
    )?;
    Ok(PortCapabilities {
        pkeys: limits.pkey_table_len.get(),
        gids: limits.gid_table_len.get(),
        qp0_proxy: special.qp0_proxy,
        qp0_tunnel: special.qp0_tunnel,
        qp1_proxy: special.qp1_proxy,
        qp1_tunnel: special.qp1_tunnel,
        qp0_qkey: if special.smi_enabled() {
            special.qp0_qkey.get()
        } else {
            0
        },
    })
}
