//! The packets that a completion tells of.

use hca_api::{Completion, CompletionFlags, CompletionOp};
use ib_wire::Mtu;
use ib_wire::packet::{Aeth, AtomicEth, AtomicMasks, Deth, Grh, ImmDt, Reth};
use mlx4_defs::wqe::WqeOpcode;
use vf_queues::is_receive;
use vf_tunnel::ToPfHeader;

use super::super::traffic::{Carried, Packets};
use super::name::SendName;
use super::qp::Qp;
use super::transport::Transport;

/// Bytes before the message of a datagram that are kept free for its GRH.
const GRH_SPACE: usize = size_of::<Grh>();
/// Bytes before a MAD in a tunnel, in either direction without the space for the GRH.
const TUNNEL_HEADER: usize = size_of::<ToPfHeader>();
/// Bytes of an atomic's answer.
const ATOMIC_ANSWER: usize = size_of::<Aeth>() + size_of::<u64>();

impl Qp {
    /// Returns the packets of a request that has succeeded.
    pub(super) fn carried(&self, completion: &Completion) -> Carried {
        let tunnelled = self.transport == Transport::Tunnel;
        match self.transport {
            Transport::Datagram | Transport::Tunnel => datagram(completion, tunnelled),
            Transport::Rc | Transport::Uc => {
                let grh = self.context.primary_path.grh();
                message(completion, self.context.mtu(), grh)
            }
        }
    }
}

fn datagram(completion: &Completion, tunnelled: bool) -> Carried {
    let received = is_receive(completion.op);
    let space = if received { GRH_SPACE } else { 0 };
    let header = if tunnelled { TUNNEL_HEADER } else { 0 };
    let payload = octets(completion).saturating_sub((space + header) as u64);
    let grh = if received {
        completion.flags.contains(CompletionFlags::GRH)
    } else {
        SendName::of(completion.wr_id).grh
    };
    let headers = size_of::<Deth>() + route(grh) + immediate(completion);
    let packets = Packets::new(1, headers as u64 + payload.next_multiple_of(4));
    one_way(received, packets)
}

/// A message of a connection, which takes as many packets as its path's MTU asks for.
fn message(completion: &Completion, mtu: Mtu, grh: bool) -> Carried {
    let payload = octets(completion);
    let most = mtu.bytes().unwrap_or(1 << 12) as u64;
    let count = payload.div_ceil(most).max(1);
    let packets = |count: u64, headers: usize, payload: u64| {
        let routes = count * route(grh) as u64;
        Packets::new(count, routes + headers as u64 + payload.next_multiple_of(4))
    };
    match completion.op {
        CompletionOp::RdmaRead => Carried {
            // The first and the last of the answers acknowledge.
            received: packets(
                count,
                size_of::<Aeth>() * if count == 1 { 1 } else { 2 },
                payload,
            ),
            sent: packets(1, size_of::<Reth>(), 0),
        },
        CompletionOp::CompareSwap | CompletionOp::FetchAdd => {
            let masked = SendName::of(completion.wr_id).opcode == WqeOpcode::MASKED_ATOMIC_CS;
            let masks = if masked { size_of::<AtomicMasks>() } else { 0 };
            Carried {
                received: packets(1, ATOMIC_ANSWER, 0),
                sent: packets(1, size_of::<AtomicEth>() + masks, 0),
            }
        }
        CompletionOp::FastRegister | CompletionOp::LocalInvalidate => Carried::default(),
        op => {
            let writes = matches!(op, CompletionOp::RdmaWrite | CompletionOp::RecvRdmaImm);
            let remote = if writes { size_of::<Reth>() } else { 0 };
            let packets = packets(count, remote + immediate(completion), payload);
            one_way(is_receive(op), packets)
        }
    }
}

fn one_way(received: bool, packets: Packets) -> Carried {
    if received {
        Carried {
            received: packets,
            ..Carried::default()
        }
    } else {
        Carried {
            sent: packets,
            ..Carried::default()
        }
    }
}

fn octets(completion: &Completion) -> u64 {
    completion.byte_len.into()
}

const fn route(grh: bool) -> usize {
    if grh { size_of::<Grh>() } else { 0 }
}

fn immediate(completion: &Completion) -> usize {
    let has = if is_receive(completion.op) {
        let headers = CompletionFlags::IMMEDIATE | CompletionFlags::INVALIDATED;
        completion.flags.intersects(headers)
    } else {
        let opcode = SendName::of(completion.wr_id).opcode;
        matches!(
            opcode,
            WqeOpcode::SEND_IMM | WqeOpcode::SEND_INVAL | WqeOpcode::RDMA_WRITE_IMM
        )
    };
    if has { size_of::<ImmDt>() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::super::name::Life;
    use super::*;

    fn completion(op: CompletionOp, opcode: WqeOpcode, byte_len: u32) -> Completion {
        let name = SendName {
            index: 0,
            opcode,
            signaled: true,
            grh: false,
        };
        Completion {
            wr_id: name.name(Life::FIRST),
            op,
            byte_len,
            ..Completion::BLANK
        }
    }

    #[test]
    fn a_datagram_is_one_packet_without_the_space_for_its_route() {
        let mut done = completion(CompletionOp::Recv, WqeOpcode::NOP, 45);
        done.flags = CompletionFlags::GRH | CompletionFlags::IMMEDIATE;
        let carried = datagram(&done, false);
        assert_eq!(carried.received, Packets::new(1, 8 + 40 + 4 + 8));
        assert_eq!(carried.sent, Packets::default());
        let mad = completion(CompletionOp::Send, WqeOpcode::SEND, 256 + 56);
        assert_eq!(datagram(&mad, true).sent, Packets::new(1, 8 + 256));
    }

    #[test]
    fn a_message_is_as_many_packets_as_its_path_takes() {
        let write = completion(CompletionOp::RdmaWrite, WqeOpcode::RDMA_WRITE_IMM, 2049);
        let carried = message(&write, Mtu::MTU_1024, true);
        assert_eq!(carried.sent, Packets::new(3, 3 * 40 + 16 + 4 + 2052));
        let empty = completion(CompletionOp::Send, WqeOpcode::SEND, 0);
        let carried = message(&empty, Mtu::MTU_256, false);
        assert_eq!(carried.sent, Packets::new(1, 0));
        let read = completion(CompletionOp::RdmaRead, WqeOpcode::RDMA_READ, 512);
        let carried = message(&read, Mtu::MTU_256, false);
        assert_eq!(carried.sent, Packets::new(1, 16));
        assert_eq!(carried.received, Packets::new(2, 8 + 512));
        let atomic = completion(CompletionOp::FetchAdd, WqeOpcode::ATOMIC_FA, 8);
        let carried = message(&atomic, Mtu::MTU_256, false);
        assert_eq!(carried.received, Packets::new(1, 12));
        assert_eq!(carried.sent, Packets::new(1, 28));
        let masked = completion(CompletionOp::CompareSwap, WqeOpcode::MASKED_ATOMIC_CS, 8);
        assert_eq!(
            message(&masked, Mtu::MTU_256, false).sent,
            Packets::new(1, 44)
        );
    }
}
