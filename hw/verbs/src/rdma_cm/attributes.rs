//! Attributes with which a program moves the queue pair of a connection to its next state.

use hca_api::{AccessFlags, AddressVector};
use ib_endpoint::MadTransport;
use zerocopy::IntoBytes;

use super::{CmHost, RdmaCm, read};
use crate::abi::queue_pair::attr_mask as mask;
use crate::abi::rdma_cm::{AhAttr, IdCommand, QpAttrAnswer};
use crate::{ChannelId, Errno};

/// States of a queue pair (`enum ibv_qp_state`).
const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;

/// Returns the path of an address vector.
pub(super) fn ah_attr(vector: &AddressVector) -> AhAttr {
    let mut attr = AhAttr {
        dlid: vector.dlid.get().into(),
        sl: vector.sl.get(),
        src_path_bits: vector.path_bits,
        static_rate: vector.static_rate.map_or(0, |rate| rate.get()),
        port_num: vector.port.0,
        ..AhAttr::default()
    };
    if let Some(route) = &vector.grh {
        attr.is_global = 1;
        attr.dgid = route.remote_gid.0;
        attr.flow_label = route.flow_label.into();
        attr.sgid_index = u8::try_from(route.sgid_index.0).unwrap_or(0);
        attr.hop_limit = route.hop_limit;
        attr.traffic_class = route.traffic_class;
    }
    attr
}

impl RdmaCm {
    pub(super) fn init_qp_attr<G: MadTransport>(
        &mut self,
        host: &mut CmHost<'_, G>,
        channel: ChannelId,
        payload: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let asked: IdCommand = read(payload)?;
        let id = self.get(channel, asked.id.get())?;
        let is_datagram = id.is_datagram();
        let state = asked.argument.get();
        let mut attr = QpAttrAnswer {
            qp_state: state.into(),
            port_num: host.port.port().0,
            qkey: id.qkey().ok_or(Errno::EADDRNOTAVAIL)?.get().into(),
            ..QpAttrAnswer::default()
        };
        let common = mask::STATE | mask::PKEY_INDEX | mask::PORT;
        let attr_mask = match (state, &id.peer) {
            (INIT, _) if is_datagram => common | mask::QKEY,
            (RTR, _) if is_datagram => mask::STATE,
            (RTS, _) if is_datagram => {
                attr.sq_psn = id.psn.into();
                mask::STATE | mask::SQ_PSN
            }
            (INIT, peer) => {
                let mut access = AccessFlags::REMOTE_WRITE;
                if peer.is_none_or(|peer| peer.responder_resources > 0) {
                    access |= AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
                }
                attr.qp_access_flags = u32::from(access.bits()).into();
                common | mask::ACCESS_FLAGS
            }
            (RTR, Some(peer)) => {
                attr.path = ah_attr(&peer.address);
                attr.path_mtu = u32::from(peer.mtu.get()).into();
                attr.dest_qp_num = peer.qpn.get().into();
                // A CM message names the PSN with which the other end is to begin (IBA 12.7.31), not its sender's own.
                attr.rq_psn = id.psn.into();
                attr.max_dest_rd_atomic = peer.responder_resources;
                mask::STATE
                    | mask::AV
                    | mask::PATH_MTU
                    | mask::DEST_QPN
                    | mask::RQ_PSN
                    | mask::MAX_DEST_RD_ATOMIC
                    | mask::MIN_RNR_TIMER
            }
            (RTS, Some(peer)) => {
                attr.sq_psn = peer.psn.get().into();
                attr.timeout = id.options.ack_timeout.unwrap_or(peer.ack_timeout);
                attr.retry_cnt = peer.retry_count;
                attr.rnr_retry = peer.rnr_retry_count;
                attr.max_rd_atomic = peer.initiator_depth;
                mask::STATE
                    | mask::SQ_PSN
                    | mask::TIMEOUT
                    | mask::RETRY_CNT
                    | mask::RNR_RETRY
                    | mask::MAX_QP_RD_ATOMIC
            }
            _ => return Err(Errno::EINVAL),
        };
        attr.attr_mask = attr_mask.into();
        Ok(attr.as_bytes().to_vec())
    }
}
