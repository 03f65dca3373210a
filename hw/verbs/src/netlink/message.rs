//! Messages of netlink, in the making.

use linux_abi::abi_layout;
use zerocopy::IntoBytes;
use zerocopy::native_endian::{U16, U32};

use crate::view::DeviceView;

abi_layout! {
    /// Header of a message (`struct nlmsghdr`).
    pub(super) Header, 16 {
        pub(super) length: U32,
        pub(super) kind: U16,
        pub(super) flags: U16,
        pub(super) sequence: U32,
        pub(super) port: U32,
    }
}

abi_layout! {
    /// Header of an attribute (`struct nlattr`).
    pub(super) AttributeHeader, 4 {
        pub(super) length: U16,
        pub(super) kind: U16,
    }
}

/// Attributes (`enum rdma_nldev_attr`).
pub(super) mod attribute {
    pub(in crate::netlink) const DEV_INDEX: u16 = 1;
    pub(in crate::netlink) const DEV_NAME: u16 = 2;
    pub(in crate::netlink) const PORT_INDEX: u16 = 3;
    pub(in crate::netlink) const CAP_FLAGS: u16 = 4;
    pub(in crate::netlink) const FW_VERSION: u16 = 5;
    pub(in crate::netlink) const NODE_GUID: u16 = 6;
    pub(in crate::netlink) const SYS_IMAGE_GUID: u16 = 7;
    pub(in crate::netlink) const SUBNET_PREFIX: u16 = 8;
    pub(in crate::netlink) const LID: u16 = 9;
    pub(in crate::netlink) const SM_LID: u16 = 10;
    pub(in crate::netlink) const LMC: u16 = 11;
    pub(in crate::netlink) const PORT_STATE: u16 = 12;
    pub(in crate::netlink) const PORT_PHYS_STATE: u16 = 13;
    pub(in crate::netlink) const DEV_NODE_TYPE: u16 = 14;
    pub(in crate::netlink) const RES_SUMMARY: u16 = 15;
    pub(in crate::netlink) const RES_SUMMARY_ENTRY: u16 = 16;
    pub(in crate::netlink) const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub(in crate::netlink) const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub(in crate::netlink) const RES_QP: u16 = 19;
    pub(in crate::netlink) const RES_QP_ENTRY: u16 = 20;
    pub(in crate::netlink) const RES_LQPN: u16 = 21;
    pub(in crate::netlink) const RES_RQPN: u16 = 22;
    pub(in crate::netlink) const RES_RQ_PSN: u16 = 23;
    pub(in crate::netlink) const RES_SQ_PSN: u16 = 24;
    pub(in crate::netlink) const RES_PATH_MIG_STATE: u16 = 25;
    pub(in crate::netlink) const RES_TYPE: u16 = 26;
    pub(in crate::netlink) const RES_STATE: u16 = 27;
    pub(in crate::netlink) const RES_PID: u16 = 28;
    pub(in crate::netlink) const RES_CQ: u16 = 35;
    pub(in crate::netlink) const RES_CQ_ENTRY: u16 = 36;
    pub(in crate::netlink) const RES_CQE: u16 = 37;
    pub(in crate::netlink) const RES_USECNT: u16 = 38;
    pub(in crate::netlink) const RES_PD: u16 = 46;
    pub(in crate::netlink) const RES_PD_ENTRY: u16 = 47;
    pub(in crate::netlink) const RES_PDN: u16 = 60;
    pub(in crate::netlink) const RES_CQN: u16 = 61;
    pub(in crate::netlink) const CHARDEV_TYPE: u16 = 69;
    pub(in crate::netlink) const CHARDEV_NAME: u16 = 70;
    pub(in crate::netlink) const CHARDEV_ABI: u16 = 71;
    pub(in crate::netlink) const CHARDEV: u16 = 72;
    pub(in crate::netlink) const UVERBS_DRIVER_ID: u16 = 73;
    pub(in crate::netlink) const STAT_HWCOUNTERS: u16 = 80;
    pub(in crate::netlink) const STAT_HWCOUNTER_ENTRY: u16 = 81;
    pub(in crate::netlink) const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
    pub(in crate::netlink) const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;
    pub(in crate::netlink) const SYS_COPY_ON_FORK: u16 = 93;
}

/// A message in the making.
pub(super) struct Message(pub(super) Vec<u8>);

impl Message {
    pub(super) fn new(request: &Header, kind: u16, flags: u16) -> Self {
        let header = Header {
            length: 0.into(),
            kind: kind.into(),
            flags: flags.into(),
            sequence: request.sequence,
            port: request.port,
        };
        Self(header.as_bytes().to_vec())
    }

    pub(super) fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(size_of::<AttributeHeader>() + value.len());
        let header = AttributeHeader {
            length: length.unwrap_or(u16::MAX).into(),
            kind: kind.into(),
        };
        self.0.extend_from_slice(header.as_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Adds a table: an attribute of attributes.
    pub(super) fn with_table(self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let filled = fill(Self(Vec::new())).0;
        self.with(kind, &filled)
    }

    pub(super) fn with_text(self, kind: u16, text: &str) -> Self {
        self.with(kind, &[text.as_bytes(), &[0]].concat())
    }

    pub(super) fn with_u32(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    pub(super) fn with_u64(self, kind: u16, value: u64) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    pub(super) fn with_device(self, device: &DeviceView) -> Self {
        self.with_u32(attribute::DEV_INDEX, device.number)
            .with_text(attribute::DEV_NAME, &device.name)
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}
