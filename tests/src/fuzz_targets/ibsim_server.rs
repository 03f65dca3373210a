//! Clients of the ibsim server that do whatever the input says, on ports that answer if it says so.

use std::collections::VecDeque;

use ib_endpoint::{MadAddress, Message};
use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::DirectedRouteSmp;
use ib_wire::{Lid, Qpn, Tid};
use ibsim_link::codec::{Connect, Control, ControlKind, MadDatagram};
use ibsim_link::server::{Server, ServerConfig};
use ibsim_link::{Asker, Ports, Smi};
use zerocopy::IntoBytes;

use super::hostile::{Input, pass_time};

const CONFIG: ServerConfig = ServerConfig {
    max_clients: 6,
    max_queued: 8,
    max_outstanding: 8,
    max_given: 4,
    smp_timeout: ib_vtime::Duration::from_millis(500),
    gmp_timeout: ib_vtime::Duration::from_secs(4),
};

const CLASSES: [MgmtClass; 5] = [
    MgmtClass::SUBN_DIRECTED_ROUTE,
    MgmtClass::SUBN_LID_ROUTED,
    MgmtClass::SUBN_ADM,
    MgmtClass::PERF,
    MgmtClass::new(0x32),
];

const METHODS: [Method; 8] = [
    Method::GET,
    Method::SET,
    Method::GET_RESP,
    Method::TRAP,
    Method::TRAP_REPRESS,
    Method::SEND,
    Method::GET_TABLE,
    Method::GET_TABLE_RESP,
];

/// What the ports kept: the third one's QP0 is somebody else's.
#[derive(Debug, Default)]
struct Net {
    sent: Vec<(u8, MadAddress, Mad)>,
    arrived: [VecDeque<(Qpn, MadAddress, Message)>; 3],
    is_full: bool,
}

impl Ports for Net {
    type Port = u8;

    fn find(&self, name: &[u8]) -> Option<u8> {
        match name {
            [] => Some(0),
            [digit @ b'0'..=b'2', ..] => Some(digit - b'0'),
            _ => None,
        }
    }

    fn open(&mut self, port: u8) -> Option<Smi> {
        Some(if port == 2 { Smi::Taken } else { Smi::Open })
    }

    fn close(&mut self, _port: u8) {}

    fn lid(&self, port: u8) -> Lid {
        Lid::new(u16::from(port) + 1)
    }

    fn ask_own_agent(&mut self, port: u8, _: Asker, smp: &Mad) -> Option<Mad> {
        let mut answer = *smp;
        answer.header.method = smp.header.method.response();
        (port != 1).then_some(answer)
    }

    fn set_is_sm(&mut self, _port: u8, _is_sm: bool) {}

    fn reaches(&self, _port: u8, dlid: Lid, _mad: &Mad) -> bool {
        dlid.get() % 3 != 2
    }

    fn send(&mut self, port: u8, to: &MadAddress, mad: &Mad) -> bool {
        if !self.is_full && self.sent.len() < 64 {
            self.sent.push((port, *to, *mad));
        }
        !self.is_full
    }

    fn receive(&mut self, port: u8) -> Option<(Qpn, MadAddress, Message)> {
        self.arrived[usize::from(port)].pop_front()
    }

    fn decline(&mut self, _port: u8, _qpn: Qpn, _from: &MadAddress, _mad: &Mad) {}
}

