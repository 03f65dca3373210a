//! Offloads of IPoIB: checksums of IPv4, TCP and UDP in both directions, and the segmentation of TCP
//! (`IB_SEND_IP_CSUM`, `IB_WR_LSO`, `IB_WC_IP_CSUM_OK`).
//!
//! A packet is an encapsulation header (RFC 4391, section 6), IPv4 and what that carries. IPv6 has no offloads, as in
//! ConnectX-3, whose driver asks for none.

use hca_api::Sge;

/// Bytes of the encapsulation header: an Ethertype, and two bytes that are reserved.
const ENCAPSULATION: usize = 4;
/// The Ethertype of IPv4.
const IPV4: [u8; 2] = [8, 0];
/// The smallest header of IPv4, and of TCP.
const MIN_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
/// The longest headers that a checksum lies in: those of IPv4 with all options, and of TCP without.
pub(super) const LONGEST_HEADERS: usize = ENCAPSULATION + 60 + MIN_HEADER;

const FIN: u8 = 1 << 0;
const PSH: u8 = 1 << 3;
const CWR: u8 = 1 << 7;

/// A protocol whose checksum the device knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    Udp,
}

impl Protocol {
    /// Returns the offset of the checksum in the protocol's header.
    const fn checksum_at(self) -> usize {
        match self {
            Self::Tcp => 16,
            Self::Udp => 6,
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
        }
    }
}

/// The sum of the Internet checksum (RFC 1071) over bytes that come in pieces.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    sum: u64,
    /// An odd number of bytes has come.
    odd: bool,
}

impl Sum {
    fn add(&mut self, mut bytes: &[u8]) {
        if self.odd
            && let Some((first, rest)) = bytes.split_first()
        {
            self.sum += u64::from(*first);
            self.odd = false;
            bytes = rest;
        }
        let (words, rest) = bytes.as_chunks::<4>();
        // 2^32 words have room; a message has 2^14.
        let sum = words
            .iter()
            .map(|word| u64::from(u32::from_be_bytes(*word)));
        self.sum += sum.sum::<u64>();
        let (pairs, last) = rest.as_chunks::<2>();
        for pair in pairs {
            self.sum += u64::from(u16::from_be_bytes(*pair));
        }
        if let [last] = last {
            self.sum += u64::from(*last) << 8;
            self.odd = true;
        }
    }

    /// Folds the sum to 16 bits: 0xffff if the bytes have a right checksum among them.
    fn fold(self) -> u16 {
        let mut sum = self.sum;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let [.., high, low] = sum.to_be_bytes();
        u16::from_be_bytes([high, low])
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes(pair.try_into().ok()?))
}

fn set_word(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// The headers of an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Headers {
    /// Bytes of IPv4's header.
    ip: usize,
    /// Bytes of IPv4 and all behind it.
    total: usize,
    /// The protocol behind it, if the packet is no fragment and the protocol has a checksum.
    protocol: Option<Protocol>,
}

impl Headers {
    /// Reads the headers of a packet; `None` if it is none of IPv4.
    fn read(packet: &[u8]) -> Option<Self> {
        if packet.get(..2)? != IPV4 {
            return None;
        }
        let ip = packet.get(ENCAPSULATION..)?;
        let first = *ip.first()?;
        let length = usize::from(first & 0xf) * 4;
        if first >> 4 != 4 || length < MIN_HEADER || ip.len() < length {
            return None;
        }
        // More fragments follow, or this is not the first.
        let fragment = word(ip, 6)? & 0x3fff != 0;
        let protocol = match ip.get(9)? {
            6 => Some(Protocol::Tcp),
            17 => Some(Protocol::Udp),
            _ => None,
        };
        Some(Self {
            ip: length,
            total: word(ip, 2)?.into(),
            protocol: protocol.filter(|_| !fragment),
        })
    }

    /// Returns the offset of IPv4's payload.
    const fn payload(&self) -> usize {
        ENCAPSULATION + self.ip
    }

    /// The sum over the pseudo header of a protocol with so many bytes of its own.
    fn pseudo(&self, packet: &[u8], protocol: Protocol, bytes: usize) -> Sum {
        let mut sum = Sum::default();
        sum.add(
            packet
                .get(ENCAPSULATION + 12..ENCAPSULATION + 20)
                .unwrap_or_default(),
        );
        sum.sum += u64::from(protocol.number()) + bytes as u64;
        sum
    }

    /// Writes the checksum of IPv4's header.
    fn write_ip_checksum(&self, packet: &mut [u8]) {
        set_word(packet, ENCAPSULATION + 10, 0);
        let mut sum = Sum::default();
        sum.add(
            packet
                .get(ENCAPSULATION..self.payload())
                .unwrap_or_default(),
        );
        set_word(packet, ENCAPSULATION + 10, !sum.fold());
    }
}

