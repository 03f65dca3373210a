//! A guest that sends whatever could hurt others.

use hca_api::GlobalRoute;
use ib_endpoint::{MadAddress, Transmit};
use ib_vtime::Instant;
use ib_wire::cm::{self, CmReq, CmRtu};
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};
use ib_wire::{CommId, Gid, GidIndex, Lid, PKey, PKeyIndex, QKey, Qpn, Sl, Tid};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use zerocopy::IntoBytes;

use crate::conversations::{Channel, NodeAddress};

/// A guest that floods.
pub(super) struct Attacker {
    node: usize,
    own: NodeAddress,
    others: Vec<NodeAddress>,
    count: u32,
}

impl Attacker {
    pub(super) fn new(node: usize, places: &[NodeAddress]) -> Self {
        Self {
            node,
            own: places[node],
            others: places.to_vec(),
            count: 0,
        }
    }

    /// Sends one MAD.
    pub(super) fn strike(
        &mut self,
        now: Instant,
        channel: &mut impl Channel,
        dice: &mut ChaCha8Rng,
    ) {
        self.count += 1;
        let mad = match dice.random_range(0..8) {
            0 => noise(dice),
            1 => header_noise(dice),
            2 | 3 => self.request_to_connect(dice),
            4 => forged_ids(dice),
            5 => self.join(dice),
            6 => self.query(AttributeId::PATH_RECORD, dice),
            _ => self.query(AttributeId::NODE_RECORD, dice),
        };
        let to = self.address(dice);
        channel.send(now, self.node, &Transmit { to, mad });
    }

    /// Mostly right, so that not everything ends at the first check.
    fn address(&self, dice: &mut ChaCha8Rng) -> MadAddress {
        let other = self.others[dice.random_range(0..self.others.len())];
        let route = GlobalRoute {
            remote_gid: other.gid,
            sgid_index: GidIndex(dice.random_range(0..4)),
            flow_label: 0,
            hop_limit: 1,
            traffic_class: 0,
        };
        let lid = if dice.random_bool(0.5) {
            Lid::new(1)
        } else {
            other.lid
        };
        let mut to = MadAddress {
            grh: dice.random_bool(0.5).then_some(route),
            ..MadAddress::gsi(lid)
        };
        match dice.random_range(0..20) {
            0 => to.lid = Lid::new(dice.random()),
            1 => to.qpn = Qpn::from_low_bits(dice.random()),
            2 => to.qkey = QKey::new(dice.random()),
            3 => to.pkey_index = PKeyIndex(dice.random()),
            4 => to.sl = Sl::from_low_bits(dice.random()),
            _ => {}
        }
        to
    }

    fn request_to_connect(&self, dice: &mut ChaCha8Rng) -> Mad {
        let other = self.others[dice.random_range(0..self.others.len())];
        let mut mad = Mad::new(cm::header(AttributeId::CM_REQ));
        let req: &mut CmReq = mad.view_mut();
        req.local_comm_id = CommId::new(self.count);
        req.local_ca_guid = self.own.ca_guid;
        req.pkey = PKey::DEFAULT_FULL;
        req.primary.local_gid = self.own.gid;
        req.primary.remote_gid = other.gid;
        req.primary.local_lid = self.own.lid;
        req.primary.remote_lid = other.lid;
        if dice.random_bool(0.2) {
            req.primary.local_gid = other.gid;
        }
        mad
    }

    fn join(&self, dice: &mut ChaCha8Rng) -> Mad {
        let mut mgid = [0; 16];
        (mgid[0], mgid[1], mgid[14], mgid[15]) = (0xff, 0x12, dice.random(), dice.random());
        let mut record = McMemberRecord {
            mgid: Gid(mgid),
            port_gid: self.own.gid,
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
        let mut sa = SaMad::new(Method::SET, mask, &record);
        sa.header.tid = Tid::new(u64::from(self.count));
        Mad::from_layout(&sa)
    }

    fn query(&self, attribute: AttributeId, dice: &mut ChaCha8Rng) -> Mad {
        let method = if dice.random_bool(0.5) {
            Method::GET
        } else {
            Method::GET_TABLE
        };
        let mut mad = Mad::new(MadHeader::new(MgmtClass::SUBN_ADM, method, attribute));
        mad.header.tid = Tid::new(u64::from(self.count));
        mad
    }
}

fn noise(dice: &mut ChaCha8Rng) -> Mad {
    let mut mad = Mad::default();
    dice.fill(mad.as_mut_bytes());
    mad
}

/// A random header of a class that exists.
fn header_noise(dice: &mut ChaCha8Rng) -> Mad {
    let mut mad = noise(dice);
    let class = [0x01, 0x81, 0x03, 0x04, 0x06, 0x07, 0x30][dice.random_range(0..7)];
    let header = MadHeader::new(
        MgmtClass::new(class),
        Method::new(dice.random()),
        AttributeId::new(dice.random_range(0..0x40)),
    );
    mad.header = MadHeader {
        tid: mad.header.tid,
        ..header
    };
    mad
}

/// A CM message of somebody else's connection, if the ids were guessed.
fn forged_ids(dice: &mut ChaCha8Rng) -> Mad {
    let attribute = AttributeId::new(dice.random_range(0x11..0x19));
    let mut mad = Mad::new(cm::header(attribute));
    let ids: &mut CmRtu = mad.view_mut();
    ids.local_comm_id = CommId::new(dice.random_range(0..1000));
    ids.remote_comm_id = CommId::new(dice.random());
    mad
}