struct Scene {
    now: Instant,
    server: Server<u8>,
    net: Net,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() & 7 {
            0 => self.connect(input),
            1 => self.control(input),
            2 => self.mad(input),
            3 => self.answer(input),
            4 => self.arrive(input),
            5 => self.now += input.time(),
            6 => self.read(input),
            _ => {
                if input.flag() {
                    self.net.is_full = !self.net.is_full;
                } else {
                    let slot = u32::from(input.byte() % 8);
                    self.server.lose(&mut self.net, slot);
                }
            }
        }
        self.server.poll(self.now, &mut self.net);
        for client in self.server.clients() {
            assert!(client.outstanding <= CONFIG.max_outstanding);
            assert!(client.queued <= CONFIG.max_queued);
        }
        assert!(self.server.clients().count() <= CONFIG.max_clients as usize);
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let mut data: Connect = Control::new(ControlKind::CONNECT, 0, &[0_u8; 44]).data();
        data.node[0] = b'0' + input.byte() % 4;
        data.takes_requests = u32::from(input.flag()).into();
        let mut control = Control::new(ControlKind::CONNECT, 0, &data);
        input.damage(control.as_mut_bytes());
        let owner = [input.byte() % 2];
        let outcome = (self.server).handle_control(&mut self.net, &owner, control.as_bytes());
        assert!(outcome.connected.is_none() || outcome.reply.is_some());
    }

    fn control(&mut self, input: &mut Input<'_>) {
        let kind = ControlKind::new(u32::from(input.byte() % 12));
        let slot = u32::from(input.byte() % 8);
        let mut control = Control::new(kind, slot, &[input.byte(); 4]);
        input.damage(control.as_mut_bytes());
        let owner = [input.byte() % 2];
        (self.server).handle_control(&mut self.net, &owner, control.as_bytes());
    }

    fn made(input: &mut Input<'_>) -> Mad {
        let class = CLASSES[input.index(CLASSES.len())];
        let method = METHODS[input.index(METHODS.len())];
        let mut mad = Mad::new(MadHeader::new(class, method, AttributeId::new(0x11)));
        mad.header.tid = Tid::new(u64::from(input.byte()) << 56 | u64::from(input.byte()));
        if class == MgmtClass::SUBN_DIRECTED_ROUTE {
            let smp: &mut DirectedRouteSmp = mad.view_mut();
            smp.set_path(&[1, 2][..input.index(3)]);
            smp.set_returning(method.is_response());
        }
        input.damage(mad.as_mut_bytes());
        mad
    }

    fn mad(&mut self, input: &mut Input<'_>) {
        let slot = u32::from(input.byte() % 8);
        let dlid = match input.byte() {
            0 => Lid::PERMISSIVE,
            lid => Lid::new(u16::from(lid)),
        };
        let qpn = u32::from(input.byte() % 3);
        let mad = Self::made(input);
        let mut datagram = MadDatagram::new(Lid::NONE, dlid, qpn, qpn, &mad);
        input.damage(datagram.as_mut_bytes());
        let mut bytes = datagram.as_bytes().to_vec();
        bytes.truncate(if input.byte() == 1 { 200 } else { 288 });
        (self.server).handle_mad(self.now, &mut self.net, slot, &bytes);
    }

    /// A MAD that was sent is answered, perhaps with a table.
    fn answer(&mut self, input: &mut Input<'_>) {
        let length = usize::from(input.byte()) * 4;
        let Some((port, to, mad)) = input.take(&mut self.net.sent) else {
            return;
        };
        let mut answer = mad;
        answer.header.method = mad.header.method.response();
        let message = match length {
            0 => Message::single(answer),
            _ => Message::rmpp(answer, vec![1; length]).unwrap_or_else(|| Message::single(answer)),
        };
        self.net.arrived[usize::from(port)].push_back((to.qpn, to, message));
    }

    fn arrive(&mut self, input: &mut Input<'_>) {
        let port = input.index(3);
        let mad = if input.flag() {
            Self::made(input)
        } else {
            input.mad()
        };
        let from = MadAddress::gsi(Lid::new(u16::from(input.byte())));
        self.net.arrived[port].push_back((from.qpn, from, Message::single(mad)));
    }

    /// A client reads, and perhaps answers what it read.
    fn read(&mut self, input: &mut Input<'_>) {
        let slot = u32::from(input.byte() % 8);
        let Some(datagram) = self.server.front(slot).and_then(MadDatagram::parse) else {
            return;
        };
        self.server.pop(slot);
        assert!(datagram.length.get() <= 256);
        let mut mad = datagram.mad();
        if !mad.header.method.is_answer() && datagram.status.get() == 0 && input.flag() {
            mad.header.method = mad.header.method.response();
            if mad.header.mgmt_class == MgmtClass::SUBN_DIRECTED_ROUTE {
                mad.view_mut::<DirectedRouteSmp>().set_returning(true);
            }
            let answer = MadDatagram::new(Lid::NONE, datagram.slid.lid, 1, 1, &mad);
            (self.server).handle_mad(self.now, &mut self.net, slot, answer.as_bytes());
        }
    }
}

/// Runs operations on an ibsim server. Bounds hold, and every request ends.
///
/// # Panics
/// If one of that does not hold.
pub(super) fn ibsim_server(data: &[u8]) {
    let mut input = Input::new(data);
    let mut scene = Scene {
        now: Instant::ZERO,
        server: Server::new(CONFIG),
        net: Net::default(),
    };
    while input.has_operation() {
        scene.step(&mut input);
    }
    let end = scene.now + ib_vtime::Duration::from_secs(60);
    let Scene {
        mut now,
        mut server,
        mut net,
    } = scene;
    pass_time(&mut now, end, |now| {
        server.poll(now, &mut net);
        server.poll_timeout()
    });
    assert!(server.clients().all(|client| client.outstanding == 0));
    assert_eq!(server.poll_timeout(), None);
}
