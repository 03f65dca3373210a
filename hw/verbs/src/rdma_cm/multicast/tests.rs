use core::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

use emulated_hca::EndNode;
use hca_api::{FunctionId, Hca, HcaError};
use ib_endpoint::{EndPort, EndPortConfig, MadAddress, MadTransport};
use ib_vtime::Instant;
use ib_wire::mad::{Mad, MadStatus, Method, MgmtClass};
use ib_wire::sa::SaMad;
use ib_wire::{Guid, Lid, PKey, PortNum, QKey, Sl};
use zerocopy::FromBytes;

use super::super::address::{Address, IbAddress};
use super::super::{AddressBook, PS_TCP, PS_UDP};
use super::*;
use crate::abi::rdma_cm::{
    Bind, CmCommandHeader, CmEventRecord, CreateId, ResolveAddr, UDP_QKEY, cm_command,
};
use crate::testing::ActivePort;

/// Address of the VF, and of the group.
const OWN: Ipv4Addr = Ipv4Addr::new(127, 77, 1, 1);
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 1, 1);

/// Service level of the broadcast group.
const LEVEL: Sl = Sl::from_low_bits(3);

/// An SA, and the way to it.
#[derive(Clone, Debug)]
struct Sa(Arc<Mutex<Books>>);

#[derive(Debug)]
struct Books {
    /// The partition has a broadcast group.
    has_broadcast: bool,
    /// Joins are refused.
    refuses: bool,
    mlid: u16,
    /// Joins and leaves, in their order.
    asked: Vec<(Method, McMemberRecord, ComponentMask)>,
    answers: Vec<Mad>,
}

impl Books {
    fn answer(&mut self, mad: &Mad) {
        let mut answer = SaMad::read_from_bytes(mad.as_bytes()).unwrap();
        let record: McMemberRecord = answer.record();
        let method = answer.header.method;
        let mut granted = record;
        let ok = if method == Method::GET {
            granted.qkey = QKey::new(0x0b1b);
            granted.set_sl(LEVEL);
            self.has_broadcast
        } else {
            let mask = ComponentMask::new(answer.component_mask.get());
            self.asked.push((method, record, mask));
            granted.mlid = Lid::new(self.mlid);
            if record.mgid.is_none() {
                granted.mgid = Gid([0xff; 16]);
            }
            !self.refuses
        };
        answer.header.method = match method {
            Method::DELETE => Method::DELETE_RESP,
            _ => Method::GET_RESP,
        };
        if ok {
            *answer.record_mut() = granted;
        } else {
            answer.header.status = MadStatus::SA_NO_RESOURCES;
        }
        self.answers
            .push(Mad::read_from_bytes(answer.as_bytes()).unwrap());
    }
}

impl MadTransport for Sa {
    fn port(&self) -> PortNum {
        PortNum(1)
    }

    fn can_send(&self) -> bool {
        true
    }

    fn send(&mut self, _: &mut dyn Hca, _: &MadAddress, mad: &Mad) -> Result<(), HcaError> {
        assert_eq!(mad.header.mgmt_class, MgmtClass::SUBN_ADM);
        self.0.lock().unwrap().answer(mad);
        Ok(())
    }

    fn poll(&mut self, _: &mut dyn Hca) -> Option<(MadAddress, Mad)> {
        let mad = self.0.lock().unwrap().answers.pop()?;
        Some((MadAddress::gsi(Lid::new(1)), mad))
    }

    fn arm(&self, _: &mut dyn Hca) -> bool {
        !self.0.lock().unwrap().answers.is_empty()
    }

    fn close(self: Box<Self>, _: &mut dyn Hca) {}
}

/// A process with an open file on a port with an SA.
struct Opened {
    adapter: ActivePort,
    port: EndPort<Sa>,
    sa: Sa,
    cm: RdmaCm,
    channel: ChannelId,
}

