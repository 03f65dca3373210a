//! Programs on the RDMA CM whose connections come back to the same port, over a hostile wire.

use core::net::Ipv4Addr;
use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use hca_api::{Hca, HcaError};
use ib_endpoint::{EndPort, EndPortConfig, MadAddress, MadTransport};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::sa::{McMemberRecord, PathRecord, SaMad, Selector};
use ib_wire::{Gid, GidIndex, Guid, Lid, Mtu, PKey, PortNum, Rate};
use verbs_link::abi::rdma_cm::{
    Accept, Bind, CmCommandHeader, CmEventRecord, Connect, CreateId, Disconnect, IdAnswer,
    IdArgument, IdCommand, JoinIpMcast, JoinMcast, Reject, ResolveAddr, cm_command, cm_event,
};
use verbs_link::{AddressBook, ChannelId, CmHost, RdmaCm};
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

use super::super::hostile::{Input, Wire};
use super::program::{LID, Program};

/// Address of the VF.
const OWN: Ipv4Addr = Ipv4Addr::new(127, 77, 1, 1);

/// Port spaces (`enum rdma_ucm_port_space`).
const PORT_SPACES: [u16; 3] = [0x0106, 0x0111, 0x013f];
const PS_IPOIB: u16 = 0x0002;

/// `AF_INET`.
const INET: u16 = 2;

