//! A path that the SA gave, as what addresses packets and CM messages along it.

use hca_api::{AddressVector, GlobalRoute, UdAddress, UdDestination};
use ib_wire::cm::{CmPath, CmReq, CmSidrReq};
use ib_wire::sa::{McMemberRecord, PathRecord};
use ib_wire::{Gid, GidIndex, PKey, PKeyIndex, PortNum, QKey, Qpn, ServiceId};

use crate::{MadAddress, PortView};

/// How long a CM waits for its peer's: 4.096 µs × 2^20 = 4.3 s, as the RDMA CM of Linux has it
/// (`CMA_CM_RESPONSE_TIMEOUT`).
const RESPONSE_TIMEOUT: u8 = 20;

/// How often a CM message without an answer is sent again, likewise (`CMA_MAX_CM_RETRIES`).
const MAX_CM_RETRIES: u8 = 15;

/// The largest code of a 3-bit retry count; of RNR retries it means "for ever".
const MOST_RETRIES: u8 = 7;

/// The largest 5-bit timeout code.
const LONGEST_TIMEOUT: u8 = 31;

/// Why a path record is no path from a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// The path starts at another port.
    #[error("the path starts at another port")]
    ForeignSource,
    /// The port is not in the path's partition.
    #[error("the port is not in partition {0}")]
    NoPKey(PKey),
}

/// A path from a port of one's own to another port, as one PathRecord has it (IBA 15.2.5.16).
///
/// Within a subnet a packet needs no GRH, and has none unless the record has a hop limit. Ports that share one LID are
/// told apart by GID only where nothing else tells them apart, as with requests to QP1: see
/// [`PortPath::with_grh`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortPath {
    port: PortNum,
    record: PathRecord,
    sgid: Gid,
    sgid_index: GidIndex,
    pkey_index: PKeyIndex,
    path_bits: u8,
    with_grh: bool,
}

impl PortPath {
    /// Looks a path up in the tables of the port where it starts.
    ///
    /// # Errors
    /// See [`PathError`].
    pub fn new(port: PortNum, view: &PortView, record: &PathRecord) -> Result<Self, PathError> {
        let mask = view.lmc.mask();
        if record.slid.get() & !mask != view.lid.get() & !mask {
            return Err(PathError::ForeignSource);
        }
        let guid = record.sgid.interface_id();
        let sgid_index = if record.sgid.is_none() {
            GidIndex(0)
        } else {
            let index = view.guids.iter().position(|own| *own == guid);
            let index = index.and_then(|index| u16::try_from(index).ok());
            GidIndex(index.ok_or(PathError::ForeignSource)?)
        };
        let [_, path_bits] = (record.slid.get() & mask).to_be_bytes();
        Ok(Self {
            port,
            record: *record,
            sgid: view.gid(sgid_index).unwrap_or(record.sgid),
            sgid_index,
            pkey_index: view
                .partition_index(record.pkey)
                .ok_or(PathError::NoPKey(record.pkey))?,
            path_bits,
            // The SA says by a hop limit that the path wants a GRH, as Linux takes it (`ib_init_ah_attr_from_path`).
            with_grh: record.hop_limit() > 0,
        })
    }

    /// The same path, with a GRH in every packet.
    #[must_use]
    pub const fn with_grh(mut self) -> Self {
        self.with_grh = true;
        self
    }

    /// The port where it starts.
    #[must_use]
    pub const fn port(&self) -> PortNum {
        self.port
    }

    /// The SA's record of it.
    #[must_use]
    pub const fn record(&self) -> &PathRecord {
        &self.record
    }

    /// Where the path's partition stands in the P_Key table of the port where it starts.
    #[must_use]
    pub const fn pkey_index(&self) -> PKeyIndex {
        self.pkey_index
    }

    /// The address vector of datagrams, and of connected QPs.
    #[must_use]
    pub fn address_vector(&self) -> AddressVector {
        AddressVector {
            port: self.port,
            dlid: self.record.dlid,
            sl: self.record.sl(),
            path_bits: self.path_bits,
            static_rate: Some(self.record.rate_value()),
            grh: self.route(),
        }
    }

    /// A datagram QP at the end of the path.
    #[must_use]
    pub fn destination(&self, qpn: Qpn, qkey: QKey) -> UdDestination {
        UdDestination {
            address: UdAddress::Vector(self.address_vector()),
            qpn,
            qkey,
            pkey_index: None,
        }
    }

