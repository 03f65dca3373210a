//! Live captures.

use emulated_hca::{TapId, TapPoint};
use ib_capture::{FrameRecord, Writer};
use ib_vtime::{Duration, Instant};
use ib_wire::Qpn;
use ib_wire::packet::{Body, Packet};
use vhca_control::{CaptureSpec, Refusal};

use super::lab::Lab;

/// Bytes that may wait to be taken; frames beyond are left out of the capture.
const MAX_WAITING: usize = 8 << 20;

/// A capture under way.
#[derive(Debug)]
pub(super) struct Capture {
    taps: Vec<TapId>,
    /// Only frames from or to these queue pairs, if there are any.
    only: Vec<Qpn>,
    writer: Writer<Vec<u8>>,
    left: Option<u64>,
    until: Option<Instant>,
    over: bool,
}

impl Capture {
    /// Begins to listen.
    pub(super) fn start(lab: &mut Lab, spec: &CaptureSpec) -> Result<Self, Refusal> {
        let writer = Writer::new(Vec::new());
        let writer = writer.map_err(|error| Refusal::new("internal", error.to_string()))?;
        let (points, only) = lab.tap_points(&spec.tap)?;
        let now = lab.world().now();
        let seconds = spec.seconds.map(u64::from).map(Duration::from_secs);
        let world = lab.world_mut();
        Ok(Self {
            taps: points
                .into_iter()
                .map(|point| world.add_tap(point))
                .collect(),
            only,
            writer,
            left: spec.count,
            until: seconds.map(|seconds| now + seconds),
            over: false,
        })
    }

    /// Takes a frame that a tap saw, if the tap is this capture's.
    pub(super) fn take(&mut self, tap: TapId, record: &FrameRecord) {
        if self.over || !self.taps.contains(&tap) || !self.wants(record) {
            return;
        }
        let waiting = self.writer.destination_mut().len();
        if waiting > MAX_WAITING || self.writer.write_record(record).is_err() {
            return;
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(1);
            self.over = *left == 0;
        }
    }

    fn wants(&self, record: &FrameRecord) -> bool {
        self.only.is_empty()
            || queue_pairs(record)
                .is_some_and(|pairs| pairs.iter().any(|pair| self.only.contains(pair)))
    }

    /// What is to be written to the client.
    pub(super) fn output(&mut self) -> Vec<u8> {
        std::mem::take(self.writer.destination_mut())
    }

    /// Ends the capture. What it has is still to be written.
    pub(super) const fn finish(&mut self) {
        self.over = true;
    }

    /// Whether the client ended it, or it has all its frames.
    pub(super) const fn is_finished(&self) -> bool {
        self.over
    }

    /// Whether nothing more comes, as of now.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        self.over |= self.left == Some(0) || self.until.is_some_and(|until| until <= now);
        self.over
    }

    /// When the capture ends by itself, unless it has.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.until.filter(|_| !self.over)
    }

    /// Stops listening.
    pub(super) fn stop(&self, lab: &mut Lab) {
        for tap in &self.taps {
            lab.world_mut().remove_tap(*tap);
        }
    }
}

/// The queue pairs that a packet names.
fn queue_pairs(record: &FrameRecord) -> Option<[Qpn; 2]> {
    match Packet::parse(&record.bytes).ok()?.body {
        Body::Transport(transport) => {
            let to = transport.bth.dest_qp;
            let from = transport.extended.deth.map_or(to, |deth| deth.src_qp);
            Some([from, to])
        }
        Body::RawEthertype { .. } | Body::RawIpv6 { .. } => None,
    }
}

impl Lab {
    /// The points where a tap listens, and the queue pairs to which it is confined.
    fn tap_points(&self, tap: &str) -> Result<(Vec<TapPoint>, Vec<Qpn>), Refusal> {
        match tap {
            "fabric" => return Ok((vec![TapPoint::Everything], Vec::new())),
            "tunnels" => {
                let hosts = self.inventory.pf_hosts();
                let nodes = hosts.map(|host| self.world().host(host.id).node());
                return Ok((nodes.map(TapPoint::Tunnels).collect(), Vec::new()));
            }
            _ => {}
        }
        if let Some((host, number)) = tap.rsplit_once("/vf") {
            let vf = self.inventory.vf(number, Some(host))?;
            let context = self.world().context(self.inventory.existing(&vf)?.host);
            let ports = context.ports().iter();
            let qpns: Vec<Qpn> = ports.flat_map(|port| port.tunnel_qpns(vf.vf)).collect();
            let node = self.world().host(vf.host).node();
            return Ok((vec![TapPoint::Tunnels(node)], qpns));
        }
        let (node, port) = self.inventory.end(tap)?;
        let fabric = self.world().fabric();
        let links = fabric.links().filter(|link| {
            let ends = fabric.link_ends(*link);
            ends.is_some_and(|ends| {
                ends.iter()
                    .any(|end| end.node == node && port.is_none_or(|port| port == end.port))
            })
        });
        let points: Vec<TapPoint> = links.map(TapPoint::Link).collect();
        if points.is_empty() {
            let message = format!("{tap} has no link");
            return Err(Refusal::new("no_such_link", message));
        }
        Ok((points, Vec::new()))
    }
}
