//! The commands about queues, as types.

use hca_api::Hca;
use ib_wire::Gid;
use mlx4_defs::cq::{CqContext, MODIFY_MODERATION, MODIFY_RESIZE, SW2HW_INITIALISED};
use mlx4_defs::qp::{AttachModifier, MulticastGroup, QpMailbox, QpModifier};
use mlx4_defs::srq::SrqContext;
use mlx4_defs::{Cqn, Opcode, Status, Vhcr};

use super::super::vhcr::fetch_mailbox;
use super::moderation::Moderation;
use super::transition::Transition;

/// A command about a queue.
#[derive(Debug)]
pub(in super::super) enum QueueCommand {
    /// Make a completion queue, whose entries the driver may have given to the device.
    CreateCq {
        cqn: u32,
        context: CqContext,
        initialised: bool,
    },
    /// End a completion queue.
    DestroyCq { cqn: u32 },
    /// Go on in another buffer.
    ResizeCq { cqn: u32, context: CqContext },
    /// Wait for more completions before an event, or no more.
    ModerateCq {
        cqn: u32,
        moderation: Option<Moderation>,
    },
    /// Make a shared receive queue.
    CreateSrq { srqn: u32, context: SrqContext },
    /// End a shared receive queue.
    DestroySrq { srqn: u32 },
    /// A shared receive queue as it stands.
    QuerySrq { srqn: u32 },
    /// Tell when fewer receives are left.
    ArmSrq { srqn: u32, limit: u16 },
    /// Change a queue pair's state.
    Transit {
        qpn: u32,
        transition: Transition,
        drained_event: bool,
        given: Box<QpMailbox>,
    },
    /// Reset a queue pair.
    ResetQp { qpn: u32 },
    /// A queue pair as it stands.
    QueryQp { qpn: u32 },
    /// Give a queue pair a group's packets, its own perhaps excepted.
    Attach {
        qpn: u32,
        mgid: Gid,
        block_loopback: bool,
    },
    /// Give a queue pair a group's packets no more.
    Detach { qpn: u32, mgid: Gid },
}

/// Op modifier of [`Opcode::QP_ATTACH`]: attach.
const ATTACH: u8 = 1;
/// Op modifier of [`Opcode::QP_ATTACH`]: detach.
const DETACH: u8 = 0;
/// [`AttachModifier::protocol`] of InfiniBand.
const INFINIBAND: u8 = 0;

impl QueueCommand {
    /// What the register says, if it is about a queue. Reads the input mailbox of commands that have one.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for parameters that cannot be meant.
    pub(in super::super) fn parse(hca: &dyn Hca, vhcr: &Vhcr) -> Result<Option<Self>, Status> {
        const NUMBER_MASK: u32 = 0xff_ffff;

        let number = vhcr.in_modifier.get() & NUMBER_MASK;
        let variant = vhcr.op_modifier();
        Ok(Some(match vhcr.opcode() {
            Opcode::SW2HW_CQ => Self::CreateCq {
                cqn: number,
                context: *fetch_mailbox(hca, vhcr)?.view(),
                initialised: variant == SW2HW_INITIALISED,
            },
            Opcode::HW2SW_CQ => Self::DestroyCq { cqn: number },
            Opcode::MODIFY_CQ if variant == MODIFY_RESIZE => Self::ResizeCq {
                cqn: number,
                context: *fetch_mailbox(hca, vhcr)?.view(),
            },
            Opcode::MODIFY_CQ if variant == MODIFY_MODERATION => Self::ModerateCq {
                cqn: number,
                moderation: Moderation::of(fetch_mailbox(hca, vhcr)?.view()),
            },
            Opcode::SW2HW_SRQ => Self::CreateSrq {
                srqn: number,
                context: *fetch_mailbox(hca, vhcr)?.view(),
            },
            Opcode::HW2SW_SRQ => Self::DestroySrq { srqn: number },
            Opcode::QUERY_SRQ => Self::QuerySrq { srqn: number },
            Opcode::ARM_SRQ => {
                let [.., high, low] = vhcr.in_param.get().to_be_bytes();
                Self::ArmSrq {
                    srqn: number,
                    limit: u16::from_be_bytes([high, low]),
                }
            }
            // The mailbox that comes with it says nothing.
            Opcode::TO_ERR_QP => Self::Transit {
                qpn: number,
                transition: Transition::ToErr,
                drained_event: false,
                given: Box::default(),
            },
            Opcode::TO_RST_QP => Self::ResetQp { qpn: number },
            Opcode::QUERY_QP => Self::QueryQp { qpn: number },
            Opcode::QP_ATTACH => attach(hca, vhcr)?,
            opcode => match Transition::of(opcode) {
                Some(transition) => Self::transit(hca, vhcr, transition)?,
                None => return Ok(None),
            },
        }))
    }

    /// The completion queue that it ends, if it succeeds.
    pub(in super::super) fn ended_cq(&self) -> Option<Cqn> {
        match self {
            Self::DestroyCq { cqn } => Some(Cqn::from_low_bits(*cqn)),
            _ => None,
        }
    }

    fn transit(hca: &dyn Hca, vhcr: &Vhcr, transition: Transition) -> Result<Self, Status> {
        let modifier: QpModifier = zerocopy::transmute!(vhcr.in_modifier);
        Ok(Self::Transit {
            qpn: modifier.qpn.get(),
            transition,
            drained_event: modifier.drained_event(),
            given: Box::new(*fetch_mailbox(hca, vhcr)?.view()),
        })
    }
}

fn attach(hca: &dyn Hca, vhcr: &Vhcr) -> Result<QueueCommand, Status> {
    let modifier: AttachModifier = zerocopy::transmute!(vhcr.in_modifier);
    if modifier.protocol() != INFINIBAND {
        return Err(Status::BAD_PARAM);
    }
    let qpn = modifier.qpn.get();
    let mgid = fetch_mailbox(hca, vhcr)?.view::<MulticastGroup>().mgid;
    match vhcr.op_modifier() {
        ATTACH => Ok(QueueCommand::Attach {
            qpn,
            mgid,
            block_loopback: modifier.block_loopback(),
        }),
        DETACH => Ok(QueueCommand::Detach { qpn, mgid }),
        _ => Err(Status::BAD_PARAM),
    }
}
