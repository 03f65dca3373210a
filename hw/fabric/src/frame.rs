//! The bytes of one packet on their way through the fabric.

use std::sync::Arc;

use ib_wire::mad::{MAD_SIZE, Mad};
use ib_wire::packet::{
    self, Bth, Deth, FrameError, Grh, ICRC_SIZE, Lnh, Lrh, Packet, TransportFrame, UdFrame,
    VCRC_SIZE,
};
use ib_wire::smp::MAX_HOPS;
use ib_wire::{Lid, PKey, Psn, QKey, Qpn, Sl, Vl};
use zerocopy::{FromBytes, IntoBytes};

use crate::PacketSource;

/// What is known of a checksum without computing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    /// Nobody has computed it since the bytes last changed.
    Unknown,
    /// It matches.
    Good,
    /// It does not match.
    Bad,
}

/// A packet from its LRH to its VCRC.
///
/// Cloning is cheap: clones share the bytes until one of them is changed, so a switch replicates a
/// multicast packet without copying it. A frame remembers which of its checksums are known to be
/// right, so that a hop that changes nothing computes nothing.
#[derive(Clone, Debug)]
pub struct Frame {
    /// At least the packet's bytes.
    buffer: Arc<[u8]>,
    len: usize,
    vcrc: Check,
    icrc: Check,
    /// Switches that have forwarded it.
    hops: u8,
    /// Queue pair of a connection that sent it, as far as that is known.
    source: Option<PacketSource>,
}

