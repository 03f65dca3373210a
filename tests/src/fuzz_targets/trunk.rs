//! The other end of a trunk that sends anything, to a fabric that takes it for a host, or for a part of itself.

use emulated_hca::{Frame, LinkConfig, Topology};
use hca_api::PortState;
use ib_trunk::{Hello, MAX_BODY, SessionConfig, SiteName, TrunkEnd};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::Mad;
use ib_wire::packet::{UdFrame, VCRC_SIZE};
use ib_wire::{Guid, Lid, PKey, Psn, QKey, Qpn, Sl, Vl};
use subnet_lite::SubnetConfig;
use vhca::Driven;
use vhca::world::World;

use super::hostile::{Input, pass_time};

/// A port of the first switch without a cable.
const PORT: u8 = 5;

const TIMEOUT: Duration = Duration::from_secs(1);

/// Exchanges of one moment at most, before the trunk and the fabric keep each other busy without end.
const ROUNDS: usize = 10_000;

struct Scene {
    now: Instant,
    world: World,
    trunk: TrunkEnd,
}

impl Scene {
    /// A managed fabric whose nodes are up, and a trunk that nothing is connected to.
    fn new(is_guarded: bool) -> Option<Self> {
        let (mut fabric, built) = Topology::two_switches(1).build(0);
        let near = built.switches.first()?.port(PORT);
        let trunk = TrunkEnd::new(&mut fabric, near, "trunk", LinkConfig::default()).ok()?;
        assert!(fabric.set_guarded(near, is_guarded));
        let mut world = World::new(fabric, 0);
        let manager = world.add_host(*built.hcas.first()?).ok()?;
        let config = SubnetConfig::default();
        world.start_manager(manager.port(1), config).ok()?;
        let mut scene = Self {
            now: Instant::ZERO,
            world,
            trunk,
        };
        scene.pass(Duration::from_secs(5));
        scene.connect();
        Some(scene)
    }

    fn site(name: &str) -> Option<SiteName> {
        name.parse().ok()
    }

    fn connect(&mut self) {
        let Some(site) = Self::site("near") else {
            return;
        };
        let hello = Hello {
            site,
            node_guid: Guid::NONE,
            port: PORT,
        };
        let config = SessionConfig {
            hello,
            timeout: TIMEOUT,
        };
        let fabric = self.world.fabric_mut();
        self.trunk.connect(self.now, fabric, config);
    }

    fn pass(&mut self, time: Duration) {
        let (mut now, end) = (self.now, self.now + time);
        pass_time(&mut now, end, |now| {
            self.now = now;
            self.settle();
            let session = self
                .trunk
                .session()
                .and_then(|session| session.poll_timeout());
            self.world.poll_timeout().into_iter().chain(session).min()
        });
        self.now = now;
    }

    /// Runs the world and the trunk until neither has work at this time.
    fn settle(&mut self) {
        for _ in 0..ROUNDS {
            self.world.poll(self.now);
            let moved = self.trunk.exchange(self.world.fabric_mut());
            if let Some(session) = self.trunk.session_mut() {
                if session.poll_timeout().is_some_and(|due| due <= self.now) {
                    session.handle_timeout(self.now);
                }
                let mut out = Vec::new();
                session.poll_transmit(&mut out, 0);
                assert!(out.len() <= 2 * MAX_BODY, "{} bytes at once", out.len());
                if out.is_empty() && !moved {
                    return;
                }
            } else {
                return;
            }
        }
        panic!(
            "the trunk and the fabric keep each other busy at {:?}",
            self.now
        );
    }

