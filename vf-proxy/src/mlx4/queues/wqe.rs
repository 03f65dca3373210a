//! Work requests of send queues, from their bytes to what the provider takes.

use hca_api::{
    AccessFlags, AddressVector, FastRegister, Hca, PageList, Payload, RKey, RemoteAddress,
    SendFlags, SendOp, SendRequest, Sge, UdAddress, UdDestination,
};
use ib_wire::Rate;
use mlx4_defs::wqe::{
    self, AtomicSegment, ControlSegment, DataSegment, DatagramSegment, INLINE_ALIGN, InlineHeader,
    LocalInvalidateSegment, MaskedAtomicSegment, RegisterSegment, RemoteAddressSegment,
    SEGMENT_UNIT, SegmentationHeader, WqeOpcode,
};
use vf_tunnel::global_route;
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::super::capability::MAX_GSO;
use super::keys::LocalKeys;
use super::offload::{LONGEST_HEADERS, Segment, part, write_checksums};
use super::transport::Transport;

/// A work request that no queue pair of its kind can carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadWqe;

/// A work request. Bytes and list are kept apart from it, to be used again for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkRequest {
    pub(super) opcode: WqeOpcode,
    /// Whether its success is to be told.
    pub(super) signaled: bool,
    solicited: bool,
    fence: bool,
    op: SendOp<'static>,
    /// `None` where the queue pair sends to its tunnel or its peer only.
    destination: Option<UdDestination>,
    /// Work of the device on the packet.
    pub(super) offload: Option<Offload>,
}

/// Work of the device on the packets of IPoIB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offload {
    /// It writes the checksums.
    Checksums,
    /// It cuts the message into packets with so many bytes of TCP each.
    Segments {
        /// The maximum segment size.
        mss: u16,
    },
}

impl WorkRequest {
    /// Returns `true` if its packet has a GRH by its own choice.
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
    /// One packet of an offloaded request: headers, and the memory behind them.
    head: Vec<u8>,
    part: Vec<Sge>,
    /// Memory of the guest that a checksum is over.
    pub(super) summed: Vec<u8>,
}

/// Size of a slot that a request can fill with more units than the size field counts.
const LARGEST_SLOT: usize = 1 << 10;

/// Returns the bytes of a request in a slot of so many bytes, as its size field says: that may be more than the slot has.
pub(super) fn request_size(control: &ControlSegment, slot: usize) -> usize {
    match usize::from(control.size()) * SEGMENT_UNIT {
        // 64 units are one more than fits into the field.
        0 if slot == LARGEST_SLOT => LARGEST_SLOT,
        size => size,
    }
}

impl WorkRequest {
    /// Reads a request. `wqe` is its slot, or as much of that as the size field says. A request of a tunnelled queue pair has
    /// a destination that is not looked at.
    ///
    /// # Errors
    /// [`BadWqe`] for what the transport does not carry or the function does not offer.
    pub(super) fn parse(
        wqe: &[u8],
        transport: Transport,
        keys: LocalKeys,
        data: &mut SendData,
    ) -> Result<Self, BadWqe> {
        let (control, _) = ControlSegment::ref_from_prefix(wqe).map_err(|_| BadWqe)?;
        let size = request_size(control, wqe.len());
        let mut body = wqe.get(size_of::<ControlSegment>()..size).ok_or(BadWqe)?;
        let destination = match transport {
            Transport::Datagram => Some(destination(next::<DatagramSegment>(&mut body)?)),
            Transport::Tunnel => {
                next::<DatagramSegment>(&mut body)?;
                None
            }
            Transport::Rc | Transport::Uc => None,
        };
        let immediate = u32::from_be_bytes(control.immediate);
        let mut headers: &[u8] = &[];
        let mut offload = None;
        let op = match control.opcode() {
            WqeOpcode::LSO if transport == Transport::Datagram => {
                let (mss, bytes) = segmentation(control, &mut body)?;
                headers = bytes;
                offload = Some(Offload::Segments { mss });
                SendOp::Send
            }
            WqeOpcode::SEND => SendOp::Send,
            WqeOpcode::SEND_IMM => SendOp::SendImmediate(immediate),
            WqeOpcode::SEND_INVAL if transport == Transport::Rc => {
                SendOp::SendInvalidate(RKey(immediate))
            }
            WqeOpcode::FMR | WqeOpcode::LOCAL_INVAL if transport == Transport::Rc => {
                let op = local_op(control.opcode(), body)?;
                body = &[];
                op
            }
            other => remote_op(other, transport, immediate, &mut body)?,
        };
        data.read(body, keys)?;
        let checksums = control.ip_checksum() || control.l4_checksum();
        if offload.is_some() {
            if !data.inline.is_empty() {
                return Err(BadWqe);
            }
            data.inline.extend_from_slice(headers);
        } else if checksums && transport == Transport::Datagram {
            offload = Some(Offload::Checksums);
        }
        Ok(Self {
            opcode: control.opcode(),
            signaled: control.completion() == ControlSegment::SIGNALED,
            solicited: control.solicited(),
            fence: control.fence(),
            op,
            destination,
            offload,
        })
    }

