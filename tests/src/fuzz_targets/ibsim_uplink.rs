//! A simulator that says anything to the adapter that is attached to it.

use emulated_hca::{Fabric, Frame, HcaConfig, Lanes, LinkConfig, LinkId, LinkState, NodeId};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, Method};
use ib_wire::packet::Packet;
use ib_wire::smp::{
    DirectedRouteSmp, LidRoutedSmp, NodeInfo, PortInfo, PortPhysState, PortState, SmInfo,
    SmpAttribute,
};
use ib_wire::{Guid, Lid};
use ibsim_link::codec::{Connect, Control, ControlKind, MadDatagram};
use ibsim_link::uplink::{
    GuidPolicy, Identity, Uplink, UplinkConfig, UplinkCounters, UplinkOutput,
};
use zerocopy::IntoBytes;

use super::hostile::{Input, pass_time, remember};

/// The subnet manager's LID, as long as the simulator tells the truth.
const SM: Lid = Lid::new(1);

/// The adapter's.
const OWN: Lid = Lid::new(5);

/// Steps without time passing after which the uplink and the adapter keep each other busy for ever.
const ROUNDS: usize = 50_000;

struct Scene {
    now: Instant,
    uplink: Uplink,
    fabric: Fabric,
    adapter: Option<(NodeId, NodeId, LinkId)>,
    /// What the uplink has sent.
    sent: Vec<MadDatagram>,
    opening: bool,
    counters: UplinkCounters,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.byte() % 16 {
            0 if self.opening => {
                self.opening = false;
                self.uplink.opened(now, 7);
            }
            0 | 1 => self.control(input),
            2..8 => self.answer(input),
            8 => {
                if let Some(mut datagram) = input.take(&mut self.sent) {
                    datagram.status = MadDatagram::TIMED_OUT.into();
                    self.uplink.handle_mad(now, datagram.as_bytes());
                }
            }
            9 => {
                let mad = input.mad();
                let mut datagram = MadDatagram::new(SM, OWN, 1, 1, &mad);
                input.damage(datagram.as_mut_bytes());
                self.uplink.handle_mad(now, datagram.as_bytes());
            }
            10 => {
                let mut bytes = [0; 300];
                input.fill(&mut bytes);
                let length = input.index(bytes.len());
                self.uplink.handle_mad(now, &bytes[..length]);
            }
            11 => {
                let mut bytes = [0; 300];
                input.fill(&mut bytes);
                self.uplink.handle_frame(now, Frame::new(&bytes));
            }
            12 if input.byte() >= 0xf0 => self.uplink.failed(now),
            _ => {
                let end = now + input.time();
                self.wait(end);
            }
        }
        self.pull();
        self.check();
    }

    fn control(&mut self, input: &mut Input<'_>) {
        let connect = Connect {
            id: u32::from(input.byte()).into(),
            qpn: 0.into(),
            takes_requests: 1.into(),
            node: [0; 32],
        };
        let mut control = Control::new(ControlKind::CONNECT, 0, &connect);
        input.damage(control.as_mut_bytes());
        self.uplink.handle_control(self.now, control.as_bytes());
    }

    /// Answers something that the uplink has asked, more or less as a simulator would.
    fn answer(&mut self, input: &mut Input<'_>) {
        let Some(mut datagram) = input.take(&mut self.sent) else {
            return;
        };
        let mut mad: Mad = datagram.mad();
        if mad.header.method == Method::GET {
            mad.header.method = Method::GET_RESP;
        }
        let id = mad.header.attribute_id;
        if mad.header.mgmt_class.is_smp() {
            let number = u16::from(input.byte());
            let smp: &mut DirectedRouteSmp = mad.view_mut();
            if id == NodeInfo::ID {
                let info: &mut NodeInfo = smp.attribute_mut();
                info.node_guid = Guid::new(0x1000 + u64::from(number / 128));
                info.port_guid = Guid::new(0x1001);
                info.partition_cap = (number % 70).into();
            } else if id == PortInfo::ID {
                port_info(smp.attribute_mut(), number, input);
            } else if id == SmInfo::ID {
                let smp: &mut LidRoutedSmp = mad.view_mut();
                let info: &mut SmInfo = smp.attribute_mut();
                info.act_count = u32::from(number).into();
            } else {
                input.fill(&mut smp.data);
            }
        }
        datagram.mad.copy_from_slice(mad.as_bytes());
        if input.byte() < 0x20 {
            input.damage(datagram.as_mut_bytes());
        }
        self.uplink.handle_mad(self.now, datagram.as_bytes());
    }

    fn wait(&mut self, end: Instant) {
        let mut now = self.now;
        pass_time(&mut now, end, |at| {
            self.now = at;
            self.uplink.handle_timeout(at);
            self.pull();
            let uplink = self.uplink.poll_timeout(at);
            uplink.into_iter().chain(self.fabric.poll_timeout()).min()
        });
        self.now = now;
    }

    /// Does what the uplink wants, until neither it nor the adapter has more to do.
    fn pull(&mut self) {
        for _ in 0..ROUNDS {
            if let Some(output) = self.uplink.poll_output() {
                self.carry_out(output);
                continue;
            }
            while self.fabric.poll(self.now) {}
            let gateway = self.adapter.map(|(_, gateway, _)| gateway);
            match gateway.and_then(|gateway| self.fabric.take_from(gateway, Lanes::ALL)) {
                Some(frame) => self.uplink.handle_frame(self.now, frame),
                None => return,
            }
        }
        panic!("the uplink and the adapter keep each other busy");
    }

    fn carry_out(&mut self, output: UplinkOutput) {
        match output {
            UplinkOutput::Open => self.opening = true,
            UplinkOutput::Close => self.opening = false,
            UplinkOutput::Control(bytes) => assert!(Control::parse(&bytes[..]).is_some()),
            UplinkOutput::Mad(bytes) => {
                let datagram = MadDatagram::parse(&bytes[..]).expect("it has the size");
                remember(&mut self.sent, datagram);
            }
            UplinkOutput::Join(_) | UplinkOutput::GuidsRefused(_) => {}
            UplinkOutput::Identity(identity) => self.add_adapter(&identity),
            UplinkOutput::Cable(plugged) => {
                let (_, _, link) = self.adapter.expect("who the node is comes first");
                let state = if plugged {
                    LinkState::Up
                } else {
                    LinkState::Down
                };
                self.fabric.set_link(link, state);
            }
            UplinkOutput::Frame(frame) => {
                let packet = Packet::parse(frame.bytes()).expect("it is a packet");
                packet.check_crcs().expect("its checksums are right");
                let (_, gateway, _) = self.adapter.expect("who the node is comes first");
                self.fabric.send_from(gateway, frame);
            }
        }
    }

    fn add_adapter(&mut self, identity: &Identity) {
        assert!(self.adapter.is_none(), "it is told once");
        let host = self.fabric.add_hca(&HcaConfig {
            ports: 1,
            guid_table_len: identity.guid_table_len,
            pkey_table_len: identity.pkey_table_len,
            ..HcaConfig::new(identity.node_guid, "host")
        });
        let gateway = self.fabric.add_gateway("simulator", Default::default());
        let link = self
            .fabric
            .connect(host.port(1), gateway.port(1), LinkConfig::default())
            .expect("both ports are free");
        self.fabric.set_link(link, LinkState::Down);
        self.adapter = Some((host, gateway, link));
    }

    fn check(&mut self) {
        let counters = *self.uplink.counters();
        assert!(counters.sent >= self.counters.sent);
        assert!(counters.received >= self.counters.received);
        self.counters = counters;
    }
}

