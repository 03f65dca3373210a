//! Packets on a link: headers, checksums, a checked view and a writer (IBA chapters 5, 7, 8, 9).
//!
//! A packet is LRH, GRH (global packets only), BTH, extended transport headers, payload with its
//! padding, ICRC, VCRC. [`Packet::parse`] checks every length and version once, after which no
//! accessor can fail; [`UdFrame`] and [`TransportFrame`] write whole packets into a caller's
//! buffer.
//!
//! ```
//! use ib_wire::packet::{Packet, UdFrame};
//! use ib_wire::{Lid, PKey, Psn, QKey, Qpn, Sl, Vl};
//!
//! let frame = UdFrame {
//!     vl: Vl::default(),
//!     sl: Sl::default(),
//!     slid: Lid::new(1),
//!     dlid: Lid::new(2),
//!     grh: None,
//!     pkey: PKey::DEFAULT_FULL,
//!     dest_qp: Qpn::GSI,
//!     src_qp: Qpn::GSI,
//!     qkey: QKey::GSI,
//!     psn: Psn::default(),
//!     solicited: false,
//!     immediate: None,
//!     payload: &[7; 256],
//! };
//! let mut buffer = [0; 512];
//! let length = frame.write(&mut buffer)?;
//! assert_eq!(length, 290);
//!
//! let packet = Packet::parse(&buffer[..length])?;
//! packet.check_crcs()?;
//! let transport = packet.transport().ok_or("a raw packet")?;
//! assert_eq!(transport.bth.dest_qp, Qpn::GSI);
//! assert_eq!(transport.payload, [7; 256]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bth;
pub mod crc;
mod extended;
mod frame;
mod opcode;
mod routing;
mod write;

pub use bth::Bth;
pub use extended::{
    Aeth, AethSyndrome, AtomicAckEth, AtomicEth, AtomicMasks, Deth, Feth, FlushPlacement,
    FlushSelectivity, Ieth, ImmDt, NakCode, Rdeth, Reth, XrcEth,
};
pub use frame::{Body, ExtendedHeaders, Packet, PacketError, Transport, link_header};
pub use opcode::{BthOpcode, ExtendedHeaderSet, TransportService};
pub use routing::{Grh, Lnh, Lrh, Rwh};
pub use write::{FrameError, TransportFrame, UdFrame, UdHeaders};

/// Bytes of the largest payload, at the largest path MTU.
pub const MAX_PAYLOAD: usize = 4096;

/// Bytes of the ICRC.
pub const ICRC_SIZE: usize = 4;

/// Bytes of the VCRC.
pub const VCRC_SIZE: usize = 2;

#[cfg(test)]
mod tests {
    /// The sample packet of IBA 7.8 (an RC RDMA WRITE Only of 14 bytes) with its checksums.
    pub(super) const SAMPLE: [u8; 58] = [
        0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, // LRH
        0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00, 0x0d, 0xec, 0x2a, // BTH
        0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, // RETH: address
        0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, // key and length
        0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, // payload
        0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00, // and padding
        0x96, 0x25, 0xb7, 0x5a, // ICRC
        0x45, 0xfa, // VCRC
    ];
}