impl Opened {
    fn new() -> Self {
        let mut adapter = ActivePort::new();
        let port = adapter.device.node_mut().port_mut(PortNum(1)).unwrap();
        (port.sm_lid, port.state) = (Lid::new(1), hca_api::PortState::Active);
        let sa = Sa(Arc::new(Mutex::new(Books {
            has_broadcast: true,
            refuses: false,
            mlid: 0xc001,
            asked: Vec::new(),
            answers: Vec::new(),
        })));
        let transport = sa.clone();
        let port = adapter.with(|hca| {
            let config = EndPortConfig::host(PortNum(1), 1);
            EndPort::open_on(Instant::ZERO, hca, config, transport, None).unwrap()
        });
        let mut cm = RdmaCm::new(1);
        let channel = cm.open().unwrap();
        Self {
            adapter,
            port,
            sa,
            cm,
            channel,
        }
    }

    fn host(&mut self) -> (&mut RdmaCm, CmHost<'_, Sa>) {
        let host = CmHost {
            now: Instant::ZERO,
            port: &mut self.port,
            node_guid: Guid::new(7),
        };
        (&mut self.cm, host)
    }

    fn command(&mut self, number: u32, payload: &[u8]) -> Result<Reply, Errno> {
        let header = CmCommandHeader {
            command: number.into(),
            in_bytes: u16::try_from(payload.len()).unwrap().into(),
            out_bytes: 336.into(),
        };
        let bytes = [header.as_bytes(), payload].concat();
        let book = AddressBook {
            aliases: Vec::new(),
            own: OWN,
            gids: BTreeMap::new(),
            network: None,
        };
        let channel = self.channel;
        let (cm, mut host) = self.host();
        cm.command(&mut host, &book, channel, &bytes)
    }

    /// Creates an id, and binds it to the VF.
    fn bound(&mut self, uid: u64, port_space: u16) -> u32 {
        let create = CreateId {
            uid: uid.into(),
            ps: port_space.into(),
            ..CreateId::default()
        };
        let reply = self.command(cm_command::CREATE_ID, create.as_bytes());
        let id = number(&reply.unwrap());
        let bind = Bind {
            id: id.into(),
            addr_size: 16.into(),
            addr: address(OWN.into()).0,
            ..Bind::default()
        };
        self.command(cm_command::BIND, bind.as_bytes()).unwrap();
        self.settle();
        id
    }

    fn ask(
        &mut self,
        id: u32,
        uid: u64,
        (addr, size): ([u8; ADDRESS_SIZE], u16),
    ) -> Result<u32, Errno> {
        let join = JoinMcast {
            uid: uid.into(),
            id: id.into(),
            addr_size: size.into(),
            addr,
            ..JoinMcast::default()
        };
        let reply = self.command(cm_command::JOIN_MCAST, join.as_bytes())?;
        self.settle();
        Ok(number(&reply))
    }

    fn join(&mut self, id: u32, uid: u64) -> u32 {
        self.ask(id, uid, address(GROUP.into())).unwrap()
    }

    fn about(&mut self, command: u32, number: u32) -> Result<Reply, Errno> {
        let asked = IdCommand {
            id: number.into(),
            ..IdCommand::default()
        };
        let reply = self.command(command, asked.as_bytes());
        self.settle();
        reply
    }

    /// Serves the port until nothing happens.
    fn settle(&mut self) {
        loop {
            let port = &mut self.port;
            while self.adapter.with(|hca| port.poll(Instant::ZERO, hca)) {}
            let Some(event) = self.port.poll_event() else {
                return;
            };
            let (cm, mut host) = self.host();
            cm.handle_port_event(&mut host, event);
        }
    }

    /// Returns the next event: the program's name, its number, and its status.
    fn event(&mut self) -> Option<(CmEventRecord, UdParam)> {
        let event = self.cm.poll_event()?;
        let record = CmEventRecord::read_from_bytes(&event.bytes).unwrap();
        let param = UdParam::read_from_bytes(&record.param).unwrap();
        Some((record, param))
    }

    fn expect(&mut self, uid: u64, event: u32, error: i32) {
        let (record, _) = self.event().expect("an event");
        let status = record.status.get().cast_signed();
        assert_eq!(
            (record.uid.get(), record.event.get(), status),
            (uid, event, -error)
        );
    }

    fn asked(&self, method: Method) -> Vec<McMemberRecord> {
        let books = self.sa.0.lock().unwrap();
        let of_method = books.asked.iter().filter(|(known, ..)| *known == method);
        of_method.map(|(_, record, _)| *record).collect()
    }
}

