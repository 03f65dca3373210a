//! RDMA netlink, as far as libibverbs, librdmacm and iproute2 ask it.
//!
//! A message is a header of 16 bytes and attributes. The type is the client 5 and a command.

use linux_abi::sysfs::{FIRST_UVERBS, MAJOR, RDMA_CM, RDMA_CM_ABI_VERSION};
use zerocopy::{FromBytes, IntoBytes};

mod message;
mod resources;

use message::{AttributeHeader, Header, Message, attribute};
use resources::{Kind, counters, objects, summary};

use crate::abi::{RXE_ABI_VERSION, RXE_DRIVER_ID};
use crate::sysfs::file_name;
use crate::view::{DeviceView, PortView, physical_state, port_state};

/// Client `RDMA_NL_NLDEV` in a type.
const NLDEV: u16 = 5;
/// Another message of the same answer follows (`NLM_F_MULTI`).
const MULTI: u16 = 2;
/// A confirmation is asked for (`NLM_F_ACK`).
const ACK: u16 = 4;
/// All objects are asked for (`NLM_F_DUMP`).
const DUMP: u16 = 0x300;
/// An error number (`NLMSG_ERROR`).
const ERROR: u16 = 2;
/// The end of an answer of several messages (`NLMSG_DONE`).
const DONE: u16 = 3;
/// Error number of commands that are not known.
const EOPNOTSUPP: i32 = 95;
/// Error number of objects that do not exist.
const ENODEV: i32 = 19;

/// Commands (`enum rdma_nldev_command`).
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const RES_GET: u16 = 9;
    pub(super) const RES_QP_GET: u16 = 10;
    pub(super) const RES_CQ_GET: u16 = 12;
    pub(super) const RES_PD_GET: u16 = 14;
    pub(super) const GET_CHARDEV: u16 = 15;
    pub(super) const STAT_GET: u16 = 17;
}

/// Node type of a channel adapter.
const NODE_TYPE_CA: u8 = 1;

/// Returns the datagrams that answer a message.
#[must_use]
pub fn answer(device: Option<&DeviceView>, request: &[u8]) -> Vec<Vec<u8>> {
    let Ok((header, rest)) = Header::read_from_prefix(request) else {
        return Vec::new();
    };
    let mut datagrams = answers(device, &header, rest);
    let flags = header.flags.get();
    let is_error = |message: &Vec<u8>| message.get(4..6) == Some(&ERROR.to_ne_bytes()[..]);
    if flags & ACK != 0 && flags & DUMP != DUMP && !datagrams.iter().any(is_error) {
        datagrams.push(error(&header, 0));
    }
    datagrams
}

