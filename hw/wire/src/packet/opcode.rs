//! The BTH's opcode and what it says about the headers that follow (IBA 9.2, table of opcodes).

open_enum! {
    /// A BTH opcode: the transport service in the upper 3 bits, the operation in the lower 5
    /// (IBA 9.2.1).
    BthOpcode(u8) {
        /// RC: first packet of a send.
        RC_SEND_FIRST = 0x00,
        /// RC: middle packet of a send.
        RC_SEND_MIDDLE = 0x01,
        /// RC: last packet of a send.
        RC_SEND_LAST = 0x02,
        /// RC: last packet of a send, with immediate data.
        RC_SEND_LAST_WITH_IMMEDIATE = 0x03,
        /// RC: a send of one packet.
        RC_SEND_ONLY = 0x04,
        /// RC: a send of one packet, with immediate data.
        RC_SEND_ONLY_WITH_IMMEDIATE = 0x05,
        /// RC: first packet of an RDMA write.
        RC_RDMA_WRITE_FIRST = 0x06,
        /// RC: middle packet of an RDMA write.
        RC_RDMA_WRITE_MIDDLE = 0x07,
        /// RC: last packet of an RDMA write.
        RC_RDMA_WRITE_LAST = 0x08,
        /// RC: last packet of an RDMA write, with immediate data.
        RC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x09,
        /// RC: an RDMA write of one packet.
        RC_RDMA_WRITE_ONLY = 0x0a,
        /// RC: an RDMA write of one packet, with immediate data.
        RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x0b,
        /// RC: request of an RDMA read.
        RC_RDMA_READ_REQUEST = 0x0c,
        /// RC: first packet of an RDMA read's response.
        RC_RDMA_READ_RESPONSE_FIRST = 0x0d,
        /// RC: middle packet of an RDMA read's response.
        RC_RDMA_READ_RESPONSE_MIDDLE = 0x0e,
        /// RC: last packet of an RDMA read's response.
        RC_RDMA_READ_RESPONSE_LAST = 0x0f,
        /// RC: an RDMA read's response of one packet.
        RC_RDMA_READ_RESPONSE_ONLY = 0x10,
        /// RC: acknowledgement.
        RC_ACKNOWLEDGE = 0x11,
        /// RC: acknowledgement of an atomic operation.
        RC_ATOMIC_ACKNOWLEDGE = 0x12,
        /// RC: atomic compare and swap.
        RC_COMPARE_SWAP = 0x13,
        /// RC: atomic fetch and add.
        RC_FETCH_ADD = 0x14,
        /// RC: last packet of a send that invalidates a remote key.
        RC_SEND_LAST_WITH_INVALIDATE = 0x16,
        /// RC: a send of one packet that invalidates a remote key.
        RC_SEND_ONLY_WITH_INVALIDATE = 0x17,
        /// RC: flush (IBA annex A19).
        RC_FLUSH = 0x1c,
        /// RC: atomic write of 8 bytes.
        RC_ATOMIC_WRITE = 0x1d,
        /// UC: first packet of a send.
        UC_SEND_FIRST = 0x20,
        /// UC: middle packet of a send.
        UC_SEND_MIDDLE = 0x21,
        /// UC: last packet of a send.
        UC_SEND_LAST = 0x22,
        /// UC: last packet of a send, with immediate data.
        UC_SEND_LAST_WITH_IMMEDIATE = 0x23,
        /// UC: a send of one packet.
        UC_SEND_ONLY = 0x24,
        /// UC: a send of one packet, with immediate data.
        UC_SEND_ONLY_WITH_IMMEDIATE = 0x25,
        /// UC: first packet of an RDMA write.
        UC_RDMA_WRITE_FIRST = 0x26,
        /// UC: middle packet of an RDMA write.
        UC_RDMA_WRITE_MIDDLE = 0x27,
        /// UC: last packet of an RDMA write.
        UC_RDMA_WRITE_LAST = 0x28,
        /// UC: last packet of an RDMA write, with immediate data.
        UC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x29,
        /// UC: an RDMA write of one packet.
        UC_RDMA_WRITE_ONLY = 0x2a,
        /// UC: an RDMA write of one packet, with immediate data.
        UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x2b,
        /// RD: first packet of a send.
        RD_SEND_FIRST = 0x40,
        /// RD: middle packet of a send.
        RD_SEND_MIDDLE = 0x41,
        /// RD: last packet of a send.
        RD_SEND_LAST = 0x42,
        /// RD: last packet of a send, with immediate data.
        RD_SEND_LAST_WITH_IMMEDIATE = 0x43,
        /// RD: a send of one packet.
        RD_SEND_ONLY = 0x44,
        /// RD: a send of one packet, with immediate data.
        RD_SEND_ONLY_WITH_IMMEDIATE = 0x45,
        /// RD: first packet of an RDMA write.
        RD_RDMA_WRITE_FIRST = 0x46,
        /// RD: middle packet of an RDMA write.
        RD_RDMA_WRITE_MIDDLE = 0x47,
        /// RD: last packet of an RDMA write.
        RD_RDMA_WRITE_LAST = 0x48,
        /// RD: last packet of an RDMA write, with immediate data.
        RD_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0x49,
        /// RD: an RDMA write of one packet.
        RD_RDMA_WRITE_ONLY = 0x4a,
        /// RD: an RDMA write of one packet, with immediate data.
        RD_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0x4b,
        /// RD: request of an RDMA read.
        RD_RDMA_READ_REQUEST = 0x4c,
        /// RD: first packet of an RDMA read's response.
        RD_RDMA_READ_RESPONSE_FIRST = 0x4d,
        /// RD: middle packet of an RDMA read's response.
        RD_RDMA_READ_RESPONSE_MIDDLE = 0x4e,
        /// RD: last packet of an RDMA read's response.
        RD_RDMA_READ_RESPONSE_LAST = 0x4f,
        /// RD: an RDMA read's response of one packet.
        RD_RDMA_READ_RESPONSE_ONLY = 0x50,
        /// RD: acknowledgement.
        RD_ACKNOWLEDGE = 0x51,
        /// RD: acknowledgement of an atomic operation.
        RD_ATOMIC_ACKNOWLEDGE = 0x52,
        /// RD: atomic compare and swap.
        RD_COMPARE_SWAP = 0x53,
        /// RD: atomic fetch and add.
        RD_FETCH_ADD = 0x54,
        /// RD: resynchronisation of an end-to-end context.
        RD_RESYNC = 0x55,
        /// UD: a send.
        UD_SEND_ONLY = 0x64,
        /// UD: a send with immediate data.
        UD_SEND_ONLY_WITH_IMMEDIATE = 0x65,
        /// XRC: first packet of a send.
        XRC_SEND_FIRST = 0xa0,
        /// XRC: middle packet of a send.
        XRC_SEND_MIDDLE = 0xa1,
        /// XRC: last packet of a send.
        XRC_SEND_LAST = 0xa2,
        /// XRC: last packet of a send, with immediate data.
        XRC_SEND_LAST_WITH_IMMEDIATE = 0xa3,
        /// XRC: a send of one packet.
        XRC_SEND_ONLY = 0xa4,
        /// XRC: a send of one packet, with immediate data.
        XRC_SEND_ONLY_WITH_IMMEDIATE = 0xa5,
        /// XRC: first packet of an RDMA write.
        XRC_RDMA_WRITE_FIRST = 0xa6,
        /// XRC: middle packet of an RDMA write.
        XRC_RDMA_WRITE_MIDDLE = 0xa7,
        /// XRC: last packet of an RDMA write.
        XRC_RDMA_WRITE_LAST = 0xa8,
        /// XRC: last packet of an RDMA write, with immediate data.
        XRC_RDMA_WRITE_LAST_WITH_IMMEDIATE = 0xa9,
        /// XRC: an RDMA write of one packet.
        XRC_RDMA_WRITE_ONLY = 0xaa,
        /// XRC: an RDMA write of one packet, with immediate data.
        XRC_RDMA_WRITE_ONLY_WITH_IMMEDIATE = 0xab,
        /// XRC: request of an RDMA read.
        XRC_RDMA_READ_REQUEST = 0xac,
        /// XRC: first packet of an RDMA read's response.
        XRC_RDMA_READ_RESPONSE_FIRST = 0xad,
        /// XRC: middle packet of an RDMA read's response.
        XRC_RDMA_READ_RESPONSE_MIDDLE = 0xae,
        /// XRC: last packet of an RDMA read's response.
        XRC_RDMA_READ_RESPONSE_LAST = 0xaf,
        /// XRC: an RDMA read's response of one packet.
        XRC_RDMA_READ_RESPONSE_ONLY = 0xb0,
        /// XRC: acknowledgement.
        XRC_ACKNOWLEDGE = 0xb1,
        /// XRC: acknowledgement of an atomic operation.
        XRC_ATOMIC_ACKNOWLEDGE = 0xb2,
        /// XRC: atomic compare and swap.
        XRC_COMPARE_SWAP = 0xb3,
        /// XRC: atomic fetch and add.
        XRC_FETCH_ADD = 0xb4,
        /// XRC: last packet of a send that invalidates a remote key.
        XRC_SEND_LAST_WITH_INVALIDATE = 0xb6,
        /// XRC: a send of one packet that invalidates a remote key.
        XRC_SEND_ONLY_WITH_INVALIDATE = 0xb7,
        /// RC between adapters of this workspace: compare and swap of some bits. Opcodes from 0xc0 on are left to manufacturers
        /// (IBA 9.2.1); the standard has no masked atomic operation.
        RC_MASKED_COMPARE_SWAP = 0xd3,
        /// RC between adapters of this workspace: fetch and add of some bits.
        RC_MASKED_FETCH_ADD = 0xd4,
    }
}