fn address(ip: IpAddr) -> ([u8; ADDRESS_SIZE], u16) {
    SocketAddress::Ip(Address { ip, port: 0 }).write()
}

fn gid_address(gid: Gid) -> ([u8; ADDRESS_SIZE], u16) {
    let address = IbAddress {
        gid,
        ..IbAddress::default()
    };
    SocketAddress::Ib(address).write()
}

fn number(reply: &Reply) -> u32 {
    IdAnswer::read_from_bytes(&reply.answer)
        .unwrap()
        .value
        .get()
}

#[test]
fn a_join_asks_for_what_the_kernel_asks_for_and_tells_the_groups_name() {
    let mut opened = Opened::new();
    let id = opened.bound(10, PS_UDP);
    let group = opened.join(id, 20);
    let (record, param) = opened.event().unwrap();
    assert_eq!((record.uid.get(), record.id.get()), (20, group));
    assert_eq!(record.event.get(), cm_event::MULTICAST_JOIN);
    let mgid = mgid(
        &SocketAddress::read(&address(GROUP.into()).0).unwrap(),
        PS_UDP,
        PKey::DEFAULT_FULL,
    );
    assert_eq!(param.path.dgid, mgid.0);
    assert_eq!(
        (param.path.dlid.get(), param.path.sl),
        (0xc001, LEVEL.get())
    );
    assert_eq!((param.path.is_global, param.path.port_num), (1, 1));
    assert_eq!(
        (param.qp_num.get(), param.qkey.get()),
        (0x00ff_ffff, UDP_QKEY)
    );
    let books = opened.sa.0.lock().unwrap();
    let [(Method::SET, asked, mask)] = books.asked[..] else {
        panic!("{:?}", books.asked);
    };
    let every = McMemberRecord::JOIN.union(McMemberRecord::CREATE);
    assert_eq!(mask, every);
    assert_eq!(asked.qkey, QKey::new(UDP_QKEY));
    assert_eq!((asked.pkey, asked.sl()), (PKey::DEFAULT_FULL, LEVEL));
    assert_eq!(asked.join_state(), JoinState::FULL_MEMBER);
}

#[test]
fn the_older_form_joins_ip_groups_alone() {
    let mut opened = Opened::new();
    let id = opened.bound(10, PS_UDP);
    let mut join = JoinIpMcast {
        uid: 20.into(),
        id: id.into(),
        ..JoinIpMcast::default()
    };
    let (bytes, _) = address(GROUP.into());
    join.addr.copy_from_slice(&bytes[..IP_ADDRESS_SIZE]);
    let number = cm_command::JOIN_IP_MCAST;
    opened.command(number, join.as_bytes()).unwrap();
    opened.settle();
    opened.expect(20, cm_event::MULTICAST_JOIN, 0);
    join.addr
        .copy_from_slice(&gid_address(Gid([0xff; 16])).0[..IP_ADDRESS_SIZE]);
    let refused = opened.command(number, join.as_bytes());
    assert_eq!(refused, Err(Errno::EINVAL));
}

#[test]
fn the_last_id_of_a_group_ends_the_membership() {
    let mut opened = Opened::new();
    let ids = [opened.bound(10, PS_UDP), opened.bound(11, PS_UDP)];
    let groups = [opened.join(ids[0], 20), opened.join(ids[1], 21)];
    opened.expect(20, cm_event::MULTICAST_JOIN, 0);
    opened.expect(21, cm_event::MULTICAST_JOIN, 0);
    assert_eq!(
        opened.asked(Method::SET).len(),
        1,
        "a port is a member once"
    );
    let reply = opened.about(cm_command::LEAVE_MCAST, groups[0]).unwrap();
    assert_eq!((number(&reply), reply.retired[0].element), (1, 20));
    assert!(opened.asked(Method::DELETE).is_empty());
    opened.about(cm_command::LEAVE_MCAST, groups[1]).unwrap();
    let left = opened.asked(Method::DELETE);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].mgid, opened.asked(Method::SET)[0].mgid);
    let gone = opened.about(cm_command::LEAVE_MCAST, groups[1]);
    assert_eq!(gone, Err(Errno::ENOENT));
}