    /// The QP1 at the end of the path.
    #[must_use]
    pub fn gsi(&self) -> MadAddress {
        MadAddress {
            sl: self.record.sl(),
            pkey_index: self.pkey_index,
            path_bits: self.path_bits,
            grh: self.route(),
            ..MadAddress::gsi(self.record.dlid)
        }
    }

    /// The path as a REQ or a LAP names it (IBA 12.6.5).
    #[must_use]
    pub fn cm_path(&self) -> CmPath {
        let record = &self.record;
        let mut path = CmPath {
            local_lid: record.slid,
            remote_lid: record.dlid,
            local_gid: self.sgid,
            remote_gid: record.dgid,
            traffic_class: record.traffic_class,
            hop_limit: record.hop_limit(),
            ..CmPath::default()
        };
        path.set_flow_label(record.flow_label());
        path.set_rate(record.rate_value());
        path.set_sl(record.sl());
        path.set_subnet_local(record.hop_limit() <= 1);
        // Twice the packet life time: one more in the exponent (IBA 12.7.34).
        let there_and_back = record.packet_life_time_value() + 1;
        path.set_local_ack_timeout(there_and_back.min(LONGEST_TIMEOUT));
        path
    }

    /// A REQ for a connection along the path: its partition, MTU and primary path, with the waits and
    /// retries of Linux's RDMA CM. What is left to the caller is what only it knows: PSN, depths,
    /// alternate path, private data.
    #[must_use]
    pub fn request(&self, service_id: ServiceId, local_qpn: Qpn) -> CmReq {
        let mut req = CmReq {
            service_id,
            local_qpn,
            pkey: self.record.pkey,
            primary: self.cm_path(),
            ..CmReq::default()
        };
        req.set_remote_cm_response_timeout(RESPONSE_TIMEOUT);
        req.set_local_cm_response_timeout(RESPONSE_TIMEOUT);
        req.set_max_cm_retries(MAX_CM_RETRIES);
        req.set_retry_count(MOST_RETRIES);
        req.set_rnr_retry_count(MOST_RETRIES);
        req.set_mtu(self.record.mtu_value());
        req
    }

    /// A SIDR_REQ for a service at the end of the path.
    #[must_use]
    pub fn sidr_request(&self, service_id: ServiceId) -> CmSidrReq {
        CmSidrReq {
            service_id,
            pkey: self.record.pkey,
            ..CmSidrReq::default()
        }
    }

    fn route(&self) -> Option<GlobalRoute> {
        self.with_grh.then(|| GlobalRoute {
            remote_gid: self.record.dgid,
            sgid_index: self.sgid_index,
            flow_label: self.record.flow_label(),
            hop_limit: self.record.hop_limit(),
            traffic_class: self.record.traffic_class,
        })
    }
}