fn answers(device: Option<&DeviceView>, header: &Header, rest: &[u8]) -> Vec<Vec<u8>> {
    let kind = header.kind.get();
    if kind >> 10 != NLDEV {
        return vec![error(header, EOPNOTSUPP)];
    }
    let is_dump = header.flags.get() & DUMP == DUMP;
    let index = given(rest, attribute::DEV_INDEX).and_then(u32_of);
    let named = device.filter(|device| is_dump || index.is_none_or(|i| i == device.number));
    let messages: Vec<Message> = match kind & 0x3ff {
        command::GET => {
            let message = |device| of_device(message_of(header, is_dump), device);
            named.map(message).into_iter().collect()
        }
        command::PORT_GET => {
            let wanted = given(rest, attribute::PORT_INDEX).and_then(u32_of);
            let ports = named.into_iter().flat_map(|device| {
                let ports = device.ports.iter().map(move |port| (device, port));
                ports.filter(|(_, port)| {
                    is_dump || wanted.is_none_or(|wanted| wanted == u32::from(port.number.0))
                })
            });
            let message = |(device, port)| of_port(message_of(header, is_dump), device, port);
            ports.map(message).collect()
        }
        command::RES_GET => {
            let message = |device| summary(message_of(header, is_dump), device);
            named.map(message).into_iter().collect()
        }
        command @ (command::RES_QP_GET | command::RES_CQ_GET | command::RES_PD_GET) if is_dump => {
            let kind = match command {
                command::RES_QP_GET => Kind::QueuePairs,
                command::RES_CQ_GET => Kind::CompletionQueues,
                _ => Kind::Domains,
            };
            let messages = |device| objects(device, kind, || message_of(header, true));
            named.map(messages).unwrap_or_default()
        }
        command::STAT_GET => {
            let wanted = given(rest, attribute::PORT_INDEX).and_then(u32_of);
            let ports = named.into_iter().flat_map(|device| {
                let ports = device.ports.iter().map(move |port| (device, port));
                ports.filter(|(_, port)| {
                    wanted.is_none_or(|port_index| port_index == u32::from(port.number.0))
                })
            });
            let message = |(device, port)| counters(message_of(header, is_dump), device, port);
            ports.map(message).collect()
        }
        command::SYS_GET => {
            // Nothing of a program's memory is pinned, so a fork changes nothing.
            let message = message_of(header, false).with(attribute::SYS_COPY_ON_FORK, &[1]);
            return vec![message.finish()];
        }
        command::GET_CHARDEV => {
            let kind = given(rest, attribute::CHARDEV_TYPE);
            let is = |name: &[u8]| kind.is_some_and(|kind| kind.strip_suffix(&[0]) == Some(name));
            if is(b"rdma_cm") && device.is_some() {
                return vec![of_rdma_cm(message_of(header, false)).finish()];
            }
            let is_verbs = is(b"uverbs");
            let named = named.filter(|_| is_verbs);
            let message = |device| of_character_device(message_of(header, false), device);
            named.map(message).into_iter().collect()
        }
        _ => return vec![error(header, EOPNOTSUPP)],
    };
    let mut datagrams: Vec<Vec<u8>> = messages.into_iter().map(Message::finish).collect();
    if is_dump {
        let done = Message::new(header, DONE, MULTI);
        let mut done = done.0;
        done.extend_from_slice(&0_i32.to_ne_bytes());
        datagrams.push(Message(done).finish());
    } else if datagrams.is_empty() {
        datagrams.push(error(header, ENODEV));
    }
    datagrams
}

fn message_of(header: &Header, is_dump: bool) -> Message {
    Message::new(header, header.kind.get(), if is_dump { MULTI } else { 0 })
}

fn of_device(message: Message, device: &DeviceView) -> Message {
    let ports = u32::try_from(device.ports.len()).unwrap_or(u32::MAX);
    message
        .with_device(device)
        .with_u32(attribute::PORT_INDEX, ports)
        .with_u64(attribute::CAP_FLAGS, 0)
        .with_text(attribute::FW_VERSION, &device.firmware)
        .with_u64(attribute::NODE_GUID, device.node_guid.get())
        .with_u64(attribute::SYS_IMAGE_GUID, device.system_image_guid.get())
        .with(attribute::DEV_NODE_TYPE, &[NODE_TYPE_CA])
}

fn of_port(message: Message, device: &DeviceView, port: &PortView) -> Message {
    let is = &port.attributes;
    message
        .with_device(device)
        .with_u32(attribute::PORT_INDEX, port.number.0.into())
        .with_u64(attribute::CAP_FLAGS, is.capability_mask.into())
        .with_u64(attribute::SUBNET_PREFIX, is.subnet_prefix.get())
        .with_u32(attribute::LID, is.lid.get().into())
        .with_u32(attribute::SM_LID, is.sm_lid.get().into())
        .with(attribute::LMC, &[is.lmc.get()])
        .with(attribute::PORT_STATE, &[port_state(is.state)])
        .with(
            attribute::PORT_PHYS_STATE,
            &[physical_state(is.physical_state)],
        )
}

fn of_rdma_cm(message: Message) -> Message {
    message
        .with_text(attribute::CHARDEV_NAME, "rdma_cm")
        .with_u64(attribute::CHARDEV_ABI, RDMA_CM_ABI_VERSION.into())
        .with_u64(attribute::CHARDEV, encoded(RDMA_CM.0, RDMA_CM.1))
}

/// Returns a device number as `huge_encode_dev` does: the major number above the low byte of the minor one.
fn encoded(major: u32, minor: u32) -> u64 {
    let minor = u64::from(minor);
    minor & 0xff | u64::from(major) << 8 | (minor & !0xff) << 12
}

fn of_character_device(message: Message, device: &DeviceView) -> Message {
    let number = encoded(MAJOR, FIRST_UVERBS + device.number);
    message
        .with_text(attribute::CHARDEV_NAME, &file_name(device))
        .with_u64(attribute::CHARDEV_ABI, RXE_ABI_VERSION.into())
        .with_u64(attribute::CHARDEV, number)
        .with_u32(attribute::UVERBS_DRIVER_ID, RXE_DRIVER_ID)
}

