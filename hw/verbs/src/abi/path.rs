//! Paths of the layouts as address vectors of the provider.

use hca_api::{AddressVector, GlobalRoute};
use ib_wire::{Gid, GidIndex, Lid, PortNum, Rate, Sl};

use super::memory::CreateAh;
use super::queue_pair::QpDestination;

impl QpDestination {
    /// Returns the address vector that a path stands for.
    #[must_use]
    pub fn vector(&self) -> AddressVector {
        AddressVector {
            port: PortNum(self.port_num),
            dlid: Lid::new(self.dlid.get()),
            sl: Sl::from_low_bits(self.sl),
            path_bits: self.src_path_bits,
            static_rate: (self.static_rate != 0).then_some(Rate::new(self.static_rate)),
            grh: (self.is_global != 0).then(|| GlobalRoute {
                remote_gid: Gid(self.dgid),
                sgid_index: GidIndex(self.sgid_index.into()),
                flow_label: self.flow_label.get() & 0x000f_ffff,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            }),
        }
    }

    /// Returns the path of an address vector. An index of a local GID that the layout has no room for is 0.
    #[must_use]
    pub fn of(vector: &AddressVector) -> Self {
        let mut path = Self {
            dlid: vector.dlid.get().into(),
            sl: vector.sl.get(),
            src_path_bits: vector.path_bits,
            static_rate: vector.static_rate.map_or(0, |rate| rate.get()),
            port_num: vector.port.0,
            ..Self::default()
        };
        if let Some(route) = &vector.grh {
            path.is_global = 1;
            path.dgid = route.remote_gid.0;
            path.flow_label = route.flow_label.into();
            path.sgid_index = u8::try_from(route.sgid_index.0).unwrap_or(0);
            path.hop_limit = route.hop_limit;
            path.traffic_class = route.traffic_class;
        }
        path
    }
}

impl CreateAh {
    /// Returns the path of the address.
    #[must_use]
    pub fn path(&self) -> QpDestination {
        QpDestination {
            dgid: self.dgid,
            flow_label: self.flow_label,
            dlid: self.dlid,
            reserved: 0.into(),
            sgid_index: self.sgid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            is_global: self.is_global,
            port_num: self.port_num,
        }
    }
}