/// The transport service of an opcode: its upper 3 bits (IBA 9.2.1; XRC: annex A14), or RC for masked atomic operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportService {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
}

/// The extended headers that follow a BTH. At most one of each; on the wire in the order of the
/// fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedHeaderSet {
    /// RDETH, of reliable datagrams.
    pub rdeth: bool,
    /// DETH, of datagrams.
    pub deth: bool,
    /// XRCETH, of extended reliable requests.
    pub xrceth: bool,
    /// FETH, of flushes.
    pub feth: bool,
    /// RETH, of RDMA requests.
    pub reth: bool,
    /// AtomicETH, of atomic requests.
    pub atomic_eth: bool,
    /// The masks of a masked compare and swap.
    pub atomic_masks: bool,
    /// AETH, of acknowledgements and read responses.
    pub aeth: bool,
    /// AtomicAckETH, of atomic acknowledgements.
    pub atomic_ack_eth: bool,
    /// Immediate data.
    pub immediate: bool,
    /// IETH, of sends that invalidate a key.
    pub ieth: bool,
}

/// ```
/// use ib_wire::packet::{BthOpcode, TransportService};
///
/// let opcode = BthOpcode::UD_SEND_ONLY_WITH_IMMEDIATE;
/// assert_eq!(opcode.service(), Some(TransportService::Ud));
/// let headers = opcode.extended_headers().ok_or("a reserved opcode")?;
/// assert!(headers.deth && headers.immediate && !headers.reth);
/// # Ok::<(), &str>(())
/// ```
impl BthOpcode {
    /// The transport service, if the upper 3 bits name one. Masked atomic operations are of RC.
    #[must_use]
    pub const fn service(self) -> Option<TransportService> {
        if self.is_masked() {
            return Some(TransportService::Rc);
        }
        Some(match self.get() >> 5 {
            0 => TransportService::Rc,
            1 => TransportService::Uc,
            2 => TransportService::Rd,
            3 => TransportService::Ud,
            5 => TransportService::Xrc,
            _ => return None,
        })
    }

