//! Commands as types: what the register says, before anything of it acts.

use hca_api::Hca;
use ib_wire::PortNum;
use mlx4_defs::eq::{EqContext, EventMask, MapEq};
use mlx4_defs::mpt::MptEntry;
use mlx4_defs::mtt::{MttEntry, WriteMtt};
use mlx4_defs::query::RESET_COUNTER;
use mlx4_defs::resource::{ResourceModifier, ResourceOp, ResourceType};
use mlx4_defs::{Opcode, Status, Vhcr};

use super::mad_ifc::MadRequest;
use super::ports::PortSettings;
use super::queues::QueueCommand;
use super::resources::{Allocation, Release};
use super::vhcr::fetch_mailbox;

/// A command of the driver.
#[derive(Debug)]
pub(super) enum Command {
    /// Do nothing.
    Nop,
    /// Tell something, in a mailbox.
    Query(Query),
    /// Give numbers.
    Allocate(Allocation),
    /// About completion queues, shared receive queues, queue pairs or multicast groups.
    Queue(QueueCommand),
    /// Make something that can take long.
    Create(Creation),
    /// Do something that has no answer but its status.
    Change(Change),
}

/// What the driver has made of its memory.
#[derive(Debug)]
pub(super) enum Creation {
    /// A memory region.
    Region { index: u32, entry: MptEntry },
    /// An event queue.
    Eq { eqn: u32, context: EqContext },
}

/// What the driver asks.
#[derive(Debug)]
pub(super) enum Query {
    /// What the device can do.
    DevCap,
    /// The firmware's version.
    Firmware,
    /// The board.
    Adapter,
    /// How the device is set up.
    Hca,
    /// What the function may use.
    FuncCap,
    /// What the function may use of a port.
    FuncCapPort { port: PortNum },
    /// A port.
    Port { port: PortNum },
    /// A memory region as it was written.
    Region { index: u32 },
    /// What the queue pairs with a counter have carried; perhaps it starts from zero then.
    Counter { index: u32, reset: bool },
    /// What a port's management agent answers.
    Mad(Box<MadRequest>),
}

/// What the driver has done.
#[derive(Debug)]
pub(super) enum Change {
    /// The driver starts using a port.
    InitPort { port: PortNum },
    /// The driver stops using a port.
    ClosePort { port: PortNum },
    /// Change a port.
    SetPort(PortSettings),
    /// Take numbers back.
    Release(Release),
    /// Write page addresses.
    WriteMtt { first: u64, entries: Vec<MttEntry> },
    /// End a memory region.
    DestroyRegion { index: u32 },
    /// End an event queue.
    DestroyEq { eqn: u32 },
    /// Assign events to an event queue.
    MapEq {
        eqn: u32,
        events: EventMask,
        unmap: bool,
    },
}

/// Numbers of objects have 24 bits.
const NUMBER_MASK: u32 = 0xff_ffff;

impl Command {
    /// What the register says. Reads the input mailbox of commands that have one.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for a command that the function does not know, or with parameters that
    /// cannot be meant.
    pub(super) fn parse(hca: &dyn Hca, vhcr: &Vhcr) -> Result<Self, Status> {
        if vhcr.opcode() == Opcode::NOP {
            return Ok(Self::Nop);
        }
        if vhcr.opcode() == Opcode::ALLOC_RES {
            let (kind, op) = resource(vhcr);
            return Allocation::parse(kind, op, vhcr.in_param.get()).map(Self::Allocate);
        }
        if let Some(query) = Query::parse(hca, vhcr)? {
            return Ok(Self::Query(query));
        }
        if let Some(command) = QueueCommand::parse(hca, vhcr)? {
            return Ok(Self::Queue(command));
        }
        if let Some(creation) = Creation::parse(hca, vhcr)? {
            return Ok(Self::Create(creation));
        }
        Change::parse(hca, vhcr).map(Self::Change)
    }
}

impl Creation {
    fn parse(hca: &dyn Hca, vhcr: &Vhcr) -> Result<Option<Self>, Status> {
        Ok(Some(match vhcr.opcode() {
            Opcode::SW2HW_MPT => Self::Region {
                index: number(vhcr),
                entry: *fetch_mailbox(hca, vhcr)?.view(),
            },
            Opcode::SW2HW_EQ => Self::Eq {
                eqn: vhcr.in_modifier.get(),
                context: *fetch_mailbox(hca, vhcr)?.view(),
            },
            _ => return Ok(None),
        }))
    }
}