/// A port in some state, with addresses that are mostly legal.
fn port_info(info: &mut PortInfo, number: u16, input: &mut Input<'_>) {
    info.lid = OWN;
    info.master_sm_lid = SM;
    info.guid_cap = 32;
    info.set_port_state(PortState::new(input.byte() % 6));
    info.set_phys_state(PortPhysState::LINK_UP);
    match number {
        0..8 => info.lid = Lid::new(number),
        8..16 => info.lid = Lid::new(0xc000 + number),
        16..24 => info.set_lmc(ib_wire::Lmc::from_low_bits(number.to_be_bytes()[1])),
        24..32 => info.master_sm_lid = Lid::new(number - 24),
        _ => {}
    }
}

/// See the [module](self).
pub(super) fn ibsim_uplink(data: &[u8]) {
    let mut input = Input::new(data);
    let guids = if input.flag() {
        GuidPolicy::Local
    } else {
        GuidPolicy::Fabric
    };
    let config = UplinkConfig {
        node: "H-2".to_owned(),
        guids,
    };
    let mut scene = Scene {
        now: Instant::ZERO,
        uplink: Uplink::new(Instant::ZERO, config),
        fabric: Fabric::new(1),
        adapter: None,
        sent: Vec::new(),
        opening: false,
        counters: UplinkCounters::default(),
    };
    scene.pull();
    while input.has_operation() {
        scene.step(&mut input);
    }
    // Whatever was said, the uplink comes to the point of trying again.
    let end = scene.now + ib_vtime::Duration::from_secs(10);
    scene.wait(end);
}
