//! ServiceRecord: services that register with the SA.

use zerocopy::network_endian::{U16, U32, U64};

use super::{ComponentMask, SaRecord, components};
use crate::mad::AttributeId;
use crate::{Gid, PKey, ServiceId};

layout! {
    /// ServiceRecord (IBA 15.2.5.14). 176 bytes.
    ServiceRecord, 176 {
        /// The service.
        pub service_id: ServiceId,
        /// Port that offers it.
        pub service_gid: Gid,
        /// Partition in which it is offered.
        pub service_pkey: PKey,
        /// Reserved.
        pub reserved: [u8; 2],
        /// Lease in seconds; all ones for ever.
        pub service_lease: U32,
        /// Key that guards the record.
        pub service_key: [u8; 16],
        /// Name, UTF-8, zero-terminated.
        pub service_name: [u8; 64],
        /// For the service.
        pub service_data8: [u8; 16],
        /// For the service.
        pub service_data16: [U16; 8],
        /// For the service.
        pub service_data32: [U32; 4],
        /// For the service.
        pub service_data64: [U64; 2],
    }
}

impl ServiceRecord {
    /// The lease that never ends.
    pub const INDEFINITE_LEASE: u32 = u32::MAX;

    /// Component mask of all service data.
    pub const SERVICE_DATA: ComponentMask = ComponentMask::new(((1 << 37) - 1) & !((1 << 7) - 1));

    /// The name without the zeros behind it.
    #[must_use]
    pub fn name_bytes(&self) -> &[u8] {
        let end = self.service_name.iter().position(|&byte| byte == 0);
        &self.service_name[..end.unwrap_or(self.service_name.len())]
    }
}

impl SaRecord for ServiceRecord {
    const ATTRIBUTE_ID: AttributeId = AttributeId::SERVICE_RECORD;
}

components! {
    ServiceRecord {
        SERVICE_ID = 0, "the service id";
        SERVICE_GID = 1, "the GID";
        SERVICE_PKEY = 2, "the P_Key";
        SERVICE_LEASE = 4, "the lease";
        SERVICE_KEY = 5, "the key";
        SERVICE_NAME = 6, "the name";
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn fields_stand_at_their_offsets() {
        for (offset, expected) in [
            (offset_of!(ServiceRecord, service_gid), 8),
            (offset_of!(ServiceRecord, service_pkey), 24),
            (offset_of!(ServiceRecord, service_lease), 28),
            (offset_of!(ServiceRecord, service_key), 32),
            (offset_of!(ServiceRecord, service_name), 48),
            (offset_of!(ServiceRecord, service_data8), 112),
            (offset_of!(ServiceRecord, service_data16), 128),
            (offset_of!(ServiceRecord, service_data32), 144),
            (offset_of!(ServiceRecord, service_data64), 160),
        ] {
            assert_eq!(offset, expected);
        }
    }

    #[test]
    fn service_data_takes_bits_7_to_36() {
        assert_eq!(ServiceRecord::SERVICE_DATA.get().trailing_zeros(), 7);
        assert_eq!(ServiceRecord::SERVICE_DATA.get().count_ones(), 30);
    }

    #[test]
    fn a_name_ends_at_its_first_zero_or_with_the_field() {
        let mut record = ServiceRecord::default();
        record.service_name[..4].copy_from_slice(b"ab\0c");
        assert_eq!(record.name_bytes(), b"ab");
        record.service_name = [b'x'; 64];
        assert_eq!(record.name_bytes().len(), 64);
    }
}