fn error(request: &Header, errno: i32) -> Vec<u8> {
    let mut message = Message::new(request, ERROR, 0).0;
    message.extend_from_slice(&(-errno).to_ne_bytes());
    message.extend_from_slice(request.as_bytes());
    Message(message).finish()
}

/// Returns the value of an attribute, if it is given.
fn given(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let (header, _) = AttributeHeader::read_from_prefix(attributes).ok()?;
        let length = usize::from(header.length.get());
        let value = attributes.get(size_of::<AttributeHeader>()..length)?;
        if header.kind.get() & 0x3fff == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn u32_of(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.first_chunk().copied()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::ActivePort;

    fn device() -> DeviceView {
        ActivePort::new().with(|hca| DeviceView::of(hca, "vhca0".to_owned(), 3, "H-1".to_owned()))
    }

    fn request(command: u16, flags: u16, attributes: &[u8]) -> Vec<u8> {
        let header = Header {
            length: 0.into(),
            kind: (NLDEV << 10 | command).into(),
            flags: flags.into(),
            sequence: 77.into(),
            port: 9.into(),
        };
        [header.as_bytes(), attributes].concat()
    }

    fn value(message: &[u8], kind: u16) -> Option<&[u8]> {
        given(&message[size_of::<Header>()..], kind)
    }

    #[test]
    fn a_dump_of_devices_has_ours_and_an_end() {
        let device = device();
        let answers = answer(Some(&device), &request(command::GET, DUMP, &[]));
        assert_eq!(answers.len(), 2);
        assert_eq!(
            value(&answers[0], attribute::DEV_NAME),
            Some(&b"vhca0\0"[..])
        );
        let guid = device.node_guid.get().to_ne_bytes();
        assert_eq!(value(&answers[0], attribute::NODE_GUID), Some(&guid[..]));
        for message in &answers {
            let (header, _) = Header::read_from_prefix(message).unwrap();
            assert_eq!(header.sequence.get(), 77);
            assert_eq!(header.length.get() as usize, message.len());
        }
        assert_eq!(answer(None, &request(command::GET, DUMP, &[])).len(), 1);
    }

    #[test]
    fn the_character_device_is_told_by_kind_and_index() {
        let device = device();
        let attributes = Message(Vec::new())
            .with_u32(attribute::DEV_INDEX, 3)
            .with_text(attribute::CHARDEV_TYPE, "uverbs");
        let asked = request(command::GET_CHARDEV, 0, &attributes.0);
        let told = answer(Some(&device), &asked);
        assert_eq!(
            value(&told[0], attribute::CHARDEV_NAME),
            Some(&b"uverbs3\0"[..])
        );
        let number = u64::from(231_u32 << 8 | 195).to_ne_bytes();
        assert_eq!(value(&told[0], attribute::CHARDEV), Some(&number[..]));
        let other = Message(Vec::new()).with_text(attribute::CHARDEV_TYPE, "umad");
        let refused = answer(Some(&device), &request(command::GET_CHARDEV, 0, &other.0));
        assert_eq!(refused[0][4], 2, "an error");
    }

    #[test]
    fn a_confirmation_follows_where_it_is_asked_for() {
        let told = answer(None, &request(command::SYS_GET, ACK, &[]));
        assert_eq!(told.len(), 2);
        assert_eq!(told[1][4..6], ERROR.to_ne_bytes());
        assert_eq!(told[1][16..20], [0; 4]);
        assert_eq!(
            answer(None, &request(99, ACK, &[])).len(),
            1,
            "an error confirms"
        );
    }

    #[test]
    fn broken_messages_are_answered_or_ignored() {
        assert!(answer(None, &[0; 15]).is_empty());
        let unknown = answer(None, &request(99, 0, &[]));
        assert_eq!(unknown[0][16..20], (-EOPNOTSUPP).to_ne_bytes());
        // An attribute of no length.
        let asked = request(command::PORT_GET, 0, &[0; 8]);
        let device = device();
        let answers = answer(Some(&device), &asked);
        assert_eq!(answers.len(), device.ports.len());
    }
}
