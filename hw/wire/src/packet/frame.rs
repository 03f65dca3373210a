//! The checked view of a whole packet: [`Packet`].

use core::ops::Range;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{
    Aeth, AtomicAckEth, AtomicEth, AtomicMasks, Bth, BthOpcode, Deth, Feth, Grh, ICRC_SIZE, Ieth,
    ImmDt, Lnh, Lrh, MAX_PAYLOAD, Rdeth, Reth, Rwh, VCRC_SIZE, XrcEth, crc,
};

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The bytes end within a header or checksum.
    #[error("the packet ends before its headers do")]
    Truncated,
    /// The LRH's link version is not 0.
    #[error("link version {0}, expected 0")]
    LinkVersion(u8),
    /// The LRH announces another length than there are bytes.
    #[error("the LRH announces {announced} bytes, the packet has {present}")]
    Length {
        /// Bytes that the LRH counts, with the VCRC.
        announced: usize,
        /// Bytes that are there.
        present: usize,
    },
    /// The GRH's IP version is not 6.
    #[error("IP version {0} in the GRH, expected 6")]
    IpVersion(u8),
    /// The GRH's payload length does not fit the LRH's packet length.
    #[error("the GRH announces {announced} bytes behind it, the packet has {present}")]
    GrhLength {
        /// Bytes that the GRH counts.
        announced: usize,
        /// Bytes that are there.
        present: usize,
    },
    /// The GRH's next header is not the IBA transport.
    #[error("next header {0:#04x} in the GRH, expected 0x1b")]
    NextHeader(u8),
    /// The BTH's transport version is not 0.
    #[error("transport version {0}, expected 0")]
    TransportVersion(u8),
    /// The BTH's opcode is reserved.
    #[error("reserved opcode {0}")]
    Opcode(BthOpcode),
    /// The BTH counts more padding than there is payload.
    #[error("{pad} bytes of padding in a payload of {payload}")]
    Padding {
        /// The pad count.
        pad: usize,
        /// Bytes of payload with padding.
        payload: usize,
    },
    /// The payload is longer than the largest path MTU.
    #[error("payload of {0} bytes, at most 4096 are possible")]
    PayloadTooLong(usize),
    /// The variant CRC is wrong: the packet was damaged on this link.
    #[error("the VCRC does not match")]
    Vcrc,
    /// The invariant CRC is wrong.
    #[error("the ICRC does not match")]
    Icrc,
}

/// A packet whose lengths and versions were checked. The checksums are checked by
/// [`Packet::check_crcs`], since who forwards a packet need not look at the ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    bytes: &'a [u8],
    /// The local route header.
    pub lrh: &'a Lrh,
    /// The global route header, or the IPv6 header of a raw packet.
    pub grh: Option<&'a Grh>,
    /// What follows.
    pub body: Body<'a>,
}

/// A packet behind its routing headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// An IBA transport packet.
    Transport(Transport<'a>),
    /// A raw packet with an EtherType.
    RawEthertype {
        /// The raw header.
        rwh: &'a Rwh,
        /// Everything up to the VCRC.
        payload: &'a [u8],
    },
    /// A raw IPv6 packet; its header is [`Packet::grh`].
    RawIpv6 {
        /// Everything from behind the IPv6 header to the VCRC.
        payload: &'a [u8],
    },
}

/// The transport part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport<'a> {
    /// The base transport header.
    pub bth: &'a Bth,
    /// The headers that the opcode asks for.
    pub extended: ExtendedHeaders<'a>,
    /// The payload without its padding.
    pub payload: &'a [u8],
    /// The ICRC as it stands on the wire.
    pub icrc: &'a [u8; ICRC_SIZE],
}

