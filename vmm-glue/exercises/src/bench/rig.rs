//! A port's mux with VFs to measure on, and the memory that frames come from and go to.
//!
//! What goes in lies in a pool far larger than the near caches, and what comes out lies in another,
//! headers and all: the cost is that of the whole way through the mux. As a driver does that finds
//! several completions in its queue, a batch of frames is first copied out of their senders' reach
//! into the buffers that they leave by, and then judged frame by frame where the copies lie: a frame
//! is moved once.

use anyhow::{Context, bail};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::Mad;
use ib_wire::packet::Grh;
use ib_wire::{Gid, Guid, Lid, PKey, QKey, Qpn, Sl, SubnetPrefix};
use pf_context::{
    Cause, EgressLimit, Limits, Output, Passed, PortConfig, PortMux, Route, Upcoming, VfConfig,
    WireSource,
};
use vf_tunnel::{SpecialQp, ToPf, ToPfHeader, ToVf, ToVfHeader, VfId};
use zerocopy::{FromBytes, IntoBytes};

use super::pool::{POOL, Place, Pool, STRIDE};

/// Bytes of a tunnel frame.
const TUNNEL: usize = size_of::<ToPf>();
const _: () = assert!(TUNNEL <= STRIDE && size_of::<ToVf>() == TUNNEL);

const GRH: usize = size_of::<Grh>();
const MAD: usize = size_of::<Mad>();

/// Bytes in front of a MAD in a tunnel, and where it is put to be sent to the wire: a GRH fits.
const HEAD: usize = TUNNEL - MAD;

const LID: Lid = Lid::new(5);
pub(super) const SM_LID: Lid = Lid::new(1);

/// The mux, and where its outputs go.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) mux: PortMux,
    pub(super) now: Instant,
    /// Time from one frame to the next.
    pub(super) pace: Duration,
    frames: u64,
    /// Where each frame of the batch came from, and the place that it leaves from.
    loaded: Vec<(From, usize)>,
    /// Frames of the batch that was flushed last.
    flushed: Vec<usize>,
    outputs: Pool,
    /// The places that the frames of the next batch leave from.
    places: [usize; BATCH],
}

/// Frames that are copied at once.
pub(super) const BATCH: usize = 16;

/// Where a frame comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    /// A VF's tunnel.
    Vf(VfId),
    /// QP1 of the port at a LID.
    Wire(Lid),
}

impl Rig {
    /// A port with so many VFs, none of them held back by a rate.
    pub(super) fn new(vfs: u16, limits: Limits) -> anyhow::Result<Self> {
        let limits = Limits {
            egress: EgressLimit {
                mads_per_second: 0,
                ..EgressLimit::default()
            },
            ..limits
        };
        let mut mux = PortMux::new(PortConfig {
            lid: LID,
            sm_lid: SM_LID,
            limits,
            ..PortConfig::default()
        });
        for vf in (1..=vfs).filter_map(VfId::new) {
            let config = VfConfig {
                guid: Some(vf_guid(vf)),
                ..VfConfig::default()
            };
            mux.add_vf(vf, config)?;
        }
        Ok(Self {
            mux,
            now: Instant::from_millis(1),
            pace: Duration::ZERO,
            frames: 0,
            loaded: Vec::with_capacity(BATCH),
            flushed: Vec::with_capacity(BATCH),
            outputs: Pool::new(6, &[1; STRIDE], POOL),
            places: std::array::from_fn(|at| at),
        })
    }

    /// Copies a frame out of its receive buffer, to be judged with the next [`Self::flush`]. At most
    /// [`BATCH`] frames can wait for that.
    pub(super) fn load(&mut self, from: From, frame: &Place) {
        let number = self.places[self.loaded.len()];
        self.loaded.push((from, number));
        let slot = self.outputs.at(number);
        match from {
            From::Vf(_) => slot[..TUNNEL].copy_from_slice(&frame[..TUNNEL]),
            From::Wire(_) => slot[HEAD - GRH..TUNNEL].copy_from_slice(&frame[..GRH + MAD]),
        }
    }

    /// A frame that was loaded, to be made another one.
    pub(super) fn loaded(&mut self, at: usize) -> anyhow::Result<&mut Place> {
        let (_, number) = self.loaded.get(at).context("beyond the batch")?;
        Ok(self.outputs.at(*number))
    }

