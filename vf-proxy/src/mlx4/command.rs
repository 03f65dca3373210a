//! Commands as types: what the register says, before anything of it acts.
//!
//! [`Command::parse`] is the table of opcodes.

use hca_api::Hca;
use ib_wire::{Gid, PortNum, Qpn};
use mlx4_defs::cq::{CqContext, MODIFY_MODERATION, MODIFY_RESIZE, SW2HW_INITIALISED};
use mlx4_defs::eq::{EqContext, EventMask, MapEq};
use mlx4_defs::mpt::MptEntry;
use mlx4_defs::mtt::{MttEntry, WriteMtt};
use mlx4_defs::qp::{AttachModifier, MulticastGroup, QpMailbox, QpModifier};
use mlx4_defs::query::RESET_COUNTER;
use mlx4_defs::resource::{ResourceModifier, ResourceOp, ResourceType};
use mlx4_defs::srq::SrqContext;
use mlx4_defs::{
    CounterIndex, Cqn, Eqn, MailboxLayout, MptIndex, MttIndex, Opcode, Srqn, Status, Vhcr,
};
use vf_queues::Moderation;

use super::mad_ifc::MadRequest;
use super::ports::PortSettings;
use super::queues::{Transition, moderation};
use super::resources::{Allocation, Release};
use super::vhcr::fetch_mailbox;

/// A command of the driver.
#[derive(Debug)]
pub(super) enum Command {
    /// Do nothing.
    Nop,
    /// Allocate numbers.
    Allocate(Allocation),
    /// Answer with a mailbox.
    Query(Query),
    /// Make an object, in as many steps as it takes.
    Create(Creation),
    /// Do something that has no answer but its status.
    Change(Change),
    /// Use completion queues, shared receive queues, queue pairs or multicast groups.
    Queue(QueueCommand),
}

/// A question of the driver.
#[derive(Debug)]
pub(super) enum Query {
    /// Limits of the device.
    DevCap,
    /// Version of the firmware.
    Firmware,
    /// Identification of the board.
    Adapter,
    /// Set-up of the device.
    Hca,
    /// What the function may use.
    FuncCap,
    /// What the function may use of a port.
    FuncCapPort(PortNum),
    /// Limits of a port.
    Port(PortNum),
    /// A memory region as the driver wrote it.
    Region(MptIndex),
    /// Traffic of the queue pairs with a counter.
    Counter {
        index: CounterIndex,
        /// Start from zero afterwards.
        reset: bool,
    },
    /// Answer of a port's management agent.
    Mad(Box<MadRequest>),
}

/// An object in the driver's memory that the device takes over.
#[derive(Debug)]
pub(super) enum Creation {
    /// A memory region.
    Region(MptIndex, MptEntry),
    /// An event queue.
    Eq(Eqn, EqContext),
}

/// A change that the driver wants.
#[derive(Debug)]
pub(super) enum Change {
    /// Start a port.
    InitPort(PortNum),
    /// Stop a port.
    ClosePort(PortNum),
    /// Change a port's attributes.
    SetPort(PortSettings),
    /// Give numbers back.
    Release(Release),
    /// Write page addresses from the first entry on.
    WriteMtt(MttIndex, Vec<MttEntry>),
    /// Take a memory region back.
    DestroyRegion(MptIndex),
    /// Take an event queue back.
    DestroyEq(Eqn),
    /// Assign events to an event queue.
    MapEq {
        eqn: Eqn,
        events: EventMask,
        /// Take the assignment back instead.
        unmap: bool,
    },
}