/// The group that the SA chooses, and the last byte of the one that it refuses.
const GROUP: Gid = Gid([0xff, 0x12, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const NO_GROUP: u8 = 3;

/// Bytes that stand for operations on groups. Other operations have each twentieth byte.
const MULTICAST: Range<u8> = 244..252;

/// Turns of the port after each step.
const TURNS: usize = 64;

/// MADs that were sent and did not arrive yet.
#[derive(Debug, Default)]
struct UnderWay {
    sent: Vec<Mad>,
    arriving: Vec<Mad>,
}

/// QP1 of a port that is connected to itself.
#[derive(Debug)]
struct Loopback(Arc<Mutex<UnderWay>>);

impl MadTransport for Loopback {
    fn port(&self) -> PortNum {
        PortNum(1)
    }

    fn can_send(&self) -> bool {
        true
    }

    fn send(&mut self, _: &mut dyn Hca, _: &MadAddress, mad: &Mad) -> Result<(), HcaError> {
        self.0.lock().expect("no other thread").sent.push(*mad);
        Ok(())
    }

    fn poll(&mut self, _: &mut dyn Hca) -> Option<(MadAddress, Mad)> {
        let mad = self.0.lock().expect("no other thread").arriving.pop()?;
        Some((MadAddress::gsi(Lid::new(LID)), mad))
    }

    fn arm(&self, _: &mut dyn Hca) -> bool {
        !self.0.lock().expect("no other thread").arriving.is_empty()
    }

    fn close(self: Box<Self>, _: &mut dyn Hca) {}
}

/// Answers a query for a path, or for a group, as an SA does.
fn answer_of_sa(request: &Mad) -> Mad {
    let mut answer = SaMad::read_from_bytes(request.as_bytes()).expect("MADs have one size");
    answer.header.method = match answer.header.method {
        Method::DELETE => Method::DELETE_RESP,
        _ => Method::GET_RESP,
    };
    if answer.header.attribute_id == AttributeId::MC_MEMBER_RECORD {
        let group: &mut McMemberRecord = answer.record_mut();
        group.mlid = Lid::new(Lid::FIRST_MULTICAST.get() | u16::from(group.mgid.0[15]));
        if group.mgid.is_none() {
            group.mgid = GROUP;
        }
        // One of the groups is nobody's.
        if group.mgid.0[15] == NO_GROUP {
            answer.header.status = MadStatus::SA_NO_RESOURCES;
        }
        return Mad::read_from_bytes(answer.as_bytes()).expect("MADs have one size");
    }
    let path: &mut PathRecord = answer.record_mut();
    path.dlid = Lid::new(LID);
    path.slid = Lid::new(LID);
    path.pkey = PKey::DEFAULT_FULL;
    path.set_mtu_selector(Selector::EXACTLY);
    path.set_mtu_value(Mtu::MTU_2048);
    path.set_rate_selector(Selector::EXACTLY);
    path.set_rate_value(Rate::GBPS_10);
    Mad::read_from_bytes(answer.as_bytes()).expect("MADs have one size")
}

/// A program with two open files.
struct Ids {
    program: Program,
    port: EndPort<Loopback>,
    under_way: Arc<Mutex<UnderWay>>,
    wire: Wire,
    cm: RdmaCm,
    book: AddressBook,
    channels: Vec<ChannelId>,
    ids: Vec<(ChannelId, u32)>,
    /// Groups that were joined, and may have been left.
    groups: Vec<(ChannelId, u32)>,
    /// Numbers of the events that were read.
    events: BTreeSet<u32>,
}

impl Ids {
    fn new() -> Self {
        let mut program = Program::new();
        let under_way = Arc::new(Mutex::new(UnderWay::default()));
        let transport = Loopback(under_way.clone());
        let now = program.now;
        let (port, gid) = program.with_pf(|hca| {
            let config = EndPortConfig::host(PortNum(1), 1);
            let port = EndPort::open_on(now, hca, config, transport, None);
            let gid = hca.query_gid(PortNum(1), GidIndex(0));
            (port.expect("a port"), gid.unwrap_or_default())
        });
        let mut cm = RdmaCm::new(1);
        let channels = (0..2).map(|_| cm.open().expect("a file")).collect();
        Self {
            program,
            port,
            under_way,
            wire: Wire::default(),
            cm,
            book: AddressBook {
                own: OWN,
                aliases: Vec::new(),
                gids: BTreeMap::from([(Ipv4Addr::new(127, 77, 9, 9), Gid([9; 16])), (OWN, gid)]),
                network: None,
            },
            channels,
            ids: Vec::new(),
            groups: Vec::new(),
            events: BTreeSet::new(),
        }
    }

    /// Writes a command.
    fn command(&mut self, channel: ChannelId, number: u32, payload: &[u8]) -> Option<Vec<u8>> {
        let header = CmCommandHeader {
            command: number.into(),
            in_bytes: u16::try_from(payload.len()).unwrap_or(u16::MAX).into(),
            out_bytes: 1024.into(),
        };
        let bytes = [header.as_bytes(), payload].concat();
        let mut host = CmHost {
            now: self.program.now,
            port: &mut self.port,
            node_guid: Guid::new(7),
        };
        let reply = self.cm.command(&mut host, &self.book, channel, &bytes);
        reply.ok().map(|reply| reply.answer)
    }

    /// Writes a command of some layout, which the input may damage.
    fn write<T: IntoBytes + FromBytes + KnownLayout>(
        &mut self,
        input: &mut Input<'_>,
        channel: ChannelId,
        number: u32,
        mut payload: T,
    ) -> Option<Vec<u8>> {
        let bytes = payload.as_mut_bytes();
        if input.byte() >= 0xe0 {
            input.damage(bytes);
        }
        let length = match input.byte() {
            short @ 0xf8.. => usize::from(short & 7) * 4,
            _ => bytes.len(),
        };
        let length = length.min(bytes.len());
        self.command(channel, number, &bytes[..length])
    }

    /// Carries out the next operation of the input.
    fn step(&mut self, input: &mut Input<'_>) {
        let operation = input.byte();
        if MULTICAST.contains(&operation) {
            return self.multicast(input);
        }
        let operation = operation % 20;
        let (channel, id) = match input.pick(&self.ids) {
            Some((channel, id)) if input.byte() < 0xf0 => (channel, id),
            _ => (self.channels[input.index(2)], u32::from(input.byte())),
        };
        match operation {
            0 => self.create(input),
            1 => {
                let mut bind = Bind {
                    id: id.into(),
                    addr_size: 16.into(),
                    ..Bind::default()
                };
                bind.addr[..8].copy_from_slice(&address(input));
                self.write(input, channel, cm_command::BIND, bind);
            }
            2..=3 => {
                let mut resolve = ResolveAddr {
                    id: id.into(),
                    dst_size: 16.into(),
                    src_size: u16::from(input.byte() & 16).into(),
                    ..ResolveAddr::default()
                };
                resolve.dst_addr[..8].copy_from_slice(&address(input));
                if resolve.src_size.get() > 0 {
                    resolve.src_addr[..8].copy_from_slice(&address(input));
                }
                self.write(input, channel, cm_command::RESOLVE_ADDR, resolve);
            }
            4..=6 => {
                let numbers = [
                    cm_command::RESOLVE_ROUTE,
                    cm_command::LISTEN,
                    cm_command::NOTIFY,
                ];
                let number = numbers[usize::from(operation) - 4];
                let asked = IdArgument {
                    id: id.into(),
                    argument: u32::from(input.byte()).into(),
                };
                self.write(input, channel, number, asked);
            }
            7..=8 => {
                let mut connect = Connect {
                    id: id.into(),
                    ..Connect::default()
                };
                connect.param.qp_num = u32::from(input.byte()).into();
                connect.param.private_data_len = input.byte();
                self.write(input, channel, cm_command::CONNECT, connect);
            }
            9..=10 => {
                let mut accept = Accept {
                    id: id.into(),
                    uid: u64::from(id).into(),
                    ..Accept::default()
                };
                accept.param.valid = u8::from(input.byte() < 0xe0);
                accept.param.qp_num = u32::from(input.byte()).into();
                self.write(input, channel, cm_command::ACCEPT, accept);
            }
            11 => {
                let reject = Reject {
                    id: id.into(),
                    private_data_len: input.byte(),
                    reason: input.byte(),
                    ..Reject::default()
                };
                self.write(input, channel, cm_command::REJECT, reject);
            }
            12 => drop(self.write(
                input,
                channel,
                cm_command::DISCONNECT,
                Disconnect { id: id.into() },
            )),
            13..=14 => self.about_id(input, channel, id),
            15 => self.any_command(input, channel),
            16 => self.pass(input.time()),
            17 => self.wire.lose(0, input),
            _ => self.deliver(input),
        }
    }

    fn create(&mut self, input: &mut Input<'_>) {
        let channel = self.channels[input.index(2)];
        let create = CreateId {
            uid: u64::from(input.byte()).into(),
            ps: match input.byte() {
                0xfe.. => PS_IPOIB,
                other => PORT_SPACES[usize::from(other) % 3],
            }
            .into(),
            ..CreateId::default()
        };
        let answer = self.write(input, channel, cm_command::CREATE_ID, create);
        let answer = answer.and_then(|bytes| IdAnswer::read_from_bytes(&bytes).ok());
        self.ids
            .extend(answer.map(|answer| (channel, answer.value.get())));
    }

    fn about_id(&mut self, input: &mut Input<'_>, channel: ChannelId, id: u32) {
        let numbers = [
            cm_command::QUERY,
            cm_command::INIT_QP_ATTR,
            cm_command::MIGRATE_ID,
            cm_command::LEAVE_MCAST,
            cm_command::DESTROY_ID,
        ];
        let number = numbers[input.index(numbers.len())];
        let asked = IdCommand {
            id: id.into(),
            argument: u32::from(input.byte() % 8).into(),
            ..IdCommand::default()
        };
        self.write(input, channel, number, asked);
        if number == cm_command::DESTROY_ID {
            self.ids.retain(|known| *known != (channel, id));
        }
    }

    /// Joins a group, or leaves one.
    fn multicast(&mut self, input: &mut Input<'_>) {
        let (channel, id) = match input.pick(&self.ids) {
            Some(known) => known,
            None => (self.channels[input.index(2)], u32::from(input.byte())),
        };
        let uid = u64::from(input.byte());
        let answer = match input.byte() % 4 {
            0..=1 => {
                let mut join = JoinMcast {
                    uid: uid.into(),
                    id: id.into(),
                    addr_size: 16.into(),
                    join_flags: u16::from(input.byte() % 3).into(),
                    ..JoinMcast::default()
                };
                join.addr[..8].copy_from_slice(&group(input));
                self.write(input, channel, cm_command::JOIN_MCAST, join)
            }
            2 => {
                let mut join = JoinIpMcast {
                    uid: uid.into(),
                    id: id.into(),
                    ..JoinIpMcast::default()
                };
                join.addr[..8].copy_from_slice(&group(input));
                self.write(input, channel, cm_command::JOIN_IP_MCAST, join)
            }
            _ => {
                if let Some((channel, number)) = input.pick(&self.groups) {
                    let leave = IdCommand {
                        id: number.into(),
                        ..IdCommand::default()
                    };
                    self.write(input, channel, cm_command::LEAVE_MCAST, leave);
                }
                return;
            }
        };
        let answer = answer.and_then(|bytes| IdAnswer::read_from_bytes(&bytes).ok());
        self.groups
            .extend(answer.map(|answer| (channel, answer.value.get())));
    }

    fn any_command(&mut self, input: &mut Input<'_>, channel: ChannelId) {
        let number = u32::from(input.byte() % 32);
        let mut payload = vec![0; usize::from(input.byte()) * 2];
        input.fill(&mut payload);
        self.command(channel, number, &payload);
    }

    /// Brings a MAD to the port that sent it, or the SA's answer to it.
    fn deliver(&mut self, input: &mut Input<'_>) {
        let mads = self.wire.pass(0, input);
        let answered = mads.into_iter().map(|mad| {
            let header = MadHeader::read_from_prefix(mad.as_bytes()).expect("a whole MAD");
            match header.0.mgmt_class {
                MgmtClass::SUBN_ADM => answer_of_sa(&mad),
                _ => mad,
            }
        });
        let mut under_way = self.under_way.lock().expect("no other thread");
        under_way.arriving.extend(answered);
    }

    fn pass(&mut self, time: Duration) {
        let end = self.program.now + time;
        for _ in 0..TURNS {
            self.settle();
            match self.port.poll_timeout() {
                Some(due) if due <= end => self.program.now = due.max(self.program.now),
                _ => break,
            }
        }
        self.program.now = end;
    }

    /// Serves the port, and reads the events.
    fn settle(&mut self) {
        let now: Instant = self.program.now;
        let port = &mut self.port;
        for _ in 0..TURNS {
            if !self.program.with_pf(|hca| port.poll(now, hca)) {
                break;
            }
        }
        while let Some(event) = self.port.poll_event() {
            let mut host = CmHost {
                now,
                port: &mut self.port,
                node_guid: Guid::new(7),
            };
            self.cm.handle_port_event(&mut host, event);
        }
        while let Some(event) = self.cm.poll_event() {
            assert!(self.cm.has_channel(event.channel), "a channel of its own");
            let record = CmEventRecord::read_from_bytes(&event.bytes).expect("a whole record");
            let (event_id, number) = (record.id.get(), record.event.get());
            if number == cm_event::CONNECT_REQUEST && !self.ids.contains(&(event.channel, event_id))
            {
                self.ids.push((event.channel, event_id));
            }
            self.events.insert(number);
        }
        let sent: Vec<Mad> = {
            let mut under_way = self.under_way.lock().expect("no other thread");
            under_way.sent.drain(..).collect()
        };
        for mad in sent {
            self.wire.push(0, mad);
        }
    }

    /// Closes both files: no id of theirs is left, nor what the connection manager and the SA client know of it.
    fn end(mut self) {
        for channel in self.channels.clone() {
            let mut host = CmHost {
                now: self.program.now,
                port: &mut self.port,
                node_guid: Guid::new(7),
            };
            self.cm.close(&mut host, channel);
        }
        // Connections wait until late packets of theirs are gone.
        for _ in 0..TURNS {
            self.wire.clear();
            self.pass(Duration::from_secs(600));
        }
        let left = self.port.cm().table_sizes().connections;
        assert_eq!(left, 0, "connections without an id");
        let left = self.port.sa().sizes();
        let left = (left.standing, left.queries);
        assert_eq!(left, (0, 0), "wishes and queries without an id");
        let Self {
            mut program, port, ..
        } = self;
        program.with_pf(|hca| port.close(hca));
        program.end();
    }
}

/// Returns the front of an address of the RDMA CM: the own one, another, or any.
fn address(input: &mut Input<'_>) -> [u8; 8] {
    let port = [0, input.byte() % 4];
    let ip = match input.byte() {
        0..0xc0 => OWN.octets(),
        0xc0..0xe0 => [127, 77, 9, 9],
        0xe0..0xf0 => [0; 4],
        other => [other; 4],
    };
    let [low, high] = INET.to_ne_bytes();
    [low, high, port[0], port[1], ip[0], ip[1], ip[2], ip[3]]
}

/// Returns the front of the address of one of four groups, or of none.
fn group(input: &mut Input<'_>) -> [u8; 8] {
    let [low, high] = INET.to_ne_bytes();
    match input.byte() % 5 {
        4 => [low, high, 0, 0, 0, 0, 0, 0],
        last => [low, high, 0, 0, 239, 1, 1, last],
    }
}

/// Creates, connects and destroys ids, joins and leaves groups, well and badly, while MADs are lost, damaged and come twice: no input makes it panic,
/// tell a file of an event of another's, or leave a connection or a membership behind a closed file.
pub(in super::super) fn rdma_cm(data: &[u8]) {
    play(data);
}

/// Returns the numbers of the events that were read.
pub(super) fn play(data: &[u8]) -> BTreeSet<u32> {
    let mut input = Input::new(data);
    let mut ids = Ids::new();
    while input.has_operation() {
        ids.step(&mut input);
        ids.settle();
    }
    let events = core::mem::take(&mut ids.events);
    ids.end();
    events
}