    /// Judges what was loaded. See [`Self::sent`].
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        self.flushed.clear();
        let frames = self.loaded.iter();
        self.mux.look_ahead(frames.filter_map(|(from, number)| {
            let slot = self.outputs.get(*number);
            Some(match from {
                From::Vf(vf) => Upcoming::FromVf(*vf, ToPf::ref_from_prefix(slot).ok()?.0),
                From::Wire(_) => Upcoming::FromWire(Mad::ref_from_bytes(&slot[HEAD..TUNNEL]).ok()?),
            })
        }));
        let mut loaded = std::mem::take(&mut self.loaded);
        for (from, number) in loaded.drain(..) {
            self.judge(from, number)?;
        }
        self.loaded = loaded;
        for (at, place) in self.places.iter_mut().enumerate() {
            // Frames of a batch leave from different places.
            *place = self.outputs.draw(at, BATCH);
        }
        Ok(())
    }

    /// Judges a frame where its copy lies, and writes what stands in front of it.
    fn judge(&mut self, from: From, number: usize) -> anyhow::Result<()> {
        self.frames += 1;
        self.now += self.pace;
        let cause = Cause(self.frames);
        let qp = SpecialQp::Gsi;
        let slot = self.outputs.at(number);
        let passed = match from {
            From::Vf(vf) => {
                let (frame, _) = ToPf::mut_from_prefix(slot).ok().context("a frame fits")?;
                self.mux.from_vf_in_place(self.now, cause, vf, qp, frame)
            }
            From::Wire(slid) => {
                let source = source(slid, slot)?;
                let mad = batch_mad(slot)?;
                self.mux
                    .from_wire_in_place(self.now, cause, qp, &source, mad)
            }
        };
        finish(&mut self.mux, &passed, slot)?;
        self.flushed.push(number);
        Ok(())
    }

    /// A MAD of the batch that was flushed last, as it went on.
    pub(super) fn sent(&mut self, at: usize) -> anyhow::Result<&Mad> {
        let number = self.flushed.get(at).context("beyond the batch")?;
        batch_mad(self.outputs.at(*number)).map(|mad| &*mad)
    }

    /// Lets a VF send what one of the mux's machines takes; what comes of it is to be taken.
    pub(super) fn send_to_machine(&mut self, vf: VfId, frame: &Place) {
        self.frames += 1;
        let cause = Cause(self.frames);
        let bytes = &frame[..TUNNEL];
        self.mux
            .from_vf_bytes(self.now, cause, vf, SpecialQp::Gsi, bytes);
    }

    /// Lets the wire deliver what one of the mux's machines takes, without a GRH.
    pub(super) fn receive_for_machine(&mut self, slid: Lid, mad: &Mad) {
        let source = WireSource {
            slid,
            sqpn: Qpn::GSI,
            sl: Sl::default(),
            pkey: PKey::DEFAULT_FULL,
            path_bits: 0,
            grh: None,
        };
        self.frames += 1;
        let cause = Cause(self.frames);
        self.mux
            .from_wire(self.now, cause, SpecialQp::Gsi, &source, mad.as_bytes());
    }

    /// The next MAD that the mux sent besides.
    pub(super) fn take(&mut self) -> anyhow::Result<Mad> {
        match self.mux.poll_output().context("nothing came out")?.1 {
            Output::ToWire(_, mad) | Output::ToVf(_, mad) => Ok(mad),
            other => bail!("{other:?} came out"),
        }
    }

    /// Lets time pass.
    pub(super) fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    /// Whether nothing more comes out.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.mux.poll_output().is_none()
    }
}

/// The source of a packet in a batch, with a GRH if it has one.
fn source(slid: Lid, slot: &Place) -> anyhow::Result<WireSource> {
    let grh = Grh::ref_from_bytes(&slot[HEAD - GRH..HEAD]).ok();
    let grh = grh.context("a GRH fits")?;
    Ok(WireSource {
        slid,
        sqpn: Qpn::GSI,
        sl: Sl::default(),
        pkey: PKey::DEFAULT_FULL,
        path_bits: 0,
        grh: (grh.ip_version() == Grh::VERSION).then(|| Route {
            sgid: grh.sgid,
            dgid: grh.dgid,
            traffic_class: grh.traffic_class(),
            flow_label: grh.flow_label(),
            hop_limit: grh.hop_limit,
        }),
    })
}