/// A command about a queue.
#[derive(Debug)]
pub(super) enum QueueCommand {
    /// Make a completion queue.
    CreateCq {
        cqn: Cqn,
        context: CqContext,
        /// The driver has given the entries to the device already.
        initialised: bool,
    },
    /// Take a completion queue back.
    DestroyCq(Cqn),
    /// Continue a completion queue in another buffer.
    ResizeCq(Cqn, CqContext),
    /// Set how many completions make an event, or that each does.
    ModerateCq(Cqn, Option<Moderation>),
    /// Make a shared receive queue.
    CreateSrq(Srqn, SrqContext),
    /// Take a shared receive queue back.
    DestroySrq(Srqn),
    /// Answer with a shared receive queue's context.
    QuerySrq(Srqn),
    /// Post an event when fewer receives than this are left.
    ArmSrq(Srqn, u16),
    /// Change a queue pair's state or attributes.
    Transit {
        qpn: Qpn,
        transition: Transition,
        /// Post an event when the send queue has drained.
        drained_event: bool,
        given: Box<QpMailbox>,
    },
    /// Reset a queue pair.
    ResetQp(Qpn),
    /// Answer with a queue pair's context.
    QueryQp(Qpn),
    /// Attach a queue pair to a multicast group.
    Attach {
        qpn: Qpn,
        mgid: Gid,
        /// Keep the queue pair's own packets from it.
        block_loopback: bool,
    },
    /// Detach a queue pair from a multicast group.
    Detach { qpn: Qpn, mgid: Gid },
}

impl Command {
    /// Returns what the register says, with every parameter as a type. Of the guest's memory this reads the
    /// input mailbox of commands that have one, once.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for a command that the function does not know, or with parameters that
    /// cannot be meant.
    pub(super) fn parse(hca: &dyn Hca, vhcr: &Vhcr) -> Result<Self, Status> {
        let given = Given { hca, vhcr };
        let variant = vhcr.op_modifier();
        Ok(match vhcr.opcode() {
            // Executed by `Objects::execute`, the numbers by `Resources::allocate`.
            Opcode::NOP => Self::Nop,
            Opcode::ALLOC_RES => Self::Allocate(given.allocation()?),

            // Executed by `Objects::query`.
            Opcode::QUERY_DEV_CAP => Self::Query(Query::DevCap),
            Opcode::QUERY_FW => Self::Query(Query::Firmware),
            Opcode::QUERY_ADAPTER => Self::Query(Query::Adapter),
            Opcode::QUERY_HCA => Self::Query(Query::Hca),
            Opcode::QUERY_FUNC_CAP if variant == 0 => Self::Query(Query::FuncCap),
            Opcode::QUERY_FUNC_CAP => Self::Query(Query::FuncCapPort(given.port()?)),
            Opcode::QUERY_PORT => Self::Query(Query::Port(given.port()?)),
            Opcode::QUERY_MPT => Self::Query(Query::Region(given.mpt_index())),
            Opcode::QUERY_IF_STAT => Self::Query(given.counter()?),
            Opcode::MAD_IFC => Self::Query(given.mad()?),

            // Begun by `Objects::execute`, finished by `Objects::go_on`.
            Opcode::SW2HW_MPT => {
                Self::Create(Creation::Region(given.mpt_index(), given.mailbox()?))
            }
            Opcode::SW2HW_EQ => Self::Create(Creation::Eq(given.eqn(), given.mailbox()?)),

            // Executed by `Objects::change`.
            Opcode::INIT_PORT => Self::Change(Change::InitPort(given.port()?)),
            Opcode::CLOSE_PORT => Self::Change(Change::ClosePort(given.port()?)),
            Opcode::SET_PORT => Self::Change(given.port_settings()?),
            Opcode::FREE_RES => Self::Change(given.release()?),
            Opcode::WRITE_MTT => Self::Change(given.page_addresses()?),
            Opcode::HW2SW_MPT => Self::Change(Change::DestroyRegion(given.mpt_index())),
            Opcode::HW2SW_EQ => Self::Change(Change::DestroyEq(given.eqn())),
            Opcode::MAP_EQ => Self::Change(given.event_map()),

            // Executed by `Queues::execute`.
            Opcode::SW2HW_CQ => Self::Queue(given.new_cq()?),
            Opcode::HW2SW_CQ => Self::Queue(QueueCommand::DestroyCq(given.cqn())),
            Opcode::MODIFY_CQ => Self::Queue(given.modify_cq()?),
            Opcode::SW2HW_SRQ => {
                Self::Queue(QueueCommand::CreateSrq(given.srqn(), given.mailbox()?))
            }
            Opcode::HW2SW_SRQ => Self::Queue(QueueCommand::DestroySrq(given.srqn())),
            Opcode::QUERY_SRQ => Self::Queue(QueueCommand::QuerySrq(given.srqn())),
            Opcode::ARM_SRQ => Self::Queue(QueueCommand::ArmSrq(given.srqn(), given.limit())),
            Opcode::RST2INIT_QP => Self::Queue(given.transition(Transition::RstToInit)?),
            Opcode::INIT2INIT_QP => Self::Queue(given.transition(Transition::InitToInit)?),
            Opcode::INIT2RTR_QP => Self::Queue(given.transition(Transition::InitToRtr)?),
            Opcode::RTR2RTS_QP => Self::Queue(given.transition(Transition::RtrToRts)?),
            Opcode::RTS2RTS_QP => Self::Queue(given.transition(Transition::RtsToRts)?),
            Opcode::SQERR2RTS_QP => Self::Queue(given.transition(Transition::SqerToRts)?),
            Opcode::RTS2SQD_QP => Self::Queue(given.transition(Transition::RtsToSqd)?),
            Opcode::SQD2RTS_QP => Self::Queue(given.transition(Transition::SqdToRts)?),
            Opcode::SQD2SQD_QP => Self::Queue(given.transition(Transition::SqdToSqd)?),
            Opcode::TO_ERR_QP => Self::Queue(given.to_error()),
            Opcode::TO_RST_QP => Self::Queue(QueueCommand::ResetQp(given.qpn())),
            Opcode::QUERY_QP => Self::Queue(QueueCommand::QueryQp(given.qpn())),
            Opcode::QP_ATTACH => Self::Queue(given.attachment()?),

            _ => return Err(Status::BAD_PARAM),
        })
    }
}

