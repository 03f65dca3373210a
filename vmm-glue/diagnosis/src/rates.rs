//! Widths and speeds of links.

use ib_wire::smp::{LinkSpeed, LinkSpeedExt, LinkWidth};

/// Widths and speeds of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Widths that it supports.
    pub widths: LinkWidth,
    /// Width in use.
    pub width: LinkWidth,
    /// Speeds that it supports.
    pub speeds: LinkSpeed,
    /// Speed in use.
    pub speed: LinkSpeed,
    /// Extended speeds that it supports.
    pub extended_speeds: LinkSpeedExt,
    /// Extended speed in use; empty when an ordinary speed is.
    pub extended_speed: LinkSpeedExt,
}

/// Lanes and speed that a link lacks of what both its ends support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortfall {
    /// Lanes of the link, and lanes that both ends support, if it has fewer.
    pub lanes: Option<[u8; 2]>,
    /// Signalling rate of a lane and the one that both ends support, in kb/s, if it is lower.
    pub kbps: Option<[u32; 2]>,
}

impl Rates {
    /// Returns the lanes in use, and the signalling rate of a lane in kb/s.
    #[must_use]
    pub fn active(&self) -> Option<(u8, u32)> {
        let extended = self.extended_speed.lane_kbps();
        let kbps = extended.or_else(|| self.speed.lane_kbps())?;
        Some((self.width.lanes()?, kbps))
    }

    /// Compares a link with what both its ends support, as iblinkinfo does.
    #[must_use]
    pub fn shortfall(&self, peer: &Self) -> Option<Shortfall> {
        let (lanes, kbps) = self.active()?;
        let widths = self.widths.0 & peer.widths.0;
        let speeds = self.speeds.get() & peer.speeds.get();
        let extended = self.extended_speeds.get() & peer.extended_speeds.get();
        let widest = bits(widths).filter_map(|bit| LinkWidth(bit).lanes()).max();
        let speeds = bits(speeds).filter_map(|bit| LinkSpeed::from_low_bits(bit).lane_kbps());
        let extended =
            bits(extended).filter_map(|bit| LinkSpeedExt::from_low_bits(bit).lane_kbps());
        let fastest = speeds.chain(extended).max();
        Some(Shortfall {
            lanes: widest
                .filter(|most| *most > lanes)
                .map(|most| [lanes, most]),
            kbps: fastest.filter(|most| *most > kbps).map(|most| [kbps, most]),
        })
    }
}

fn bits(of: u8) -> impl Iterator<Item = u8> {
    (0..8)
        .map(|place| 1 << place)
        .filter(move |bit| of & bit != 0)
}