impl Frame {
    /// A frame from anywhere; nothing about it is taken for granted.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Self {
        Self {
            buffer: bytes.into(),
            len: bytes.len(),
            vcrc: Check::Unknown,
            icrc: Check::Unknown,
            hops: 0,
            source: None,
        }
    }

    /// A frame whose two checksums the caller has just computed, for example by
    /// [`packet::UdFrame::write`].
    #[must_use]
    pub fn sealed(bytes: &[u8]) -> Self {
        Self::sealed_in(bytes.into(), bytes.len())
    }

    const fn sealed_in(buffer: Arc<[u8]>, len: usize) -> Self {
        Self {
            buffer,
            len,
            vcrc: Check::Good,
            icrc: Check::Good,
            hops: 0,
            source: None,
        }
    }

    /// The packet of an SMP: on VL15, from QP0 to QP0 (IBA 13.5.1, 14.2.1). `None` if it cannot be made,
    /// which is only if a MAD did not fit a packet.
    #[must_use]
    pub fn of_smp(mad: &Mad, slid: Lid, dlid: Lid, sl: Sl) -> Option<Self> {
        let mut buffer = [0; MAD_SIZE + 64];
        let len = UdFrame {
            vl: Vl::MANAGEMENT,
            sl,
            slid,
            dlid,
            grh: None,
            pkey: PKey::DEFAULT_FULL,
            dest_qp: Qpn::SMI,
            src_qp: Qpn::SMI,
            qkey: QKey::SMI,
            psn: Psn::default(),
            solicited: false,
            immediate: None,
            payload: mad.as_bytes(),
        }
        .write(&mut buffer)
        .ok()?;
        Some(Self::sealed(&buffer[..len]))
    }

    /// The packet.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut Arc::make_mut(&mut self.buffer)[..self.len]
    }

    /// Returns the queue pair that sent the packet, if it is of a connection and its sender is known. It is `None` for datagrams, for
    /// packets made of bytes alone, and for packets of a gateway whose owner does not know it.
    #[must_use]
    pub const fn source(&self) -> Option<PacketSource> {
        self.source
    }

    /// Returns the frame as one that a queue pair of a connection sent.
    #[must_use]
    pub fn sent_by(mut self, source: PacketSource) -> Self {
        self.source = Some(source);
        self
    }

    /// Bytes from the LRH to the VCRC.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes at all.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The local route header, if the frame is long enough for one.
    #[must_use]
    pub fn lrh(&self) -> Option<&Lrh> {
        Lrh::ref_from_prefix(self.bytes()).ok().map(|(lrh, _)| lrh)
    }

    /// Returns the virtual lane in the LRH, or VL0 of a packet too short for one.
    #[must_use]
    pub fn lane(&self) -> Vl {
        self.lrh().map_or_else(Vl::default, Lrh::vl)
    }

    /// The base transport header, if this is an IBA transport packet and long enough for it.
    #[must_use]
    pub fn bth(&self) -> Option<&Bth> {
        let (lrh, rest) = Lrh::ref_from_prefix(self.bytes()).ok()?;
        let rest = match lrh.lnh() {
            Lnh::IbaLocal => rest,
            Lnh::IbaGlobal => rest.get(size_of::<Grh>()..)?,
            Lnh::RawEthertype | Lnh::RawIpv6 => return None,
        };
        Bth::ref_from_prefix(rest).ok().map(|(bth, _)| bth)
    }

    /// Whether the VCRC matches. Computed at most once per change of the bytes.
    pub fn vcrc_matches(&mut self) -> bool {
        if self.vcrc == Check::Unknown {
            let matches = self
                .bytes()
                .split_last_chunk::<VCRC_SIZE>()
                .is_some_and(|(covered, crc)| packet::crc::vcrc(covered) == *crc);
            self.vcrc = if matches { Check::Good } else { Check::Bad };
        }
        self.vcrc == Check::Good
    }

    /// Whether the ICRC matches; raw packets have none and always match. Computed at most once per
    /// change of the bytes.
    pub fn icrc_matches(&mut self) -> bool {
        if self.icrc == Check::Unknown {
            let matches = self
                .bytes()
                .split_last_chunk::<VCRC_SIZE>()
                .and_then(|(rest, _)| rest.split_last_chunk::<ICRC_SIZE>())
                .is_some_and(|(covered, crc)| packet::crc::icrc(covered).is_none_or(|c| c == *crc));
            self.icrc = if matches { Check::Good } else { Check::Bad };
        }
        self.icrc == Check::Good
    }

    /// Changes bytes as a fault would: neither checksum follows.
    pub fn damage(&mut self, change: impl FnOnce(&mut [u8])) {
        change(self.bytes_mut());
        self.vcrc = Check::Unknown;
        self.icrc = Check::Unknown;
    }

    /// Damages bytes and recomputes the VCRC, as a faulty switch would: only the receiver's ICRC
    /// check can tell.
    pub fn damage_inside(&mut self, change: impl FnOnce(&mut [u8])) {
        self.damage(change);
        self.seal_vcrc();
    }

    /// Changes what a switch may change (the virtual lane) and recomputes the VCRC.
    pub fn rewrite_variant(&mut self, change: impl FnOnce(&mut Lrh)) {
        if let Ok((lrh, _)) = Lrh::mut_from_prefix(self.bytes_mut()) {
            change(lrh);
        }
        self.seal_vcrc();
    }

    /// Counts a switch on the way. Gives `false` when the packet has passed more of them than any
    /// path has and must be caught in a loop of forwarding tables. Real switches end that by the
    /// time that packets may wait at the head of a queue; here they need not wait.
    pub(crate) fn cross_switch(&mut self) -> bool {
        self.hops = self.hops.saturating_add(1);
        self.hops <= MAX_HOPS
    }

    /// The SMP in this frame: a datagram to QP0 without a GRH, with right checksums.
    pub(crate) fn smp(&mut self) -> Option<Mad> {
        if !self.icrc_matches() {
            return None;
        }
        let packet = Packet::parse(self.bytes()).ok()?;
        let transport = packet.transport()?;
        transport.extended.deth?;
        if packet.grh.is_some() || transport.bth.dest_qp != Qpn::SMI {
            return None;
        }
        Mad::from_bytes(transport.payload)
    }

    /// Replaces the SMP and the LIDs of a frame that [`Frame::smp`] has accepted.
    pub(crate) fn set_smp(&mut self, mad: &Mad, slid: Lid, dlid: Lid) {
        const SMP: usize = size_of::<Lrh>() + size_of::<Bth>() + size_of::<Deth>();
        let bytes = self.bytes_mut();
        if let Some(payload) = bytes.get_mut(SMP..SMP + MAD_SIZE) {
            payload.copy_from_slice(mad.as_bytes());
        }
        if let Ok((lrh, _)) = Lrh::mut_from_prefix(bytes) {
            lrh.slid = slid;
            lrh.dlid = dlid;
        }
        let covered = bytes.len().saturating_sub(VCRC_SIZE + ICRC_SIZE);
        if let Some(icrc) = packet::crc::icrc(&bytes[..covered]) {
            bytes[covered..covered + ICRC_SIZE].copy_from_slice(&icrc);
            self.icrc = Check::Good;
        }
        self.seal_vcrc();
    }

    fn seal_vcrc(&mut self) {
        if let Some((covered, crc)) = self.bytes_mut().split_last_chunk_mut::<VCRC_SIZE>() {
            *crc = packet::crc::vcrc(covered);
            self.vcrc = Check::Good;
        }
    }
}