    fn receive(&mut self, bytes: &[u8]) {
        if let Some(session) = self.trunk.session_mut() {
            session.handle_bytes(self.now, bytes);
        }
        self.settle();
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 10 {
            0 => self.receive(&hello()),
            1 => self.connect(),
            2 | 3 => {
                let (flags, packet) = (input.byte(), datagram(input));
                self.receive(&record(1, flags & 0x81, packet.1, &packet.0));
            }
            4 | 5 => {
                let mad = input.mad();
                let lids = [input.byte(), input.byte()].map(|lid| match lid {
                    u8::MAX => Lid::PERMISSIVE,
                    lid => Lid::new(lid.into()),
                });
                let packet = smp(&mad, lids);
                self.receive(&record(1, 0, Vl::MANAGEMENT, &packet));
            }
            6 => {
                let mut body = [0; 512];
                input.fill(&mut body);
                let length = input.index(body.len());
                let lane = Vl::from_low_bits(input.byte());
                let kind = input.byte();
                let flags = input.byte();
                self.receive(&record(
                    kind % 9,
                    flags,
                    lane,
                    body.get(..length).unwrap_or(&body),
                ));
            }
            7 => {
                let mut limits = [0; 120];
                limits.chunks_mut(8).for_each(|limit| {
                    let bits = u32::from(input.byte()) << (input.byte() % 24);
                    limit.copy_from_slice(&u64::from(bits).to_be_bytes());
                });
                self.receive(&record(3, 0, Vl::default(), &limits));
            }
            8 => {
                let time = Duration::from_millis(u64::from(input.byte()));
                self.pass(time);
            }
            _ => {
                let mut bytes = [0; 64];
                input.fill(&mut bytes);
                let length = input.index(bytes.len());
                self.receive(bytes.get(..length).unwrap_or(&bytes));
            }
        }
    }

    /// Returns LIDs and states of all ports of adapters.
    fn ports(&self) -> Vec<(Lid, PortState)> {
        let fabric = self.world.fabric();
        let nodes = fabric.nodes().filter_map(|(id, _)| fabric.port(id.port(1)));
        nodes
            .filter(|port| port.lid != Lid::NONE)
            .map(|port| (port.lid, port.state))
            .collect()
    }
}

/// Builds a record.
fn record(kind: u8, flags: u8, lane: Vl, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[kind, flags, lane.get(), 0][..], &length, body].concat()
}

/// Builds the hello of another site, which takes runs and senders.
fn hello() -> Vec<u8> {
    let mut body = b"VHCATRNK\x00\x01\x00\x03\x00\x01\x08\x00".to_vec();
    body.extend([0, 0, 0, 0, 0, 0, 0, 7, PORT, 3]);
    body.extend(b"far");
    body.resize(96, 0);
    record(0, 0, Vl::default(), &body)
}

fn smp(mad: &Mad, [slid, dlid]: [Lid; 2]) -> Vec<u8> {
    let frame = Frame::of_smp(mad, slid, dlid, Sl::default());
    frame.map_or_else(Vec::new, |frame| carried(frame.bytes()))
}

/// Builds a datagram of the input's operands, on its lane.
fn datagram(input: &mut Input<'_>) -> (Vec<u8>, Vl) {
    let mut payload = [0; 255];
    input.fill(&mut payload);
    let vl = Vl::from_low_bits(input.byte() % 3);
    let packet = written(&UdFrame {
        vl,
        sl: Sl::from_low_bits(input.byte()),
        slid: Lid::new(input.byte().into()),
        dlid: Lid::new(u16::from(input.byte()) << (input.byte() % 9)),
        grh: None,
        pkey: PKey::DEFAULT_FULL,
        dest_qp: Qpn::from_low_bits(input.byte().into()),
        src_qp: Qpn::GSI,
        qkey: QKey::GSI,
        psn: Psn::default(),
        solicited: false,
        immediate: None,
        payload: &payload,
    });
    (packet, vl)
}

fn written(frame: &UdFrame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; 512];
    let length = frame.write(&mut bytes).unwrap_or(0);
    carried(bytes.get(..length).unwrap_or_default())
}

/// Returns a packet without its VCRC.
fn carried(packet: &[u8]) -> Vec<u8> {
    let carried = packet.split_last_chunk::<VCRC_SIZE>();
    carried.map_or_else(Vec::new, |(carried, _)| carried.to_vec())
}

/// A fabric on which nothing that the other end does makes anything panic, and on which a host changes no port.
pub(super) fn trunk(data: &[u8]) {
    let mut input = Input::new(data);
    let is_guarded = input.flag();
    let Some(mut scene) = Scene::new(is_guarded) else {
        return;
    };
    let before = scene.ports();
    assert!(!before.is_empty());
    scene.receive(&hello());
    while input.has_operation() {
        scene.step(&mut input);
    }
    if is_guarded {
        assert_eq!(scene.ports(), before, "a host that is not trusted");
    }
}