    /// Returns `true` if it gives the guest's memory to a region, by addresses. A queue pair needs a right for that.
    pub(super) const fn registers(&self) -> bool {
        matches!(self.op, SendOp::FastRegister(_))
    }

    /// The request for the provider, which always completes it.
    pub(super) fn request<'d>(&self, name: u64, data: &'d SendData) -> SendRequest<'d> {
        let mut flags = SendFlags::SIGNALED;
        flags.set(SendFlags::SOLICITED, self.solicited);
        flags.set(SendFlags::FENCE, self.fence);
        SendRequest {
            wr_id: name,
            op: self.op,
            payload: if self.offload.is_some() {
                Payload::Headed(&data.head, &data.part)
            } else {
                data.payload()
            },
            flags,
            destination: self.destination,
        }
    }
}

/// Reads the segment of a message that is to be cut into packets: their length, and the headers that they share
/// (`struct mlx4_wqe_lso_seg`).
fn segmentation<'a>(
    control: &ControlSegment,
    body: &mut &'a [u8],
) -> Result<(u16, &'a [u8]), BadWqe> {
    let segment = next::<SegmentationHeader>(body)?;
    let length = usize::from(segment.header_length.get());
    let whole = size_of::<SegmentationHeader>() + length;
    let used = whole.next_multiple_of(SEGMENT_UNIT);
    if used > INLINE_ALIGN && !control.big_header() {
        return Err(BadWqe);
    }
    let headers = body.get(..length).ok_or(BadWqe)?;
    *body = body
        .get(used - size_of::<SegmentationHeader>()..)
        .unwrap_or_default();
    Ok((segment.mss.get(), headers))
}

/// Reads what reaches the peer's memory: the transport has to be connected, and for answers reliable.
fn remote_op(
    opcode: WqeOpcode,
    transport: Transport,
    immediate: u32,
    body: &mut &[u8],
) -> Result<SendOp<'static>, BadWqe> {
    if !transport.is_connected() {
        return Err(BadWqe);
    }
    let segment = next::<RemoteAddressSegment>(body)?;
    let remote = RemoteAddress {
        addr: segment.address.get(),
        rkey: RKey(segment.rkey.get()),
    };
    match (opcode, transport) {
        (WqeOpcode::RDMA_WRITE, _) => Ok(SendOp::RdmaWrite(remote)),
        (WqeOpcode::RDMA_WRITE_IMM, _) => Ok(SendOp::RdmaWriteImmediate(remote, immediate)),
        (WqeOpcode::RDMA_READ, Transport::Rc) => Ok(SendOp::RdmaRead(remote)),
        (WqeOpcode::ATOMIC_CS, Transport::Rc) => {
            let operands = next::<AtomicSegment>(body)?;
            Ok(SendOp::CompareSwap {
                remote,
                compare: operands.compare.get(),
                swap: operands.swap_add.get(),
            })
        }
        (WqeOpcode::ATOMIC_FA, Transport::Rc) => {
            let add = next::<AtomicSegment>(body)?.swap_add.get();
            Ok(SendOp::FetchAdd { remote, add })
        }
        (WqeOpcode::MASKED_ATOMIC_CS, Transport::Rc) => {
            let operands = next::<MaskedAtomicSegment>(body)?;
            Ok(SendOp::MaskedCompareSwap {
                remote,
                compare: operands.compare.get(),
                compare_mask: operands.compare_mask.get(),
                swap: operands.swap_add.get(),
                swap_mask: operands.swap_add_mask.get(),
            })
        }
        (WqeOpcode::MASKED_ATOMIC_FA, Transport::Rc) => {
            let operands = next::<AtomicSegment>(body)?;
            Ok(SendOp::MaskedFetchAdd {
                remote,
                add: operands.swap_add.get(),
                boundary: operands.compare.get(),
            })
        }
        _ => Err(BadWqe),
    }
}