/// Writes frames into the buffers of frames that are no longer needed.
#[derive(Debug, Default)]
pub struct FrameWriter {
    spare: Vec<Arc<[u8]>>,
}

impl FrameWriter {
    /// Bytes of a buffer, except for longer packets: enough for a MAD with all headers there are.
    const ROOM: usize = 384;
    /// Buffers that are kept.
    const MOST: usize = 128;

    /// Writes a packet.
    ///
    /// # Errors
    /// The payload has an impossible length.
    pub fn write(&mut self, packet: &TransportFrame<'_>) -> Result<Frame, FrameError> {
        let mut buffer = self.spare.pop().unwrap_or_else(|| empty(Self::ROOM));
        let mut written = packet.write(Arc::make_mut(&mut buffer));
        if let Err(FrameError::BufferTooSmall { needed, .. }) = written {
            self.keep(core::mem::replace(&mut buffer, empty(needed)));
            written = packet.write(Arc::make_mut(&mut buffer));
        }
        Ok(Frame::sealed_in(buffer, written?))
    }

    /// Takes a frame that is no longer needed. A buffer that other frames share stays theirs.
    pub fn take_back(&mut self, frame: Frame) {
        let mut buffer = frame.buffer;
        if Arc::get_mut(&mut buffer).is_some() {
            self.keep(buffer);
        }
    }

    /// Keeps a buffer that nobody else has, if it is of the usual size.
    fn keep(&mut self, buffer: Arc<[u8]>) {
        if self.spare.len() < Self::MOST && buffer.len() == Self::ROOM {
            self.spare.push(buffer);
        }
    }
}