impl Query {
    /// The question that a command is, if it is one.
    fn parse(hca: &dyn Hca, vhcr: &Vhcr) -> Result<Option<Self>, Status> {
        let modifier = vhcr.in_modifier.get();
        let query = match vhcr.opcode() {
            Opcode::QUERY_DEV_CAP => Self::DevCap,
            Opcode::QUERY_FW => Self::Firmware,
            Opcode::QUERY_ADAPTER => Self::Adapter,
            Opcode::QUERY_HCA => Self::Hca,
            Opcode::QUERY_FUNC_CAP if vhcr.op_modifier() == 0 => Self::FuncCap,
            Opcode::QUERY_FUNC_CAP => Self::FuncCapPort {
                port: port(modifier)?,
            },
            Opcode::QUERY_PORT => Self::Port {
                port: port(modifier)?,
            },
            Opcode::QUERY_MPT => Self::Region {
                index: number(vhcr),
            },
            Opcode::QUERY_IF_STAT => Self::Counter {
                index: modifier & !RESET_COUNTER,
                reset: modifier & RESET_COUNTER != 0,
            },
            Opcode::MAD_IFC => {
                let mailbox = fetch_mailbox(hca, vhcr)?;
                let request = MadRequest::parse(modifier, vhcr.op_modifier(), &mailbox);
                Self::Mad(Box::new(request))
            }
            _ => return Ok(None),
        };
        Ok(Some(query))
    }
}

impl Change {
    fn parse(hca: &dyn Hca, vhcr: &Vhcr) -> Result<Self, Status> {
        let modifier = vhcr.in_modifier.get();
        let change = match vhcr.opcode() {
            Opcode::INIT_PORT => Self::InitPort {
                port: port(modifier)?,
            },
            Opcode::CLOSE_PORT => Self::ClosePort {
                port: port(modifier)?,
            },
            Opcode::SET_PORT => {
                let mailbox = fetch_mailbox(hca, vhcr)?;
                Self::SetPort(PortSettings::parse(modifier, vhcr.op_modifier(), &mailbox)?)
            }
            Opcode::FREE_RES => {
                let (kind, op) = resource(vhcr);
                Self::Release(Release::parse(kind, op, vhcr.in_param.get())?)
            }
            Opcode::WRITE_MTT => Self::write_mtt(hca, vhcr)?,
            Opcode::HW2SW_MPT => Self::DestroyRegion {
                index: number(vhcr),
            },
            Opcode::HW2SW_EQ => Self::DestroyEq { eqn: modifier },
            Opcode::MAP_EQ => {
                let map = MapEq {
                    word: vhcr.in_modifier,
                };
                Self::MapEq {
                    eqn: map.eqn().into(),
                    events: EventMask(vhcr.in_param.get()),
                    unmap: map.unmap(),
                }
            }
            _ => return Err(Status::BAD_PARAM),
        };
        Ok(change)
    }

    fn write_mtt(hca: &dyn Hca, vhcr: &Vhcr) -> Result<Self, Status> {
        let count = usize::try_from(vhcr.in_modifier.get()).map_err(|_| Status::BAD_PARAM)?;
        let mailbox = fetch_mailbox(hca, vhcr)?;
        let write: &WriteMtt = mailbox.view();
        let entries = write.entries.get(..count).filter(|e| !e.is_empty());
        Ok(Self::WriteMtt {
            first: write.first.get(),
            entries: entries.ok_or(Status::BAD_PARAM)?.to_vec(),
        })
    }
}

/// The object that a modifier names.
fn number(vhcr: &Vhcr) -> u32 {
    vhcr.in_modifier.get() & NUMBER_MASK
}

/// The port that a modifier names.
fn port(modifier: u32) -> Result<PortNum, Status> {
    u8::try_from(modifier)
        .map(PortNum)
        .map_err(|_| Status::BAD_PARAM)
}

/// The kind of resource that a command is about, and what to do with it.
fn resource(vhcr: &Vhcr) -> (ResourceType, ResourceOp) {
    let modifier = ResourceModifier {
        word: vhcr.in_modifier,
    };
    (modifier.resource(), ResourceOp::new(vhcr.op_modifier()))
}