/// Writes the checksums of a packet that the driver left open. `head` has the headers, `rest` adds all bytes behind it and
/// `len` counts them. Packets of other protocols stay as they are.
pub(super) fn write_checksums(head: &mut [u8], len: usize, rest: impl FnOnce(&mut PayloadSum)) {
    let Some(headers) = Headers::read(head) else {
        return;
    };
    headers.write_ip_checksum(head);
    let Some(protocol) = headers.protocol else {
        return;
    };
    let start = headers.payload();
    let place = start + protocol.checksum_at();
    let bytes = headers.total.saturating_sub(headers.ip);
    // The packet ends where IPv4 says.
    if head.len() < place + 2 || start + bytes != head.len() + len {
        return;
    }
    set_word(head, place, 0);
    let mut sum = PayloadSum(headers.pseudo(head, protocol, bytes));
    sum.add(head.get(start..).unwrap_or_default());
    rest(&mut sum);
    let value = !sum.0.fold();
    // Zero is no checksum in UDP (RFC 768).
    let none = protocol == Protocol::Udp && value == 0;
    set_word(head, place, if none { 0xffff } else { value });
}

/// Adds bytes to a packet's checksum.
#[derive(Debug)]
pub(super) struct PayloadSum(Sum);

impl PayloadSum {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.add(bytes);
    }
}

/// One packet of those that a message is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Its place among them, and its first byte in the payload.
    number: u16,
    pub(super) start: usize,
    /// Its bytes.
    pub(super) len: usize,
    /// It is the last one.
    pub(super) last: bool,
}

impl Segment {
    /// Returns a segment of a message by its number; `None` if the message is none that can be cut so.
    ///
    /// All segments share `headers`; each has `mss` bytes of the `payload`, the last one the rest.
    pub(super) fn new(headers: &[u8], mss: usize, payload: usize, number: u16) -> Option<Self> {
        let read = Headers::read(headers)?;
        let tcp = headers.get(read.payload()..)?;
        let length = usize::from(tcp.get(12)? >> 4) * 4;
        let whole = length >= MIN_HEADER && tcp.len() == length;
        if read.protocol != Some(Protocol::Tcp) || !whole || mss == 0 {
            return None;
        }
        let start = usize::from(number) * mss;
        let left = payload.checked_sub(start).filter(|left| *left != 0)?;
        Some(Self {
            number,
            start,
            len: left.min(mss),
            last: left <= mss,
        })
    }

    /// Turns the shared headers into the segment's own, except for the checksum of TCP.
    pub(super) fn patch(&self, headers: &mut [u8]) {
        let Some(read) = Headers::read(headers) else {
            return;
        };
        let total = headers.len() - ENCAPSULATION + self.len;
        set_word(
            headers,
            ENCAPSULATION + 2,
            u16::try_from(total).unwrap_or(u16::MAX),
        );
        let id = word(headers, ENCAPSULATION + 4).unwrap_or_default();
        set_word(headers, ENCAPSULATION + 4, id.wrapping_add(self.number));
        let tcp = read.payload();
        if let Some(sequence) = headers.get_mut(tcp + 4..tcp + 8) {
            let first = u32::from_be_bytes(sequence.try_into().unwrap_or_default());
            // A message is shorter than 2^32 bytes.
            let own = first.wrapping_add(u32::try_from(self.start).unwrap_or_default());
            sequence.copy_from_slice(&own.to_be_bytes());
        }
        if let Some(flags) = headers.get_mut(tcp + 13) {
            if !self.last {
                *flags &= !(FIN | PSH);
            }
            if self.number != 0 {
                *flags &= !CWR;
            }
        }
    }
}

/// Returns the part of a gather list that begins so many bytes into it and is so long.
pub(super) fn part(gather: &[Sge], mut skip: usize, mut len: usize) -> impl Iterator<Item = Sge> {
    gather.iter().filter_map(move |sge| {
        let own = sge.len as usize;
        let before = skip.min(own);
        skip -= before;
        let taken = (own - before).min(len);
        len -= taken;
        // Both are parts of the entry's length.
        (taken != 0).then(|| Sge {
            addr: sge.addr.wrapping_add(before as u64),
            len: u32::try_from(taken).unwrap_or_default(),
            lkey: sge.lkey,
        })
    })
}

/// Returns the protocol of a packet whose checksums are all there and right.
pub(super) fn verified(packet: &[u8]) -> Option<Protocol> {
    let headers = Headers::read(packet)?;
    let protocol = headers.protocol?;
    let mut sum = Sum::default();
    sum.add(packet.get(ENCAPSULATION..headers.payload())?);
    if sum.fold() != 0xffff {
        return None;
    }
    let end = ENCAPSULATION + headers.total;
    let own = packet.get(headers.payload()..end)?;
    let least = match protocol {
        Protocol::Tcp => MIN_HEADER,
        Protocol::Udp => UDP_HEADER,
    };
    let unsummed = protocol == Protocol::Udp && word(own, protocol.checksum_at())? == 0;
    let mut sum = headers.pseudo(packet, protocol, own.len());
    sum.add(own);
    (own.len() >= least && !unsummed && sum.fold() == 0xffff).then_some(protocol)
}

#[cfg(test)]
mod tests;
