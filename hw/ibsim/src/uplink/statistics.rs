//! What the uplink counts.

/// Why something did not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// The uplink is not attached to a simulator.
    NotAttached,
    /// A packet of the adapter has a wrong checksum, or is none.
    Damaged,
    /// A packet to a queue pair other than QP1, or none of the datagram service: the protocol only
    /// carries MADs.
    UserData,
    /// A packet to a multicast LID.
    Multicast,
    /// An SMP of software behind the adapter, to the fabric: the simulated node's own QP0 is in use.
    Smp,
    /// A trap of the emulated adapter: the simulated node has an agent of its own.
    Trap,
    /// RMPP control: nothing beyond one datagram exists on the way.
    Rmpp,
    /// A datagram of the simulator has the wrong size, an impossible length, or contradicts itself.
    Malformed,
    /// A datagram for a queue pair other than QP1.
    OtherQp,
    /// A datagram for another port.
    OtherLid,
    /// An answer that nobody waits for, or an SMP that the simulated node's agent must see to.
    Stray,
    /// What could not be delivered came back from the simulator.
    Bounced,
    /// Too much waits already.
    Overflow,
}

impl Loss {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 13] = [
        Self::NotAttached,
        Self::Damaged,
        Self::UserData,
        Self::Multicast,
        Self::Smp,
        Self::Trap,
        Self::Rmpp,
        Self::Malformed,
        Self::OtherQp,
        Self::OtherLid,
        Self::Stray,
        Self::Bounced,
        Self::Overflow,
    ];

    /// The stable text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotAttached => "not_attached",
            Self::Damaged => "damaged",
            Self::UserData => "user_data",
            Self::Multicast => "multicast",
            Self::Smp => "smp",
            Self::Trap => "trap",
            Self::Rmpp => "rmpp",
            Self::Malformed => "malformed",
            Self::OtherQp => "other_qp",
            Self::OtherLid => "other_lid",
            Self::Stray => "stray",
            Self::Bounced => "bounced",
            Self::Overflow => "overflow",
        }
    }
}

/// Counters of an uplink. They never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UplinkCounters {
    /// MADs of the adapter that the simulator got.
    pub sent: u64,
    /// Of these, those that lost their GRH on the way.
    pub without_grh: u64,
    /// MADs of the simulator that the adapter got.
    pub received: u64,
    /// Requests that the uplink refused because nobody answered them.
    pub refused: u64,
    /// SMPs of the uplink that the adapter's agent refused.
    pub refused_by_adapter: u64,
    /// Times that the uplink attached.
    pub attached: u64,
    /// Times that it found the subnet manager restarted, or another one.
    pub sm_changes: u64,
    losses: [u64; Loss::ALL.len()],
}

impl UplinkCounters {
    /// What did not pass for a reason.
    #[must_use]
    pub const fn lost(&self, why: Loss) -> u64 {
        self.losses[why as usize]
    }

    pub(super) const fn lose(&mut self, why: Loss) {
        self.losses[why as usize] += 1;
    }
}