    /// The operation: the lower 5 bits, which mean the same in every service.
    #[must_use]
    pub const fn operation(self) -> u8 {
        self.get() & 0x1f
    }

    /// Whether the packet answers a request: read responses and acknowledgements.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(self.operation(), 0x0d..=0x12)
    }

    /// Whether the packet belongs to a send.
    #[must_use]
    pub const fn is_send(self) -> bool {
        matches!(self.operation(), 0x00..=0x05 | 0x16 | 0x17)
    }

    /// Whether the packet is an atomic request.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self.operation(), 0x13 | 0x14)
    }

    /// Returns `true` for an atomic request that names the bits that it acts on.
    #[must_use]
    pub const fn is_masked(self) -> bool {
        matches!(
            self,
            Self::RC_MASKED_COMPARE_SWAP | Self::RC_MASKED_FETCH_ADD
        )
    }

    /// Whether the packet starts a message.
    #[must_use]
    pub const fn is_first_or_only(self) -> bool {
        !matches!(
            self.operation(),
            0x01..=0x03 | 0x07..=0x09 | 0x0e | 0x0f | 0x16
        )
    }

    /// Whether the packet ends a message.
    #[must_use]
    pub const fn is_last_or_only(self) -> bool {
        !matches!(self.operation(), 0x00 | 0x01 | 0x06 | 0x07 | 0x0d | 0x0e)
    }

    /// The headers behind the BTH, for an opcode that the standard defines.
    #[must_use]
    pub const fn extended_headers(self) -> Option<ExtendedHeaderSet> {
        if self.name().is_none() {
            return None;
        }
        let Some(service) = self.service() else {
            return None;
        };
        let operation = self.operation();
        let rd = matches!(service, TransportService::Rd);
        Some(ExtendedHeaderSet {
            rdeth: rd,
            deth: matches!(service, TransportService::Ud) || (rd && !self.is_response()),
            xrceth: matches!(service, TransportService::Xrc) && !self.is_response(),
            feth: operation == 0x1c,
            reth: matches!(operation, 0x06 | 0x0a | 0x0b | 0x0c | 0x1c | 0x1d),
            atomic_eth: self.is_atomic(),
            atomic_masks: matches!(self, Self::RC_MASKED_COMPARE_SWAP),
            aeth: matches!(operation, 0x0d | 0x0f..=0x12),
            atomic_ack_eth: operation == 0x12,
            immediate: matches!(operation, 0x03 | 0x05 | 0x09 | 0x0b),
            ieth: matches!(operation, 0x16 | 0x17),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_the_upper_three_bits() {
        assert_eq!(
            BthOpcode::RC_SEND_ONLY.service(),
            Some(TransportService::Rc)
        );
        assert_eq!(
            BthOpcode::UC_SEND_ONLY.service(),
            Some(TransportService::Uc)
        );
        assert_eq!(
            BthOpcode::RD_SEND_ONLY.service(),
            Some(TransportService::Rd)
        );
        assert_eq!(
            BthOpcode::UD_SEND_ONLY.service(),
            Some(TransportService::Ud)
        );
        assert_eq!(
            BthOpcode::XRC_SEND_ONLY.service(),
            Some(TransportService::Xrc)
        );
        for masked in [
            BthOpcode::RC_MASKED_COMPARE_SWAP,
            BthOpcode::RC_MASKED_FETCH_ADD,
        ] {
            assert_eq!(masked.service(), Some(TransportService::Rc));
        }
        assert_eq!(BthOpcode::new(0x81).service(), None);
        assert_eq!(BthOpcode::new(0xd2).service(), None);
    }

    #[test]
    fn reserved_opcodes_have_no_headers() {
        for opcode in [0x15, 0x18, 0x2c, 0x60, 0x66, 0x81, 0xff] {
            assert_eq!(
                BthOpcode::new(opcode).extended_headers(),
                None,
                "{opcode:#x}"
            );
        }
    }

    #[test]
    fn headers_follow_the_table_of_the_standard() {
        let none = ExtendedHeaderSet::default();
        for (opcode, headers) in [
            (BthOpcode::RC_SEND_MIDDLE, none),
            (
                BthOpcode::RC_SEND_ONLY_WITH_INVALIDATE,
                ExtendedHeaderSet { ieth: true, ..none },
            ),
            (
                BthOpcode::UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE,
                ExtendedHeaderSet {
                    reth: true,
                    immediate: true,
                    ..none
                },
            ),
            (
                BthOpcode::RC_FLUSH,
                ExtendedHeaderSet {
                    feth: true,
                    reth: true,
                    ..none
                },
            ),
            (
                BthOpcode::RC_ATOMIC_WRITE,
                ExtendedHeaderSet { reth: true, ..none },
            ),
            (BthOpcode::RC_RDMA_READ_RESPONSE_MIDDLE, none),
            (
                BthOpcode::RC_RDMA_READ_RESPONSE_LAST,
                ExtendedHeaderSet { aeth: true, ..none },
            ),
            (
                BthOpcode::RC_ATOMIC_ACKNOWLEDGE,
                ExtendedHeaderSet {
                    aeth: true,
                    atomic_ack_eth: true,
                    ..none
                },
            ),
            (
                BthOpcode::RD_RDMA_READ_REQUEST,
                ExtendedHeaderSet {
                    rdeth: true,
                    deth: true,
                    reth: true,
                    ..none
                },
            ),
            (
                BthOpcode::RD_ACKNOWLEDGE,
                ExtendedHeaderSet {
                    rdeth: true,
                    aeth: true,
                    ..none
                },
            ),
            (
                BthOpcode::RD_RESYNC,
                ExtendedHeaderSet {
                    rdeth: true,
                    deth: true,
                    ..none
                },
            ),
            (
                BthOpcode::UD_SEND_ONLY_WITH_IMMEDIATE,
                ExtendedHeaderSet {
                    deth: true,
                    immediate: true,
                    ..none
                },
            ),
            (
                BthOpcode::XRC_FETCH_ADD,
                ExtendedHeaderSet {
                    xrceth: true,
                    atomic_eth: true,
                    ..none
                },
            ),
            (
                BthOpcode::XRC_ACKNOWLEDGE,
                ExtendedHeaderSet { aeth: true, ..none },
            ),
            (
                BthOpcode::RC_MASKED_COMPARE_SWAP,
                ExtendedHeaderSet {
                    atomic_eth: true,
                    atomic_masks: true,
                    ..none
                },
            ),
            (
                BthOpcode::RC_MASKED_FETCH_ADD,
                ExtendedHeaderSet {
                    atomic_eth: true,
                    ..none
                },
            ),
        ] {
            assert_eq!(opcode.extended_headers(), Some(headers), "{opcode}");
        }
    }

    #[test]
    fn positions_within_a_message_are_told_apart() {
        assert!(BthOpcode::RC_SEND_FIRST.is_first_or_only());
        assert!(!BthOpcode::RC_SEND_FIRST.is_last_or_only());
        assert!(!BthOpcode::RC_SEND_LAST_WITH_INVALIDATE.is_first_or_only());
        assert!(BthOpcode::RC_SEND_LAST_WITH_INVALIDATE.is_last_or_only());
        assert!(BthOpcode::UD_SEND_ONLY.is_first_or_only());
        assert!(BthOpcode::UD_SEND_ONLY.is_last_or_only());
        assert!(!BthOpcode::RC_RDMA_READ_RESPONSE_MIDDLE.is_first_or_only());
        assert!(!BthOpcode::RC_RDMA_READ_RESPONSE_MIDDLE.is_last_or_only());
    }
}