/// The extended headers of a packet: those that its opcode asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedHeaders<'a> {
    /// Of reliable datagrams.
    pub rdeth: Option<&'a Rdeth>,
    /// Of datagrams.
    pub deth: Option<&'a Deth>,
    /// Of extended reliable requests.
    pub xrceth: Option<&'a XrcEth>,
    /// Of flushes.
    pub feth: Option<&'a Feth>,
    /// Of RDMA requests.
    pub reth: Option<&'a Reth>,
    /// Of atomic requests.
    pub atomic_eth: Option<&'a AtomicEth>,
    /// Of masked compare and swap.
    pub atomic_masks: Option<&'a AtomicMasks>,
    /// Of acknowledgements and read responses.
    pub aeth: Option<&'a Aeth>,
    /// Of atomic acknowledgements.
    pub atomic_ack_eth: Option<&'a AtomicAckEth>,
    /// Immediate data.
    pub immediate: Option<&'a ImmDt>,
    /// Of sends that invalidate a key.
    pub ieth: Option<&'a Ieth>,
}

/// Cuts headers off the front of a packet.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &mut self,
    ) -> Result<&'a T, PacketError> {
        let (header, rest) = T::ref_from_prefix(self.0).map_err(|_| PacketError::Truncated)?;
        self.0 = rest;
        Ok(header)
    }

    fn take_if<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &mut self,
        wanted: bool,
    ) -> Result<Option<&'a T>, PacketError> {
        if wanted {
            self.take().map(Some)
        } else {
            Ok(None)
        }
    }
}

/// The LRH of a packet, checked as far as a switch checks it: link version and length (IBA 7.3).
///
/// # Errors
/// [`PacketError::Truncated`], [`PacketError::LinkVersion`] or [`PacketError::Length`].
pub fn link_header(frame: &[u8]) -> Result<&Lrh, PacketError> {
    let (lrh, _) = Lrh::ref_from_prefix(frame).map_err(|_| PacketError::Truncated)?;
    if lrh.link_version() != 0 {
        return Err(PacketError::LinkVersion(lrh.link_version()));
    }
    if lrh.frame_bytes() != frame.len() {
        return Err(PacketError::Length {
            announced: lrh.frame_bytes(),
            present: frame.len(),
        });
    }
    Ok(lrh)
}

impl<'a> Packet<'a> {
    /// Views a whole packet, from the LRH to the VCRC.
    ///
    /// # Errors
    /// The first thing that is wrong, in the order of the bytes. Checksums are not looked at.
    pub fn parse(frame: &'a [u8]) -> Result<Self, PacketError> {
        let lrh = link_header(frame)?;
        // The LRH fits and the announced length does, so there is a VCRC behind counted words.
        let counted = frame
            .get(size_of::<Lrh>()..frame.len() - VCRC_SIZE)
            .ok_or(PacketError::Truncated)?;
        let mut cursor = Cursor(counted);
        let lnh = lrh.lnh();
        let grh: Option<&Grh> = cursor.take_if(matches!(lnh, Lnh::IbaGlobal | Lnh::RawIpv6))?;
        let body = match lnh {
            Lnh::RawEthertype => Body::RawEthertype {
                rwh: cursor.take()?,
                payload: cursor.0,
            },
            Lnh::RawIpv6 => Body::RawIpv6 { payload: cursor.0 },
            Lnh::IbaLocal => Body::Transport(Transport::parse(cursor)?),
            Lnh::IbaGlobal => {
                if let Some(grh) = grh {
                    check_grh(grh, cursor.0.len())?;
                }
                Body::Transport(Transport::parse(cursor)?)
            }
        };
        Ok(Self {
            bytes: frame,
            lrh,
            grh,
            body,
        })
    }