#[test]
fn a_refusal_of_the_sa_is_an_event_of_the_group() {
    let mut opened = Opened::new();
    opened.sa.0.lock().unwrap().refuses = true;
    let id = opened.bound(10, PS_UDP);
    let group = opened.join(id, 20);
    opened.expect(20, cm_event::MULTICAST_ERROR, 22);
    assert!(opened.cm.groups.memberships.is_empty());
    let reply = opened.about(cm_command::LEAVE_MCAST, group).unwrap();
    assert_eq!(number(&reply), 1);
    assert!(
        opened.asked(Method::DELETE).is_empty(),
        "nothing was granted"
    );
}

#[test]
fn an_id_that_is_destroyed_takes_its_groups_and_their_unread_events_along() {
    let mut opened = Opened::new();
    let id = opened.bound(10, PS_UDP);
    opened.join(id, 20);
    let other = gid_address(Gid([0xff; 16]));
    opened.ask(id, 21, other).unwrap();
    let reply = opened.about(cm_command::DESTROY_ID, id).unwrap();
    let elements: Vec<u64> = reply.retired.iter().map(|known| known.element).collect();
    assert_eq!(elements, [10, 20, 21]);
    assert!(reply.retired.iter().all(|known| known.offset == 0));
    assert_eq!(number(&reply), 2);
    assert_eq!(opened.asked(Method::DELETE).len(), 2);
    assert!(opened.cm.groups.all.is_empty() && opened.cm.by_query.is_empty());
}

#[test]
fn a_closed_file_leaves_its_groups() {
    let mut opened = Opened::new();
    let id = opened.bound(10, PS_UDP);
    opened.join(id, 20);
    let channel = opened.channel;
    let (cm, mut host) = opened.host();
    cm.close(&mut host, channel);
    opened.settle();
    assert_eq!(opened.asked(Method::DELETE).len(), 1);
    assert!(opened.cm.groups.all.is_empty() && opened.cm.groups.memberships.is_empty());
    let Opened {
        mut adapter, port, ..
    } = opened;
    adapter.with(|hca| port.close(hca));
    assert!(adapter.device.function(FunctionId::PF).is_some());
}

#[test]
fn a_group_of_another_file_cannot_be_left() {
    let mut opened = Opened::new();
    let id = opened.bound(10, PS_UDP);
    let group = opened.join(id, 20);
    opened.channel = opened.cm.open().unwrap();
    let foreign = opened.about(cm_command::LEAVE_MCAST, group);
    assert_eq!(foreign, Err(Errno::EINVAL));
    assert_eq!(opened.cm.groups.all.len(), 1);
}

#[test]
fn the_sa_chooses_the_mgid_for_an_address_of_0() {
    let mut opened = Opened::new();
    let id = opened.bound(10, PS_UDP);
    let nothing = address(Ipv4Addr::UNSPECIFIED.into());
    let group = opened.ask(id, 20, nothing).unwrap();
    let (record, param) = opened.event().unwrap();
    assert_eq!(record.event.get(), cm_event::MULTICAST_JOIN);
    assert_eq!(param.path.dgid, [0xff; 16]);
    opened.about(cm_command::LEAVE_MCAST, group).unwrap();
    let left = opened.asked(Method::DELETE);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].mgid, Gid([0xff; 16]));
    // The answer finds the id gone: what the SA has made is left all the same.
    let payload = JoinMcast {
        id: id.into(),
        addr_size: nothing.1.into(),
        addr: nothing.0,
        ..JoinMcast::default()
    };
    opened
        .command(cm_command::JOIN_MCAST, payload.as_bytes())
        .unwrap();
    opened.about(cm_command::DESTROY_ID, id).unwrap();
    assert_eq!(opened.asked(Method::DELETE).len(), 2);
}

