//! SMInfo (IBA 14.2.5.13): how subnet managers find and compare each other.

use zerocopy::network_endian::U32;

use crate::{Guid, SmKey};

open_enum! {
    /// The state of a subnet manager (IBA 14.4.1).
    SmState(u8) {
        /// Not taking part.
        NOT_ACTIVE = 0,
        /// Discovering the subnet.
        DISCOVERING = 1,
        /// Waiting behind a master.
        STANDBY = 2,
        /// Managing the subnet.
        MASTER = 3,
    }
}

impl_bits! { SmState, u8, SmState::new, SmState::get; }

layout! {
    /// A subnet manager's identity, priority and state (IBA 14.2.5.13).
    SmInfo, 64 {
        /// GUID of the port that the manager sits on.
        pub guid: Guid,
        /// The manager's key; 0 unless the asker is trusted.
        pub sm_key: SmKey,
        /// Counts up while the manager is alive.
        pub act_count: U32,
        /// Priority (4) and state (4).
        pub priority_state: u8,
        /// Reserved.
        pub reserved: [u8; 43],
    }
}

impl SmInfo {
    bit_fields! {
        /// The manager's priority; the highest becomes master.
        priority, set_priority: u8 = priority_state >> 4, 4;
        /// The manager's state.
        state, set_state: SmState = priority_state >> 0, 4;
    }
}