    /// All bytes of the packet.
    #[must_use]
    pub const fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The transport part; `None` for raw packets.
    #[must_use]
    pub const fn transport(&self) -> Option<&Transport<'a>> {
        match &self.body {
            Body::Transport(transport) => Some(transport),
            Body::RawEthertype { .. } | Body::RawIpv6 { .. } => None,
        }
    }

    /// Where the payload, without its padding, stands in the packet.
    #[must_use]
    pub fn payload_range(&self) -> Range<usize> {
        let (payload, behind) = match &self.body {
            Body::Transport(t) => (t.payload, usize::from(t.bth.pad_count()) + ICRC_SIZE),
            Body::RawEthertype { payload, .. } | Body::RawIpv6 { payload } => (*payload, 0),
        };
        let end = self.bytes.len() - VCRC_SIZE - behind;
        end - payload.len()..end
    }

    /// The bytes that the VCRC covers, and the VCRC.
    fn split_vcrc(&self) -> (&'a [u8], &'a [u8]) {
        self.bytes.split_at(self.bytes.len() - VCRC_SIZE)
    }

    /// Checks the variant CRC, as each receiver on a link does.
    ///
    /// # Errors
    /// [`PacketError::Vcrc`].
    pub fn check_vcrc(&self) -> Result<(), PacketError> {
        let (covered, vcrc) = self.split_vcrc();
        if crc::vcrc(covered) == vcrc {
            Ok(())
        } else {
            Err(PacketError::Vcrc)
        }
    }

    /// Checks the variant CRC and, of transport packets, the invariant CRC.
    ///
    /// # Errors
    /// [`PacketError::Vcrc`] or [`PacketError::Icrc`].
    pub fn check_crcs(&self) -> Result<(), PacketError> {
        self.check_vcrc()?;
        let Some(transport) = self.transport() else {
            return Ok(());
        };
        let (covered, _) = self.split_vcrc();
        let covered = &covered[..covered.len() - ICRC_SIZE];
        if crc::icrc(covered) == Some(*transport.icrc) {
            Ok(())
        } else {
            Err(PacketError::Icrc)
        }
    }
}

fn check_grh(grh: &Grh, present: usize) -> Result<(), PacketError> {
    let announced = usize::from(grh.payload_length.get());
    if grh.ip_version() != Grh::VERSION {
        Err(PacketError::IpVersion(grh.ip_version()))
    } else if announced != present {
        Err(PacketError::GrhLength { announced, present })
    } else if grh.next_header != Grh::NEXT_HEADER_IBA {
        Err(PacketError::NextHeader(grh.next_header))
    } else {
        Ok(())
    }
}

impl<'a> Transport<'a> {
    /// Views what follows the routing headers, up to and with the ICRC.
    fn parse(mut cursor: Cursor<'a>) -> Result<Self, PacketError> {
        let bth: &Bth = cursor.take()?;
        if bth.transport_version() != 0 {
            return Err(PacketError::TransportVersion(bth.transport_version()));
        }
        let extended = ExtendedHeaders::parse(bth.opcode, &mut cursor)?;
        let (padded, icrc) = cursor
            .0
            .split_last_chunk::<ICRC_SIZE>()
            .ok_or(PacketError::Truncated)?;
        let pad = usize::from(bth.pad_count());
        let length = padded.len().checked_sub(pad).ok_or(PacketError::Padding {
            pad,
            payload: padded.len(),
        })?;
        if length > MAX_PAYLOAD {
            return Err(PacketError::PayloadTooLong(length));
        }
        Ok(Self {
            bth,
            extended,
            payload: &padded[..length],
            icrc,
        })
    }
}

impl<'a> ExtendedHeaders<'a> {
    /// Views the extended headers of a packet that has them in `bytes`, back to back.
    ///
    /// # Errors
    /// [`PacketError::Opcode`] or [`PacketError::Truncated`].
    pub fn of(opcode: BthOpcode, bytes: &'a [u8]) -> Result<Self, PacketError> {
        Self::parse(opcode, &mut Cursor(bytes))
    }

