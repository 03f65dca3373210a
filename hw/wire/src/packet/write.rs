//! Writing whole packets into a caller's buffer.

use zerocopy::IntoBytes;
use zerocopy::network_endian::U16;

use super::{Bth, BthOpcode, Deth, Grh, ICRC_SIZE, ImmDt, Lnh, Lrh, MAX_PAYLOAD, VCRC_SIZE, crc};
use crate::{Lid, PKey, Psn, QKey, Qpn, Sl, Vl};

/// Why a packet cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The buffer is too small.
    #[error("the packet needs {needed} bytes, the buffer has {available}")]
    BufferTooSmall {
        /// Bytes of the packet.
        needed: usize,
        /// Bytes of the buffer.
        available: usize,
    },
    /// The payload is longer than the largest path MTU.
    #[error("payload of {0} bytes, at most 4096 are possible")]
    PayloadTooLong(usize),
    /// The extended headers are not a whole number of words, or more than any opcode has.
    #[error("{0} bytes of extended headers")]
    ExtendedHeaders(usize),
}

/// Bytes of the most extended headers that an opcode has: AtomicETH and the masks of a masked compare and swap.
const MAX_EXTENDED: usize = 44;

/// A transport packet of any service. Writing it fills in what follows from the rest: LNH, packet
/// length, GRH payload length, pad count and both checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportFrame<'a> {
    /// The local route header.
    pub lrh: Lrh,
    /// The global route header, if there shall be one.
    pub grh: Option<Grh>,
    /// The base transport header.
    pub bth: Bth,
    /// The extended headers that the opcode asks for, back to back.
    pub extended: &'a [u8],
    /// The payload, at most 4096 bytes.
    pub payload: &'a [u8],
}

impl TransportFrame<'_> {
    /// Bytes of the packet from the LRH to the VCRC.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        let grh = if self.grh.is_some() {
            size_of::<Grh>()
        } else {
            0
        };
        size_of::<Lrh>()
            + grh
            + size_of::<Bth>()
            + self.extended.len()
            + self.payload.len().next_multiple_of(4)
            + ICRC_SIZE
            + VCRC_SIZE
    }

    /// Writes the packet to the front of `buffer` and returns its length in bytes.
    ///
    /// # Errors
    /// The buffer, the payload or the extended headers have an impossible length; nothing was
    /// written.
    pub fn write(&self, buffer: &mut [u8]) -> Result<usize, FrameError> {
        if self.payload.len() > MAX_PAYLOAD {
            return Err(FrameError::PayloadTooLong(self.payload.len()));
        }
        if self.extended.len() > MAX_EXTENDED || !self.extended.len().is_multiple_of(4) {
            return Err(FrameError::ExtendedHeaders(self.extended.len()));
        }
        let needed = self.frame_bytes();
        let available = buffer.len();
        let frame = buffer
            .get_mut(..needed)
            .ok_or(FrameError::BufferTooSmall { needed, available })?;

        let pad = self.payload.len().next_multiple_of(4) - self.payload.len();
        let mut lrh = self.lrh;
        lrh.set_lnh(if self.grh.is_some() {
            Lnh::IbaGlobal
        } else {
            Lnh::IbaLocal
        });
        lrh.set_length_words(small((needed - VCRC_SIZE) / 4));
        let mut bth = self.bth;
        bth.set_pad_count(u8::try_from(pad).unwrap_or(0));

        let mut out = Out { frame, at: 0 };
        out.put(lrh.as_bytes());
        if let Some(mut grh) = self.grh {
            let behind = needed - size_of::<Lrh>() - size_of::<Grh>() - VCRC_SIZE;
            grh.payload_length = U16::new(small(behind));
            out.put(grh.as_bytes());
        }
        out.put(bth.as_bytes());
        out.put(self.extended);
        out.put(self.payload);
        out.put(&[0; 3][..pad]);
        let Some(icrc) = crc::icrc_in_place(&mut out.frame[..out.at]) else {
            unreachable!("the LRH announces the BTH that was written")
        };
        out.put(&icrc);
        let vcrc = crc::vcrc(&out.frame[..out.at]);
        out.put(&vcrc);
        Ok(needed)
    }
}

/// A length that was checked to be less than 8 KiB.
fn small(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

/// Appends to a buffer of the right size.
struct Out<'b> {
    frame: &'b mut [u8],
    at: usize,
}

impl Out<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.frame[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}

