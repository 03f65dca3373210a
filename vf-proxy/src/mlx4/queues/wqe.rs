//! Sends of datagrams, from the bytes of a work request to what the provider takes.

use hca_api::{
    AddressVector, Payload, SendFlags, SendOp, SendRequest, Sge, UdAddress, UdDestination,
};
use ib_wire::Rate;
use mlx4_defs::wqe::{
    self, ControlSegment, DataSegment, DatagramSegment, InlineHeader, SEGMENT_UNIT, WqeOpcode,
};
use vf_tunnel::global_route;
use zerocopy::FromBytes;

use super::keys::LocalKeys;

/// A work request that no queue pair of its kind can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadWqe;

/// A send of a datagram. Bytes and list are kept apart from it, to be used again for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatagramSend {
    pub(super) opcode: WqeOpcode,
    /// Whether its success is to be told.
    pub(super) signaled: bool,
    solicited: bool,
    fence: bool,
    immediate: u32,
    /// `None` where the queue pair sends to its tunnel only.
    destination: Option<UdDestination>,
}

impl DatagramSend {
    /// Whether its packet has a GRH.
    pub(super) fn has_grh(&self) -> bool {
        let address = self.destination.map(|destination| destination.address);
        matches!(address, Some(UdAddress::Vector(vector)) if vector.grh.is_some())
    }

    /// Whether it may reach many queue pairs at once.
    pub(super) fn is_multicast(&self) -> bool {
        let address = self.destination.map(|destination| destination.address);
        matches!(address, Some(UdAddress::Vector(vector)) if vector.dlid.is_multicast())
    }
}

/// What a send sends: bytes of the request itself, and behind them memory.
#[derive(Debug, Default)]
pub(super) struct SendData {
    inline: Vec<u8>,
    gather: Vec<Sge>,
}

/// What the driver adds to the standard's code of a static rate (`MLX4_STAT_RATE_OFFSET`).
const STATIC_RATE_OFFSET: u8 = 5;

impl DatagramSend {
    /// Reads a request. `wqe` is its slot; its size stands in it. A request of a tunnelled queue pair has
    /// a destination that is not looked at.
    ///
    /// # Errors
    /// [`BadWqe`].
    pub(super) fn parse(
        wqe: &[u8],
        tunnelled: bool,
        keys: LocalKeys,
        data: &mut SendData,
    ) -> Result<Self, BadWqe> {
        let (control, _) = ControlSegment::ref_from_prefix(wqe).map_err(|_| BadWqe)?;
        let size = usize::from(control.size()) * SEGMENT_UNIT;
        let body = wqe.get(size_of::<ControlSegment>()..size).ok_or(BadWqe)?;
        if !matches!(control.opcode(), WqeOpcode::SEND | WqeOpcode::SEND_IMM) {
            return Err(BadWqe);
        }
        let (datagram, segments) = DatagramSegment::ref_from_prefix(body).map_err(|_| BadWqe)?;
        data.read(segments, keys)?;
        Ok(Self {
            opcode: control.opcode(),
            signaled: control.completion() == ControlSegment::SIGNALED,
            solicited: control.solicited(),
            fence: control.fence(),
            immediate: u32::from_be_bytes(control.immediate),
            destination: (!tunnelled).then(|| destination(datagram)),
        })
    }

    /// The request for the provider, which always completes it.
    pub(super) fn request<'d>(&self, name: u64, data: &'d SendData) -> SendRequest<'d> {
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::SOLICITED, self.solicited);
        flags.set(SendFlags::FENCE, self.fence);
        SendRequest {
            wr_id: name,
            op: if self.opcode == WqeOpcode::SEND_IMM {
                SendOp::SendImmediate(self.immediate)
            } else {
                SendOp::Send
            },
            payload: data.payload(),
            flags,
            destination: self.destination,
        }
    }
}

impl SendData {
    /// Reads the segments behind the fixed ones: inline data, then memory.
    fn read(&mut self, mut segments: &[u8], keys: LocalKeys) -> Result<(), BadWqe> {
        self.inline.clear();
        self.gather.clear();
        while !segments.is_empty() {
            let (header, rest) = InlineHeader::ref_from_prefix(segments).map_err(|_| BadWqe)?;
            let used = if header.inline() {
                let length = usize::from(header.length());
                let bytes = rest.get(..length).ok_or(BadWqe)?;
                if length != 0 && !self.gather.is_empty() {
                    return Err(BadWqe);
                }
                self.inline.extend_from_slice(bytes);
                size_of::<InlineHeader>() + length
            } else {
                let (segment, _) = DataSegment::ref_from_prefix(segments).map_err(|_| BadWqe)?;
                // The driver writes no bytes at all as none; to the adapter it would be 2 GiB.
                if segment.byte_count.get() != 0 {
                    self.gather.push(keys.sge(segment));
                }
                size_of::<DataSegment>()
            };
            let next = used.next_multiple_of(SEGMENT_UNIT).min(segments.len());
            segments = &segments[next..];
        }
        Ok(())
    }

    fn payload(&self) -> Payload<'_> {
        match (&self.inline[..], &self.gather[..]) {
            ([], gather) => Payload::Gather(gather),
            (inline, []) => Payload::Inline(inline),
            (inline, gather) => Payload::Headed(inline, gather),
        }
    }
}

fn destination(datagram: &DatagramSegment) -> UdDestination {
    UdDestination {
        address: UdAddress::Vector(address_vector(&datagram.av)),
        qpn: datagram.remote_qpn,
        // A key with the top bit stands for the queue pair's own, here and at the provider.
        qkey: datagram.qkey,
        pkey_index: None,
    }
}

fn address_vector(av: &wqe::AddressVector) -> AddressVector {
    AddressVector {
        port: av.port(),
        dlid: av.dlid,
        sl: av.sl(),
        path_bits: av.path_bits(),
        static_rate: av
            .static_rate
            .checked_sub(STATIC_RATE_OFFSET)
            .map(Rate::new),
        grh: global_route(av),
    }
}

#[cfg(test)]
mod tests;