    fn parse(opcode: BthOpcode, cursor: &mut Cursor<'a>) -> Result<Self, PacketError> {
        let wanted = opcode
            .extended_headers()
            .ok_or(PacketError::Opcode(opcode))?;
        // Struct fields are evaluated in the order written, which is the order on the wire.
        Ok(Self {
            rdeth: cursor.take_if(wanted.rdeth)?,
            deth: cursor.take_if(wanted.deth)?,
            xrceth: cursor.take_if(wanted.xrceth)?,
            feth: cursor.take_if(wanted.feth)?,
            reth: cursor.take_if(wanted.reth)?,
            atomic_eth: cursor.take_if(wanted.atomic_eth)?,
            atomic_masks: cursor.take_if(wanted.atomic_masks)?,
            aeth: cursor.take_if(wanted.aeth)?,
            atomic_ack_eth: cursor.take_if(wanted.atomic_ack_eth)?,
            immediate: cursor.take_if(wanted.immediate)?,
            ieth: cursor.take_if(wanted.ieth)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::SAMPLE;
    use crate::{Lid, Psn, RKey};

    /// The sample with one byte replaced.
    fn with(at: usize, byte: u8) -> [u8; 58] {
        let mut frame = SAMPLE;
        frame[at] = byte;
        frame
    }

    #[test]
    fn the_standards_sample_packet_is_taken_apart() {
        let packet = Packet::parse(&SAMPLE).unwrap();
        assert_eq!(packet.check_crcs(), Ok(()));
        assert_eq!(packet.lrh.dlid, Lid::new(0x375c));
        assert_eq!(packet.grh, None);
        let transport = packet.transport().unwrap();
        assert_eq!(transport.bth.opcode, BthOpcode::RC_RDMA_WRITE_ONLY);
        assert_eq!(transport.bth.psn, Psn::from_low_bits(0x0d_ec2a));
        let reth = transport.extended.reth.unwrap();
        assert_eq!(reth.rkey, RKey::new(0x38f2_7a05));
        assert_eq!(reth.dma_length.get(), 14);
        assert_eq!(transport.extended.deth, None);
        assert_eq!(transport.payload, &SAMPLE[36..50]);
        assert_eq!(packet.payload_range(), 36..50);
    }

    #[test]
    fn every_truncation_is_an_error() {
        for length in 0..SAMPLE.len() {
            assert!(Packet::parse(&SAMPLE[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_shorter_packet_that_says_so_ends_within_its_headers() {
        for words in 0..10 {
            let frame = with(5, words);
            let length = usize::from(words) * 4 + 2;
            assert_eq!(
                Packet::parse(&frame[..length]),
                Err(PacketError::Truncated),
                "{words}"
            );
        }
    }

    #[test]
    fn wrong_versions_opcodes_and_padding_are_told_apart() {
        for (at, byte, error) in [
            (0, 0x71, PacketError::LinkVersion(1)),
            (
                5,
                0x0f,
                PacketError::Length {
                    announced: 62,
                    present: 58,
                },
            ),
            (9, 0x23, PacketError::TransportVersion(3)),
            (8, 0x15, PacketError::Opcode(BthOpcode::new(0x15))),
        ] {
            assert_eq!(Packet::parse(&with(at, byte)), Err(error));
        }
        let mut empty = with(5, 10);
        empty[8] = BthOpcode::RC_RDMA_WRITE_ONLY.get();
        assert_eq!(
            Packet::parse(&empty[..42]),
            Err(PacketError::Padding { pad: 2, payload: 0 })
        );
    }

    #[test]
    fn damage_is_found_by_the_checksum_that_covers_it() {
        let lane = with(0, 0x80);
        let packet = Packet::parse(&lane).unwrap();
        assert_eq!(packet.check_crcs(), Err(PacketError::Vcrc));

        let mut payload = with(40, 0);
        let vcrc = crc::vcrc(&payload[..56]);
        payload[56..].copy_from_slice(&vcrc);
        let packet = Packet::parse(&payload).unwrap();
        assert_eq!(packet.check_vcrc(), Ok(()));
        assert_eq!(packet.check_crcs(), Err(PacketError::Icrc));
    }

    #[test]
    fn raw_packets_are_viewed_without_transport() {
        let raw = with(1, 0x10);
        let packet = Packet::parse(&raw).unwrap();
        assert!(packet.transport().is_none());
        assert!(matches!(
            packet.body,
            Body::RawEthertype { rwh, payload }
                if rwh.ethertype.get() == 0x2487 && payload.len() == 44
        ));
        assert_eq!(packet.payload_range(), 12..56);

        let raw = with(1, 0x11);
        let packet = Packet::parse(&raw).unwrap();
        assert!(packet.grh.is_some());
        assert!(matches!(packet.body, Body::RawIpv6 { payload } if payload.len() == 8));
    }
}