/// A packet of the unreliable datagram service, such as every MAD travels in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdFrame<'a> {
    /// Virtual lane on the first link.
    pub vl: Vl,
    /// Service level.
    pub sl: Sl,
    /// Source LID.
    pub slid: Lid,
    /// Destination LID.
    pub dlid: Lid,
    /// The global route header, if there shall be one; see [`Grh::new`].
    pub grh: Option<Grh>,
    /// Partition key.
    pub pkey: PKey,
    /// Destination queue pair.
    pub dest_qp: Qpn,
    /// Source queue pair.
    pub src_qp: Qpn,
    /// Queue key.
    pub qkey: QKey,
    /// Packet sequence number.
    pub psn: Psn,
    /// Whether the receiver should raise an event.
    pub solicited: bool,
    /// Immediate data.
    pub immediate: Option<[u8; 4]>,
    /// The payload, at most 4096 bytes; padded to a whole number of words on the wire.
    pub payload: &'a [u8],
}

/// The extended headers of a datagram, back to back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdHeaders {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl UdHeaders {
    const MAX: usize = size_of::<Deth>() + size_of::<ImmDt>();

    /// Returns the headers.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl UdFrame<'_> {
    /// Returns the extended headers, for [`Self::transport`].
    #[must_use]
    pub fn extended(&self) -> UdHeaders {
        let deth = Deth {
            qkey: self.qkey,
            src_qp: self.src_qp,
            ..Deth::default()
        };
        let mut bytes = [0; UdHeaders::MAX];
        let (first, second) = bytes.split_at_mut(size_of::<Deth>());
        first.copy_from_slice(deth.as_bytes());
        second.copy_from_slice(&self.immediate.unwrap_or_default());
        let len = if self.immediate.is_some() {
            UdHeaders::MAX
        } else {
            size_of::<Deth>()
        };
        UdHeaders { bytes, len }
    }

    /// Returns the datagram as a packet of any service.
    #[must_use]
    pub fn transport<'a>(&'a self, extended: &'a UdHeaders) -> TransportFrame<'a> {
        let mut lrh = Lrh {
            dlid: self.dlid,
            slid: self.slid,
            ..Lrh::default()
        };
        lrh.set_vl(self.vl);
        lrh.set_sl(self.sl);
        let mut bth = Bth {
            opcode: match self.immediate {
                Some(_) => BthOpcode::UD_SEND_ONLY_WITH_IMMEDIATE,
                None => BthOpcode::UD_SEND_ONLY,
            },
            pkey: self.pkey,
            dest_qp: self.dest_qp,
            psn: self.psn,
            ..Bth::default()
        };
        bth.set_solicited(self.solicited);
        TransportFrame {
            lrh,
            grh: self.grh,
            bth,
            extended: extended.as_bytes(),
            payload: self.payload,
        }
    }

    /// Writes the packet to the front of `buffer` and returns its length in bytes.
    ///
    /// # Errors
    /// The buffer or the payload has an impossible length; nothing was written.
    pub fn write(&self, buffer: &mut [u8]) -> Result<usize, FrameError> {
        self.transport(&self.extended()).write(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;
    use zerocopy::FromBytes;

    use super::*;
    use crate::Gid;
    use crate::packet::tests::SAMPLE;
    use crate::packet::{Packet, PacketError};

    #[test]
    fn the_standards_sample_packet_is_written_from_its_fields() {
        let parsed = Packet::parse(&SAMPLE).unwrap();
        let transport = parsed.transport().unwrap();
        let mut out = [0xa5; 60];
        let frame = TransportFrame {
            lrh: *parsed.lrh,
            grh: None,
            bth: *transport.bth,
            extended: transport.extended.reth.unwrap().as_bytes(),
            payload: transport.payload,
        };
        assert_eq!(frame.write(&mut out), Ok(58));
        assert_eq!(out[..58], SAMPLE);
        assert_eq!(out[58..], [0xa5; 2]);
    }

    fn mad_frame(payload: &[u8]) -> UdFrame<'_> {
        UdFrame {
            vl: Vl::MANAGEMENT,
            sl: Sl::default(),
            slid: Lid::PERMISSIVE,
            dlid: Lid::PERMISSIVE,
            grh: None,
            pkey: PKey::DEFAULT_FULL,
            dest_qp: Qpn::SMI,
            src_qp: Qpn::SMI,
            qkey: QKey::SMI,
            psn: Psn::default(),
            solicited: false,
            immediate: None,
            payload,
        }
    }

    #[test]
    fn a_mad_takes_290_bytes_and_330_with_a_grh() {
        let mut out = [0; 400];
        let mut frame = mad_frame(&[0; 256]);
        assert_eq!(frame.write(&mut out), Ok(290));
        assert_eq!(out[..2], [0xf0, 2]);
        assert_eq!(out[4..6], [0, 72]);
        frame.grh = Some(Grh::new(Gid([1; 16]), Gid([2; 16]), 1));
        assert_eq!(frame.write(&mut out), Ok(330));
        assert_eq!(out[1], 3);
        assert_eq!(out[4..6], [0, 82]);
        assert_eq!(out[12..14], 280_u16.to_be_bytes());
    }

    #[test]
    fn a_grh_that_does_not_fit_the_packet_is_refused_by_the_view() {
        let mut frame = mad_frame(&[0; 256]);
        frame.grh = Some(Grh::new(Gid([1; 16]), Gid([2; 16]), 1));
        let mut out = [0; 330];
        frame.write(&mut out).unwrap();
        for (at, byte, error) in [
            (8, 0x40, PacketError::IpVersion(4)),
            (
                13,
                0x19,
                PacketError::GrhLength {
                    announced: 281,
                    present: 280,
                },
            ),
            (14, 0x3a, PacketError::NextHeader(0x3a)),
        ] {
            let mut damaged = out;
            damaged[at] = byte;
            assert_eq!(Packet::parse(&damaged), Err(error));
        }
    }

    #[test]
    fn impossible_lengths_are_refused_and_nothing_is_written() {
        let mut out = [0xa5; 289];
        assert_eq!(
            mad_frame(&[0; 256]).write(&mut out),
            Err(FrameError::BufferTooSmall {
                needed: 290,
                available: 289
            })
        );
        assert_eq!(
            mad_frame(&[0; 4097]).write(&mut out),
            Err(FrameError::PayloadTooLong(4097))
        );
        let parsed = Packet::parse(&SAMPLE).unwrap();
        let odd = TransportFrame {
            lrh: *parsed.lrh,
            grh: None,
            bth: *parsed.transport().unwrap().bth,
            extended: &[0; 6],
            payload: &[],
        };
        assert_eq!(odd.write(&mut out), Err(FrameError::ExtendedHeaders(6)));
        assert_eq!(out, [0xa5; 289]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_viewed_unchanged(
            payload in proptest::collection::vec(any::<u8>(), 0..600),
            immediate: Option<[u8; 4]>,
            grh: Option<[u8; 40]>,
            vl in 0_u8..16, sl in 0_u8..16, dlid: u16, pkey: u16, qkey: u32,
            qps: (u32, u32, u32), solicited: bool,
        ) {
            let grh = grh.map(|bytes| {
                let mut grh = Grh::read_from_bytes(&bytes).unwrap();
                grh.set_ip_version(Grh::VERSION);
                grh.next_header = Grh::NEXT_HEADER_IBA;
                grh
            });
            let frame = UdFrame {
                vl: Vl::from_low_bits(vl),
                sl: Sl::from_low_bits(sl),
                dlid: Lid::new(dlid),
                grh,
                pkey: PKey::new(pkey),
                dest_qp: Qpn::from_low_bits(qps.0),
                src_qp: Qpn::from_low_bits(qps.1),
                psn: Psn::from_low_bits(qps.2),
                qkey: QKey::new(qkey),
                solicited,
                immediate,
                ..mad_frame(&payload)
            };
            let mut out = [0xa5; 700];
            let length = frame.write(&mut out).unwrap();
            let packet = Packet::parse(&out[..length]).unwrap();
            prop_assert_eq!(packet.check_crcs(), Ok(()));
            prop_assert_eq!((packet.lrh.vl(), packet.lrh.sl()), (frame.vl, frame.sl));
            prop_assert_eq!((packet.lrh.dlid, packet.lrh.slid), (frame.dlid, frame.slid));
            prop_assert_eq!(
                packet.grh.map(|g| (g.sgid, g.dgid, g.flow_label(), g.hop_limit)),
                grh.map(|g| (g.sgid, g.dgid, g.flow_label(), g.hop_limit))
            );
            let transport = packet.transport().unwrap();
            let deth = transport.extended.deth.unwrap();
            prop_assert_eq!(transport.bth.pkey, frame.pkey);
            prop_assert_eq!((transport.bth.dest_qp, deth.src_qp), (frame.dest_qp, frame.src_qp));
            prop_assert_eq!((transport.bth.psn, deth.qkey), (frame.psn, frame.qkey));
            prop_assert_eq!(transport.bth.solicited(), solicited);
            prop_assert_eq!(transport.extended.immediate.map(|i| i.data), immediate);
            prop_assert_eq!(transport.payload, &payload[..]);
            prop_assert_eq!(&out[packet.payload_range()], &payload[..]);
        }

        #[test]
        fn no_bytes_make_the_view_panic(mut bytes: Vec<u8>, honest: bool) {
            // Half of the cases get past the length check.
            if honest && bytes.len() >= 8 {
                bytes.truncate((bytes.len() - 2) / 4 * 4 + 2);
                let words = u16::try_from((bytes.len() - 2) / 4).unwrap().to_be_bytes();
                bytes[0] &= 0xf0;
                bytes[4..6].copy_from_slice(&words);
            }
            if let Ok(packet) = Packet::parse(&bytes) {
                let _ = packet.check_crcs();
                prop_assert!(packet.payload_range().end <= bytes.len());
            }
        }
    }
}