#[test]
fn the_port_space_of_ipoib_takes_the_broadcast_groups_parameters() {
    let mut opened = Opened::new();
    let id = opened.bound(10, PS_IPOIB);
    opened.join(id, 20);
    let (record, param) = opened.event().unwrap();
    assert_eq!(record.event.get(), cm_event::MULTICAST_JOIN);
    assert_eq!(param.qkey.get(), 0x0b1b);
    let (_, _, mask) = opened.sa.0.lock().unwrap().asked[0];
    assert!(mask.contains(IPOIB));
    let attributes = opened.about(cm_command::INIT_QP_ATTR, id);
    assert_eq!(attributes, Err(Errno::EINVAL), "of state 0 there are none");

    let mut opened = Opened::new();
    opened.sa.0.lock().unwrap().has_broadcast = false;
    let id = opened.bound(10, PS_IPOIB);
    let attributes = opened.about(cm_command::INIT_QP_ATTR, id);
    assert_eq!(attributes, Err(Errno::EADDRNOTAVAIL));
    opened.join(id, 20);
    opened.expect(20, cm_event::MULTICAST_ERROR, 99);
    let id = opened.bound(11, PS_UDP);
    opened.join(id, 21);
    opened.expect(21, cm_event::MULTICAST_JOIN, 0);
}

#[test]
fn a_membership_with_another_mlid_is_an_error_of_the_group() {
    let mut opened = Opened::new();
    let id = opened.bound(10, PS_UDP);
    opened.join(id, 20);
    opened.expect(20, cm_event::MULTICAST_JOIN, 0);
    let granted = *opened.cm.groups.memberships.keys().next().unwrap();
    for (mlid, told) in [(0xc001, false), (0xc002, true)] {
        let mut record = opened.asked(Method::SET)[0];
        record.mlid = Lid::new(mlid);
        let mad = SaMad::new(Method::GET_RESP, ComponentMask::NONE, &record);
        let message = ib_endpoint::Message::single(Mad::from_layout(&mad));
        let answer = SaAnswer::from_response(message).unwrap();
        let (cm, mut host) = opened.host();
        cm.membership_granted(&mut host, granted, &answer);
        assert_eq!(opened.cm.has_events(), told);
    }
    opened.expect(20, cm_event::MULTICAST_ERROR, 102);
}

#[test]
fn joins_that_the_kernel_refuses_are_refused() {
    let mut opened = Opened::new();
    let group = address(GROUP.into());
    let id = opened.bound(10, PS_TCP);
    assert_eq!(
        opened.ask(id, 20, group),
        Err(Errno::EINVAL),
        "of datagrams"
    );
    let id = opened.bound(11, PS_UDP);
    assert_eq!(opened.ask(99, 20, group), Err(Errno::ENOENT));
    assert_eq!(opened.ask(id, 20, (group.0, 28)), Err(Errno::EINVAL));
    assert_eq!(
        opened.ask(id, 20, ([0; ADDRESS_SIZE], 16)),
        Err(Errno::EINVAL)
    );
    let join = JoinMcast {
        id: id.into(),
        addr_size: group.1.into(),
        join_flags: 2.into(),
        addr: group.0,
        ..JoinMcast::default()
    };
    let unknown = opened.command(cm_command::JOIN_MCAST, join.as_bytes());
    assert_eq!(unknown, Err(Errno::EINVAL));
    let whole = join.as_bytes();
    let cut = opened.command(cm_command::JOIN_MCAST, &whole[..whole.len() - 1]);
    assert_eq!(cut, Err(Errno::EINVAL));
    assert!(opened.cm.groups.all.is_empty());
    for uid in 0..256 {
        opened.join(id, uid);
    }
    assert_eq!(opened.ask(id, 256, group), Err(Errno::ENOMEM));
}

#[test]
fn the_address_of_a_group_is_resolved_without_a_peer() {
    let mut opened = Opened::new();
    let id = opened.bound(10, PS_UDP);
    let resolve = ResolveAddr {
        id: id.into(),
        dst_size: 16.into(),
        dst_addr: address(GROUP.into()).0,
        ..ResolveAddr::default()
    };
    let number = cm_command::RESOLVE_ADDR;
    opened.command(number, resolve.as_bytes()).unwrap();
    assert!(!opened.cm.has_events(), "the broadcast group is asked for");
    opened.settle();
    opened.expect(10, cm_event::ADDR_RESOLVED, 0);
    opened.join(id, 20);
    opened.expect(20, cm_event::MULTICAST_JOIN, 0);
}