/// Writes what stands in front of a MAD that goes on: a GRH to the wire, the tunnel's header to a VF.
fn finish(mux: &mut PortMux, passed: &Passed, place: &mut Place) -> anyhow::Result<()> {
    match passed {
        Passed::ToWire(send) => {
            if let Some(route) = &send.grh {
                place[HEAD - GRH..HEAD].copy_from_slice(header(route).as_bytes());
            }
        }
        Passed::ToVf(to) => {
            let grh = to.grh.as_ref().map(header);
            let header = ToVfHeader::new(to.sqpn, to.slid, to.sl, to.pkey_index, grh);
            place[..HEAD].copy_from_slice(header.as_bytes());
        }
        Passed::Nothing => {
            let output = mux.poll_output();
            bail!("a frame did not pass: {output:?}");
        }
    }
    Ok(())
}

fn header(route: &Route) -> Grh {
    let mut grh = Grh::new(route.sgid, route.dgid, route.hop_limit);
    grh.set_traffic_class(route.traffic_class);
    grh.set_flow_label(route.flow_label);
    grh
}

/// The GUID of a VF.
pub(super) fn vf_guid(vf: VfId) -> Guid {
    Guid::new(0x0002_c903_0001_0000 + u64::from(vf.get()))
}

/// The GID of a VF.
pub(super) fn vf_gid(vf: VfId) -> Gid {
    Gid::from_parts(SubnetPrefix::DEFAULT, vf_guid(vf))
}

/// The VF whose turn it is with something that is counted.
pub(super) fn vf_of(number: u32, vfs: u16) -> anyhow::Result<VfId> {
    u16::try_from(number % u32::from(vfs))
        .ok()
        .and_then(|number| VfId::new(number + 1))
        .context("no such VF")
}

/// The GID of the port at a LID.
pub(super) fn peer_gid(lid: Lid) -> Gid {
    let guid = Guid::new(0x0011_7500_0000_0000 + u64::from(lid.get()));
    Gid::from_parts(SubnetPrefix::DEFAULT, guid)
}

/// A frame in which a VF asks for a MAD to be sent to QP1 of a LID, with a GRH if it has a GID.
pub(super) fn tunnel_frame(to: Lid, dgid: Option<Gid>, mad: &Mad) -> Place {
    let mut frame = ToPf::zeroed();
    let header = &mut frame.header;
    header.av.flags_port = 1;
    header.av.dlid = to;
    if let Some(dgid) = dgid {
        header.av.grh_path_bits = 0x80;
        header.av.dgid = dgid;
        header.av.hop_limit = 1;
    }
    header.remote_qpn = Qpn::GSI;
    header.remote_qkey = QKey::GSI;
    frame.mad = *mad;
    let mut place = [0; STRIDE];
    place[..TUNNEL].copy_from_slice(frame.as_bytes());
    place
}

/// A packet from the port at a LID to a VF's GID, or without a GRH.
pub(super) fn wire_frame(from: Lid, dgid: Option<Gid>, mad: &Mad) -> Place {
    let mut place = [0; STRIDE];
    if let Some(dgid) = dgid {
        place[..GRH].copy_from_slice(Grh::new(peer_gid(from), dgid, 1).as_bytes());
    }
    place[GRH..GRH + MAD].copy_from_slice(mad.as_bytes());
    place
}

/// The header of a VF's frame in a batch.
pub(super) fn tunnel_header(slot: &mut Place) -> anyhow::Result<&mut ToPfHeader> {
    let header = ToPfHeader::mut_from_prefix(slot).ok();
    header.map(|(header, _)| header).context("a header fits")
}

/// The GRH of a packet in a batch.
pub(super) fn wire_header(slot: &mut Place) -> anyhow::Result<&mut Grh> {
    Grh::mut_from_bytes(&mut slot[HEAD - GRH..HEAD])
        .ok()
        .context("a GRH fits")
}

/// The MAD of a frame in a batch.
pub(super) fn batch_mad(place: &mut Place) -> anyhow::Result<&mut Mad> {
    mad_at(place, HEAD)
}

fn mad_at(place: &mut Place, at: usize) -> anyhow::Result<&mut Mad> {
    Mad::mut_from_bytes(&mut place[at..at + MAD])
        .ok()
        .context("a place holds a MAD")
}