/// The register, and the memory that the input mailbox is in.
#[derive(Clone, Copy)]
struct Given<'a> {
    hca: &'a dyn Hca,
    vhcr: &'a Vhcr,
}

impl Given<'_> {
    // Numbers of objects are in the low 24 bits of the input modifier.

    fn qpn(self) -> Qpn {
        Qpn::from_low_bits(self.vhcr.in_modifier.get())
    }

    fn cqn(self) -> Cqn {
        Cqn::from_low_bits(self.vhcr.in_modifier.get())
    }

    fn srqn(self) -> Srqn {
        Srqn::from_low_bits(self.vhcr.in_modifier.get())
    }

    fn mpt_index(self) -> MptIndex {
        MptIndex::from_low_bits(self.vhcr.in_modifier.get())
    }

    /// The number of an event queue, which takes up all of the input modifier.
    fn eqn(self) -> Eqn {
        Eqn(self.vhcr.in_modifier.get())
    }

    fn port(self) -> Result<PortNum, Status> {
        u8::try_from(self.vhcr.in_modifier.get())
            .map(PortNum)
            .map_err(|_| Status::BAD_PARAM)
    }

    /// The start of the input mailbox.
    fn mailbox<T: MailboxLayout + Copy>(self) -> Result<T, Status> {
        Ok(*fetch_mailbox(self.hca, self.vhcr)?.view())
    }

    /// The kind of resource, and what to do with it.
    fn resource(self) -> (ResourceType, ResourceOp) {
        let modifier = ResourceModifier {
            word: self.vhcr.in_modifier,
        };
        let op = ResourceOp::new(self.vhcr.op_modifier());
        (modifier.resource(), op)
    }

    fn allocation(self) -> Result<Allocation, Status> {
        let (kind, op) = self.resource();
        Allocation::parse(kind, op, self.vhcr.in_param.get())
    }

    fn release(self) -> Result<Change, Status> {
        let (kind, op) = self.resource();
        Release::parse(kind, op, self.vhcr.in_param.get()).map(Change::Release)
    }

    fn counter(self) -> Result<Query, Status> {
        let modifier = self.vhcr.in_modifier.get();
        let index = u8::try_from(modifier & !RESET_COUNTER);
        Ok(Query::Counter {
            index: index.map(CounterIndex).map_err(|_| Status::BAD_RESOURCE)?,
            reset: modifier & RESET_COUNTER != 0,
        })
    }

    fn mad(self) -> Result<Query, Status> {
        let mailbox = fetch_mailbox(self.hca, self.vhcr)?;
        let modifier = self.vhcr.in_modifier.get();
        let request = MadRequest::parse(modifier, self.vhcr.op_modifier(), &mailbox);
        Ok(Query::Mad(Box::new(request)))
    }

    fn port_settings(self) -> Result<Change, Status> {
        let mailbox = fetch_mailbox(self.hca, self.vhcr)?;
        let modifier = self.vhcr.in_modifier.get();
        PortSettings::parse(modifier, self.vhcr.op_modifier(), &mailbox).map(Change::SetPort)
    }

    fn page_addresses(self) -> Result<Change, Status> {
        let count = usize::try_from(self.vhcr.in_modifier.get()).map_err(|_| Status::BAD_PARAM)?;
        let mailbox = fetch_mailbox(self.hca, self.vhcr)?;
        let write: &WriteMtt = mailbox.view();
        let entries = write.entries.get(..count).filter(|e| !e.is_empty());
        let entries = entries.ok_or(Status::BAD_PARAM)?.to_vec();
        Ok(Change::WriteMtt(MttIndex(write.first.get()), entries))
    }

    fn event_map(self) -> Change {
        let map = MapEq {
            word: self.vhcr.in_modifier,
        };
        Change::MapEq {
            eqn: map.eqn(),
            events: EventMask(self.vhcr.in_param.get()),
            unmap: map.unmap(),
        }
    }

    fn new_cq(self) -> Result<QueueCommand, Status> {
        Ok(QueueCommand::CreateCq {
            cqn: self.cqn(),
            context: self.mailbox()?,
            initialised: self.vhcr.op_modifier() == SW2HW_INITIALISED,
        })
    }

    fn modify_cq(self) -> Result<QueueCommand, Status> {
        let cqn = self.cqn();
        match self.vhcr.op_modifier() {
            MODIFY_RESIZE => Ok(QueueCommand::ResizeCq(cqn, self.mailbox()?)),
            MODIFY_MODERATION => {
                let moderation = moderation(&self.mailbox()?);
                Ok(QueueCommand::ModerateCq(cqn, moderation))
            }
            _ => Err(Status::BAD_PARAM),
        }
    }

    /// The limit of a shared receive queue, in receives.
    fn limit(self) -> u16 {
        let [.., high, low] = self.vhcr.in_param.get().to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    fn transition(self, transition: Transition) -> Result<QueueCommand, Status> {
        let modifier: QpModifier = zerocopy::transmute!(self.vhcr.in_modifier);
        Ok(QueueCommand::Transit {
            qpn: modifier.qpn,
            transition,
            drained_event: modifier.drained_event(),
            given: Box::new(self.mailbox()?),
        })
    }

    /// The mailbox that comes with this transition says nothing, and is not read.
    fn to_error(self) -> QueueCommand {
        QueueCommand::Transit {
            qpn: self.qpn(),
            transition: Transition::ToErr,
            drained_event: false,
            given: Box::default(),
        }
    }

    fn attachment(self) -> Result<QueueCommand, Status> {
        /// [`AttachModifier::protocol`] of InfiniBand.
        const INFINIBAND: u8 = 0;
        /// Values of the op modifier.
        const DETACH: u8 = 0;
        const ATTACH: u8 = 1;

        let modifier: AttachModifier = zerocopy::transmute!(self.vhcr.in_modifier);
        if modifier.protocol() != INFINIBAND {
            return Err(Status::BAD_PARAM);
        }
        let qpn = modifier.qpn;
        let MulticastGroup { mgid, .. } = self.mailbox()?;
        match self.vhcr.op_modifier() {
            ATTACH => Ok(QueueCommand::Attach {
                qpn,
                mgid,
                block_loopback: modifier.block_loopback(),
            }),
            DETACH => Ok(QueueCommand::Detach { qpn, mgid }),
            _ => Err(Status::BAD_PARAM),
        }
    }
}
