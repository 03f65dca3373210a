//! Send requests as programs write them into rings.

use hca_api::{LKey, MwBind, Payload, RKey, RemoteAddress, SendFlags, SendOp, Sge};
use ib_wire::packet::{FlushPlacement, FlushSelectivity};
use ib_wire::{QKey, Qpn};
use verbs_link::abi::ring::{
    AtomicArguments, BindArguments, DatagramArguments, FlushArguments, RdmaArguments, SEND_HEADER,
    SendElement, opcode, send_flags,
};
use zerocopy::FromBytes;

use crate::rights::rights;
use crate::ring::entries;

/// Sizes of a send queue, as the machine made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendShape {
    pub(crate) max_sge: usize,
    pub(crate) max_inline: usize,
}

impl SendShape {
    /// Bytes of an element.
    pub(crate) const fn element(self) -> usize {
        let list = self.max_sge * verbs_link::abi::ring::SGE_SIZE;
        let longer = if list > self.max_inline {
            list
        } else {
            self.max_inline
        };
        SEND_HEADER + longer
    }
}

/// A destination as a request names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedDestination {
    pub(crate) ah_num: u32,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: QKey,
}

/// A send request, copied out of its ring.
#[derive(Debug)]
pub(crate) struct SendWork<'b> {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp<'static>,
    /// `true` if the program wants a completion also on success.
    pub(crate) signaled: bool,
    pub(crate) flags: SendFlags,
    pub(crate) destination: NamedDestination,
    list: Vec<Sge>,
    inline: Option<&'b [u8]>,
}

impl<'b> SendWork<'b> {
    /// Reads a request from a copy of its element. Returns the name of one that the device does not know as an error.
    pub(crate) fn read(element: &'b [u8], shape: SendShape) -> Result<Self, u64> {
        let (head, rest) = SendElement::ref_from_prefix(element).map_err(|_| 0_u64)?;
        let wr_id = head.wr_id.get();
        let op = operation(head).ok_or(wr_id)?;
        let given = head.send_flags.get();
        let length = usize::try_from(head.length.get()).unwrap_or(usize::MAX);
        let count = head.num_sge.get();
        // Some releases leave the flag out where a program gives the bytes by `ibv_wr_set_inline_data`.
        let is_inline = given & send_flags::INLINE != 0 || (count == 0 && length > 0);
        // The length of a flush counts bytes of the peer.
        let is_inline = is_inline && !matches!(op, SendOp::Flush { .. });
        let inline = if is_inline {
            let bytes = rest.get(..length).filter(|_| length <= shape.max_inline);
            Some(bytes.ok_or(wr_id)?)
        } else {
            None
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::FENCE, given & send_flags::FENCE != 0);
        flags.set(SendFlags::SOLICITED, given & send_flags::SOLICITED != 0);
        let (to, _) = DatagramArguments::read_from_prefix(&head.arguments).map_err(|_| wr_id)?;
        Ok(Self {
            wr_id,
            op,
            signaled: given & send_flags::SIGNALED != 0,
            flags,
            destination: NamedDestination {
                ah_num: to.ah_num.get(),
                qpn: Qpn::from_low_bits(to.remote_qpn.get()),
                qkey: QKey::new(to.remote_qkey.get()),
            },
            list: match inline {
                Some(_) => Vec::new(),
                None => entries(rest, count, shape.max_sge).collect(),
            },
            inline,
        })
    }

    /// Returns the bytes, or where they are.
    pub(crate) fn payload(&self) -> Payload<'_> {
        match self.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Gather(&self.list),
        }
    }
}

fn operation(head: &SendElement) -> Option<SendOp<'static>> {
    let immediate = u32::from_be_bytes(head.immediate);
    let key = RKey(u32::from_ne_bytes(head.immediate));
    let (rdma, _) = RdmaArguments::read_from_prefix(&head.arguments).ok()?;
    let rdma = RemoteAddress {
        addr: rdma.remote_addr.get(),
        rkey: RKey(rdma.rkey.get()),
    };
    let (atomic, _) = AtomicArguments::read_from_prefix(&head.arguments).ok()?;
    let remote = RemoteAddress {
        addr: atomic.remote_addr.get(),
        rkey: RKey(atomic.rkey.get()),
    };
    let operand = atomic.compare_add.get();
    Some(match head.opcode.get() {
        opcode::SEND => SendOp::Send,
        opcode::SEND_WITH_IMM => SendOp::SendImmediate(immediate),
        opcode::SEND_WITH_INV => SendOp::SendInvalidate(key),
        opcode::RDMA_WRITE => SendOp::RdmaWrite(rdma),
        opcode::RDMA_WRITE_WITH_IMM => SendOp::RdmaWriteImmediate(rdma, immediate),
        opcode::RDMA_READ => SendOp::RdmaRead(rdma),
        opcode::ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            remote,
            compare: operand,
            swap: atomic.swap.get(),
        },
        opcode::ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
            remote,
            add: operand,
        },
        opcode::FLUSH => flush(head)?,
        opcode::ATOMIC_WRITE => SendOp::AtomicWrite(rdma),
        opcode::LOCAL_INV => SendOp::LocalInvalidate(key),
        opcode::BIND_MW => {
            let (bind, _) = BindArguments::read_from_prefix(&head.arguments).ok()?;
            SendOp::BindWindow(MwBind {
                window: RKey(bind.mw_rkey.get()),
                variant: bind.rkey.get().to_le_bytes()[0],
                region: LKey(bind.mr_lkey.get()),
                addr: bind.addr.get(),
                len: bind.length.get(),
                // The rights of a window have the same bits.
                access: rights(bind.access.get()),
            })
        }
        _ => return None,
    })
}

/// Returns a flush, or `None` if its selectivity is a reserved one. The peer judges placement, range and rights.
fn flush(head: &SendElement) -> Option<SendOp<'static>> {
    let (flush, _) = FlushArguments::read_from_prefix(&head.arguments).ok()?;
    let len = match FlushSelectivity::new(flush.selectivity)? {
        FlushSelectivity::RANGE => Some(head.length.get()),
        FlushSelectivity::REGION => None,
        _ => return None,
    };
    Some(SendOp::Flush {
        remote: RemoteAddress {
            addr: flush.remote_addr.get(),
            rkey: RKey(flush.rkey.get()),
        },
        len,
        placement: FlushPlacement::from_low_bits(flush.placement),
    })
}