fn empty(len: usize) -> Arc<[u8]> {
    core::iter::repeat_n(0, len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A MAD between two ports' special queue pairs, or what else is put into its place.
    fn datagram(qpn: Qpn, qkey: QKey) -> UdFrame<'static> {
        UdFrame {
            vl: Vl::default(),
            sl: Sl::default(),
            slid: Lid::new(1),
            dlid: Lid::new(2),
            grh: None,
            pkey: PKey::DEFAULT_FULL,
            dest_qp: qpn,
            src_qp: qpn,
            qkey,
            psn: Psn::default(),
            solicited: false,
            immediate: None,
            payload: &[7; MAD_SIZE],
        }
    }

    fn write(writer: &mut FrameWriter, datagram: &UdFrame<'_>) -> Result<Frame, FrameError> {
        writer.write(&datagram.transport(&datagram.extended()))
    }

    fn frame() -> Frame {
        let mut buffer = [0; 512];
        let smp = datagram(Qpn::SMI, QKey::SMI);
        let len = smp.write(&mut buffer).unwrap();
        Frame::new(&buffer[..len])
    }

    fn checks(frame: &Frame) -> (bool, bool) {
        // From the bytes alone, whatever the frame remembers.
        let mut fresh = Frame::new(frame.bytes());
        (fresh.vcrc_matches(), fresh.icrc_matches())
    }

    #[test]
    fn damage_on_the_wire_breaks_the_vcrc_and_damage_inside_only_the_icrc() {
        let mut on_wire = frame();
        assert!(on_wire.vcrc_matches() && on_wire.icrc_matches());
        on_wire.damage(|bytes| bytes[100] ^= 1);
        assert!(!on_wire.vcrc_matches() && !on_wire.icrc_matches());
        let mut inside = frame();
        inside.damage_inside(|bytes| bytes[100] ^= 1);
        assert_eq!(checks(&inside), (true, false));
        assert!(inside.vcrc_matches() && !inside.icrc_matches());
    }

    #[test]
    fn a_clone_keeps_its_bytes_when_the_other_changes() {
        let original = frame();
        let mut copy = original.clone();
        copy.rewrite_variant(|lrh| lrh.set_vl(Vl::from_low_bits(3)));
        assert_eq!(original.lrh().map(|lrh| lrh.vl().get()), Some(0));
        assert_eq!(copy.lrh().map(|lrh| lrh.vl().get()), Some(3));
        assert_eq!(checks(&original), (true, true));
        assert_eq!(checks(&copy), (true, true));
    }

    #[test]
    fn a_buffer_is_written_again_unless_somebody_else_has_it() {
        let mut writer = FrameWriter::default();
        let mut datagram = datagram(Qpn::GSI, QKey::GSI);
        let first = write(&mut writer, &datagram).unwrap();
        let (place, copy) = (first.bytes().as_ptr(), first.clone());
        writer.take_back(first);
        datagram.payload = &[8; 20];
        let second = write(&mut writer, &datagram).unwrap();
        assert_eq!(copy.bytes()[28..28 + MAD_SIZE], [7; MAD_SIZE]);
        assert_eq!(checks(&copy), (true, true));
        writer.take_back(copy);
        let third = write(&mut writer, &datagram).unwrap();
        assert_eq!(third.bytes().as_ptr(), place);
        assert_eq!(
            third.bytes(),
            second.bytes(),
            "nothing is left of the first"
        );
        assert_eq!(checks(&third), (true, true));
        assert_eq!(third.len(), 54);
        // Longer ones have buffers of their own.
        writer.take_back(third);
        datagram.payload = &[9; 4096];
        let long = write(&mut writer, &datagram).unwrap();
        assert_eq!(checks(&long), (true, true));
        writer.take_back(long);
        datagram.payload = &[];
        let fourth = write(&mut writer, &datagram).unwrap();
        assert_eq!(fourth.bytes().as_ptr(), place);
        datagram.payload = &[0; 4097];
        assert_eq!(
            write(&mut writer, &datagram).err(),
            Some(FrameError::PayloadTooLong(4097))
        );
    }

    #[test]
    fn an_smp_written_into_a_frame_has_right_checksums() {
        let mut frame = frame();
        let mut mad = frame.smp().unwrap();
        mad.data = [9; MAD_SIZE - 24];
        frame.set_smp(&mad, Lid::new(3), Lid::new(4));
        assert_eq!(checks(&frame), (true, true));
        assert_eq!(frame.smp().unwrap(), mad);
        let lrh = frame.lrh().unwrap();
        assert_eq!((lrh.slid, lrh.dlid), (Lid::new(3), Lid::new(4)));
    }

    #[test]
    fn bytes_that_are_no_packet_have_no_headers_and_no_right_checksums() {
        for bytes in [&[][..], &[0], &[0; 7], &[0xff; 20]] {
            let mut frame = Frame::new(bytes);
            assert!(!frame.vcrc_matches());
            assert!(frame.bth().is_none());
            assert!(frame.smp().is_none());
            frame.damage(|_| {});
            frame.damage_inside(|_| {});
            frame.rewrite_variant(|_| {});
        }
    }
}