/// Where datagrams to a multicast group go, by the SA's record of a membership of the port.
#[must_use]
pub fn group_destination(port: PortNum, record: &McMemberRecord) -> UdDestination {
    let route = GlobalRoute {
        remote_gid: record.mgid,
        sgid_index: GidIndex(0),
        flow_label: record.flow_label(),
        hop_limit: record.hop_limit(),
        traffic_class: record.traffic_class,
    };
    let vector = AddressVector {
        port,
        dlid: record.mlid,
        sl: record.sl(),
        path_bits: 0,
        static_rate: Some(record.rate_value()),
        grh: Some(route),
    };
    UdDestination {
        address: UdAddress::Vector(vector),
        qpn: Qpn::MULTICAST,
        qkey: record.qkey,
        pkey_index: None,
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec;

    use ib_wire::smp::{CapabilityMask, PortState};
    use ib_wire::{Guid, Lid, Lmc, Mtu, Sl, SubnetPrefix};

    use super::*;

    fn gid(guid: u64) -> Gid {
        Gid::from_parts(SubnetPrefix::DEFAULT, Guid::new(guid))
    }

    fn view() -> PortView {
        PortView {
            state: PortState::ACTIVE,
            lid: Lid::new(4),
            lmc: Lmc::from_low_bits(1),
            sm_lid: Lid::new(1),
            sm_sl: Sl::default(),
            prefix: SubnetPrefix::DEFAULT,
            guids: vec![Guid::new(7), Guid::new(8)],
            pkeys: vec![PKey::new(0x8001), PKey::DEFAULT_LIMITED],
            capabilities: CapabilityMask::new(0),
            mtu: Mtu::MTU_2048,
            subnet_timeout: 18,
        }
    }

    fn record() -> PathRecord {
        let mut record = PathRecord {
            sgid: gid(8),
            dgid: gid(9),
            slid: Lid::new(5),
            dlid: Lid::new(6),
            pkey: PKey::DEFAULT_FULL,
            ..PathRecord::default()
        };
        record.set_sl(Sl::from_low_bits(3));
        record.set_packet_life_time_value(14);
        record
    }

    #[test]
    fn a_record_is_looked_up_in_the_tables_of_its_port() {
        let path = PortPath::new(PortNum(1), &view(), &record()).unwrap();
        assert_eq!(path.pkey_index(), PKeyIndex(1), "the key of the partition");
        let vector = path.address_vector();
        assert_eq!((vector.dlid, vector.path_bits), (Lid::new(6), 1));
        assert_eq!(vector.grh, None);
        let to = path.with_grh().gsi();
        assert_eq!((to.qpn, to.sl), (Qpn::GSI, Sl::from_low_bits(3)));
        let route = to.grh.unwrap();
        assert_eq!((route.remote_gid, route.sgid_index), (gid(9), GidIndex(1)));
    }

    #[test]
    fn a_record_of_another_port_or_partition_is_refused() {
        let refused = |edit: &dyn Fn(&mut PathRecord)| {
            let mut record = record();
            edit(&mut record);
            PortPath::new(PortNum(1), &view(), &record).err()
        };
        let foreign = Some(PathError::ForeignSource);
        assert_eq!(refused(&|record| record.slid = Lid::new(6)), foreign);
        assert_eq!(refused(&|record| record.sgid = gid(1)), foreign);
        let other = PKey::new(0x8005);
        let no_key = Some(PathError::NoPKey(other));
        assert_eq!(refused(&|record| record.pkey = other), no_key);
    }

    #[test]
    fn a_request_names_the_path_and_waits_for_the_packet_life_time_both_ways() {
        let path = PortPath::new(PortNum(1), &view(), &record()).unwrap();
        let service = ServiceId::new(3);
        let req = path.request(service, Qpn::from_low_bits(77));
        assert_eq!((req.service_id, req.pkey), (service, PKey::DEFAULT_FULL));
        assert_eq!(
            (req.primary.local_gid, req.primary.remote_gid),
            (gid(8), gid(9))
        );
        assert!(req.primary.subnet_local());
        assert_eq!(req.primary.local_ack_timeout(), 15);
        assert_eq!(req.max_cm_retries(), 15);
        let mut longest = record();
        longest.set_packet_life_time_value(63);
        let path = PortPath::new(PortNum(1), &view(), &longest).unwrap();
        assert_eq!(path.cm_path().local_ack_timeout(), 31);
    }

    #[test]
    fn a_path_with_a_hop_limit_has_a_grh_by_itself() {
        for (hop_limit, has_grh, is_local) in [(0, false, true), (1, true, true), (64, true, false)]
        {
            let mut record = record();
            record.set_hop_limit(hop_limit);
            let path = PortPath::new(PortNum(1), &view(), &record).unwrap();
            let grh = path.address_vector().grh;
            assert_eq!(grh.map(|grh| grh.hop_limit), has_grh.then_some(hop_limit));
            assert_eq!(path.gsi().grh, grh);
            // `cm_format_req`: up to 1 it stays in the subnet.
            assert_eq!(path.cm_path().subnet_local(), is_local);
        }
    }

    #[test]
    fn datagrams_to_a_group_carry_its_gid_and_its_key() {
        let mgid = Gid([0xff; 16]);
        let record = McMemberRecord {
            mgid,
            mlid: Lid::new(0xc001),
            qkey: QKey::new(5),
            ..McMemberRecord::default()
        };
        let to = group_destination(PortNum(2), &record);
        assert_eq!((to.qpn, to.qkey), (Qpn::MULTICAST, QKey::new(5)));
        let UdAddress::Vector(vector) = to.address else {
            panic!("a vector");
        };
        assert_eq!((vector.port, vector.dlid), (PortNum(2), Lid::new(0xc001)));
        assert_eq!(vector.grh.unwrap().remote_gid, mgid);
    }
}
