//! An arriving packet, parsed once for every service.

use ib_wire::Lid;
use ib_wire::packet::{
    Bth, Deth, ExtendedHeaders, Grh, Lrh, Packet, TransportFrame, TransportService,
};

use crate::{DropReason, Frame, PacketSource};

/// A transport packet for this device: from the wire, or sent to one of its own LIDs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbound<'a> {
    /// Sender of a packet of a connection, if known.
    pub(super) source: Option<PacketSource>,
    pub(super) lrh: &'a Lrh,
    pub(super) grh: Option<&'a Grh>,
    pub(super) bth: &'a Bth,
    pub(super) extended: ExtendedHeaders<'a>,
    pub(super) payload: &'a [u8],
}

impl<'a> Inbound<'a> {
    /// Parses a frame; checksums are not looked at.
    ///
    /// # Errors
    /// [`DropReason::Malformed`], for raw packets too.
    pub(super) fn parse(frame: &'a Frame) -> Result<Self, DropReason> {
        let packet = Packet::parse(frame.bytes()).map_err(|_| DropReason::Malformed)?;
        let transport = packet.transport().ok_or(DropReason::Malformed)?;
        Ok(Self {
            source: frame.source(),
            lrh: packet.lrh,
            grh: packet.grh,
            bth: transport.bth,
            extended: transport.extended,
            payload: transport.payload,
        })
    }

    /// Views a packet that no frame carries, from a queue pair of a connection if `source` says so.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if the extended headers are not those of the opcode.
    pub(super) fn of(
        frame: &'a TransportFrame<'a>,
        source: Option<PacketSource>,
    ) -> Result<Self, DropReason> {
        let extended = ExtendedHeaders::of(frame.bth.opcode, frame.extended)
            .map_err(|_| DropReason::Malformed)?;
        Ok(Self {
            source,
            lrh: &frame.lrh,
            grh: frame.grh.as_ref(),
            bth: &frame.bth,
            extended,
            payload: frame.payload,
        })
    }

    /// Returns the destination LID.
    pub(super) const fn dlid(&self) -> Lid {
        self.lrh.dlid
    }

    /// Returns `true` for the services that this device has.
    pub(super) const fn is_served(&self) -> bool {
        matches!(
            self.bth.opcode.service(),
            Some(TransportService::Rc | TransportService::Uc | TransportService::Ud)
        )
    }

    /// Returns the header of a datagram.
    ///
    /// # Errors
    /// [`DropReason::UnsupportedOpcode`] for packets of other services.
    pub(super) fn datagram(&self) -> Result<&'a Deth, DropReason> {
        self.extended.deth.ok_or(DropReason::UnsupportedOpcode)
    }
}