/// Reads what sends nothing.
fn local_op(opcode: WqeOpcode, mut body: &[u8]) -> Result<SendOp<'static>, BadWqe> {
    if opcode == WqeOpcode::LOCAL_INVAL {
        let key = next::<LocalInvalidateSegment>(&mut body)?.key.get();
        return Ok(SendOp::LocalInvalidate(RKey(key)));
    }
    let segment = next::<RegisterSegment>(&mut body)?;
    if segment.offset.get() != 0 {
        return Err(BadWqe);
    }
    let rights = [
        (segment.local_write(), AccessFlags::LOCAL_WRITE),
        (segment.remote_write(), AccessFlags::REMOTE_WRITE),
        (segment.remote_read(), AccessFlags::REMOTE_READ),
        (segment.atomic(), AccessFlags::REMOTE_ATOMIC),
    ];
    let given = rights.into_iter().filter(|(given, _)| *given);
    Ok(SendOp::FastRegister(FastRegister {
        key: RKey(segment.key.get()),
        iova: segment.start.get(),
        len: segment.length.get(),
        pages: PageList::InMemory(segment.page_list.get()),
        // Sizes that no byte holds are beyond all that there are.
        page_shift: u8::try_from(segment.log_page_size.get()).unwrap_or(u8::MAX),
        access: given.map(|(_, right)| right).collect(),
    }))
}

/// Takes a segment from the front.
fn next<'a, T>(body: &mut &'a [u8]) -> Result<&'a T, BadWqe>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    let (segment, rest) = T::ref_from_prefix(body).map_err(|_| BadWqe)?;
    *body = rest;
    Ok(segment)
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

    /// Makes a packet of an offloaded request, by its number, and returns `true` if it is the last one.
    ///
    /// # Errors
    /// [`BadWqe`] for a message that cannot be cut as the request says, for more bytes than a message may have, and for
    /// memory that is not named by the reserved key or that the guest does not have.
    pub(super) fn cut(
        &mut self,
        hca: &dyn Hca,
        keys: LocalKeys,
        offload: Offload,
        number: u16,
    ) -> Result<bool, BadWqe> {
        let reserved = |sge: &Sge| Some(sge.lkey) == keys.whole_space;
        let whole: u64 = self.gather.iter().map(|sge| u64::from(sge.len)).sum();
        if whole > MAX_GSO || !self.gather.iter().all(reserved) {
            return Err(BadWqe);
        }
        // No more than the bound.
        let whole = usize::try_from(whole).map_err(|_| BadWqe)?;
        self.head.clear();
        self.head.extend_from_slice(&self.inline);
        let (start, length, last) = match offload {
            Offload::Checksums => {
                let missing = LONGEST_HEADERS.saturating_sub(self.head.len()).min(whole);
                self.read_memory(hca, 0, missing)?;
                self.head.extend_from_slice(&self.summed);
                (missing, whole - missing, true)
            }
            Offload::Segments { mss } => {
                let segment = Segment::new(&self.head, mss.into(), whole, number).ok_or(BadWqe)?;
                segment.patch(&mut self.head);
                (segment.start, segment.len, segment.last)
            }
        };
        self.read_memory(hca, start, length)?;
        let summed = &self.summed;
        write_checksums(&mut self.head, length, |sum| sum.add(summed));
        self.part.clear();
        self.part.extend(part(&self.gather, start, length));
        Ok(last)
    }

    /// Reads a part of the memory of a request.
    fn read_memory(&mut self, hca: &dyn Hca, start: usize, length: usize) -> Result<(), BadWqe> {
        self.summed.resize(length, 0);
        let mut rest = &mut self.summed[..];
        for sge in part(&self.gather, start, length) {
            let (now, later) = rest.split_at_mut(sge.len as usize);
            hca.dma_read(sge.addr, now).map_err(|_| BadWqe)?;
            rest = later;
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
        static_rate: static_rate(av.static_rate),
        grh: global_route(av),
    }
}

/// The static rate in an address or a path.
pub(super) fn static_rate(code: u8) -> Option<Rate> {
    /// The driver's addition to the standard's code (`MLX4_STAT_RATE_OFFSET`).
    const OFFSET: u8 = 5;

    code.checked_sub(OFFSET).map(Rate::new)
}

#[cfg(test)]
mod tests;
