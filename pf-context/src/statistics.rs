//! What became of each VF's MADs, and what each VF has of what it may have.

use ib_vtime::{Duration, Instant};
use ib_wire::mad::MgmtClass;
use mad_mux::steering::Owner;
use vf_tunnel::{DropReason, VfId};

use crate::mux::PortMux;

/// The classes that are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum CountedClass {
    /// Subnet management, LID routed and directed route.
    Smp,
    /// Subnet administration.
    SubnAdm,
    /// Performance management.
    Perf,
    /// Device management.
    DevMgt,
    /// Communication management.
    ComMgt,
    /// Any other.
    Other,
}

impl CountedClass {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Smp,
        Self::SubnAdm,
        Self::Perf,
        Self::DevMgt,
        Self::ComMgt,
        Self::Other,
    ];

    /// Where a class is counted.
    #[must_use]
    pub const fn of(class: MgmtClass) -> Self {
        match class {
            MgmtClass::SUBN_ADM => Self::SubnAdm,
            MgmtClass::COM_MGT => Self::ComMgt,
            MgmtClass::PERF => Self::Perf,
            MgmtClass::DEV_MGT => Self::DevMgt,
            MgmtClass::SUBN_LID_ROUTED | MgmtClass::SUBN_DIRECTED_ROUTE => Self::Smp,
            _ => Self::Other,
        }
    }

    /// The stable text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Smp => "smp",
            Self::SubnAdm => "sa",
            Self::Perf => "perf",
            Self::DevMgt => "dm",
            Self::ComMgt => "cm",
            Self::Other => "other",
        }
    }
}

/// How MADs of one class ended that were not dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Sent on the wire, by the VF or in its name.
    pub to_wire: u64,
    /// The same to the port's own LID: it came straight back. What became of it then is counted
    /// where it went.
    pub loopback: u64,
    /// Answered in place of who was asked; the answer counts as delivered.
    pub answered: u64,
    /// Taken by a machine, which answers later or has only taken note.
    pub absorbed: u64,
    /// Delivered.
    pub delivered: u64,
}

/// How the MADs of one VF, or of the port itself, ended. Counted since the VF was added, resets or
/// not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadStatistics {
    classes: [ClassStatistics; CountedClass::ALL.len()],
    drops: [u64; DropReason::ALL.len()],
}

impl MadStatistics {
    /// Those of one class.
    #[must_use]
    pub const fn class(&self, class: CountedClass) -> &ClassStatistics {
        &self.classes[class as usize]
    }

    /// Those of all classes together.
    #[must_use]
    pub fn total(&self) -> ClassStatistics {
        let mut total = ClassStatistics::default();
        self.classes.iter().for_each(|class| total.add(class));
        total
    }

    /// Frames of the VF, or for it, that ended for a reason.
    #[must_use]
    pub const fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason.index()]
    }

    /// Frames of the VF, or for it, that were dropped.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Counts others' MADs in.
    pub fn add(&mut self, other: &Self) {
        for (class, more) in self.classes.iter_mut().zip(&other.classes) {
            class.add(more);
        }
        for (drops, more) in self.drops.iter_mut().zip(other.drops) {
            *drops += more;
        }
    }

    pub(crate) const fn of(&mut self, class: MgmtClass) -> &mut ClassStatistics {
        &mut self.classes[CountedClass::of(class) as usize]
    }

    pub(crate) const fn count_drop(&mut self, reason: DropReason) {
        self.drops[reason.index()] += 1;
    }
}

impl ClassStatistics {
    const fn add(&mut self, other: &Self) {
        self.to_wire += other.to_wire;
        self.loopback += other.loopback;
        self.answered += other.answered;
        self.absorbed += other.absorbed;
        self.delivered += other.delivered;
    }
}

impl Default for MadStatistics {
    fn default() -> Self {
        Self {
            classes: [ClassStatistics::default(); CountedClass::ALL.len()],
            drops: [0; DropReason::ALL.len()],
        }
    }
}

/// How much there is of something, and how much there may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// How much there is.
    pub live: usize,
    /// The quota.
    pub limit: usize,
}

impl Use {
    fn new<L, M>(live: L, limit: M) -> Self
    where
        usize: TryFrom<L> + TryFrom<M>,
    {
        Self {
            live: usize::try_from(live).unwrap_or(usize::MAX),
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        }
    }
}

/// What a VF has in the tables of its port, and its quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VfUsage {
    /// Transactions.
    pub tids: Use,
    /// SA requests among them that wait for their answer.
    pub sa_requests: Use,
    /// Communication ids and SIDR request ids on all ports of the adapter, those in quarantine included.
    pub cm_ids: Use,
    /// Peers' requests, on all ports, that the VF has not answered.
    pub cm_pending: Use,
    /// Multicast groups that it is in.
    pub groups: Use,
    /// Joins that wait for the SA.
    pub joins: Use,
    /// Subscriptions to notices.
    pub subscriptions: Use,
    /// Subscriptions that wait for the SA.
    pub subscribing: Use,
    /// Frames beyond its rate that wait for their turn.
    pub queued: Use,
}

impl VfUsage {
    /// All of them with stable names.
    #[must_use]
    pub const fn named(&self) -> [(&'static str, Use); 9] {
        [
            ("tids", self.tids),
            ("sa_requests", self.sa_requests),
            ("cm_ids", self.cm_ids),
            ("cm_pending", self.cm_pending),
            ("groups", self.groups),
            ("joins", self.joins),
            ("subscriptions", self.subscriptions),
            ("subscribing", self.subscribing),
            ("queued", self.queued),
        ]
    }
}

/// How old the oldest is of what a VF has. `None` where it has nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VfAges {
    /// The transaction that has rested longest.
    pub transaction: Option<Duration>,
    /// The communication id whose exchange has not moved for longest; connections that are up do
    /// not count.
    pub exchange: Option<Duration>,
    /// The frame that has waited longest for its turn.
    pub frame: Option<Duration>,
}

impl PortMux {
    /// A VF's counters; `None` if there is no such VF. Those of [`VfId::PF`] are the PF's own
    /// software's.
    #[must_use]
    pub fn vf_statistics(&self, vf: VfId) -> Option<&MadStatistics> {
        self.vfs.get(vf).map(|record| &record.statistics)
    }

    /// Counts what concerns no VF: what the port itself asks and answers, and what came from the wire
    /// and is for nobody that is known.
    #[must_use]
    pub const fn port_statistics(&self) -> &MadStatistics {
        &self.statistics
    }

    /// What a VF has and may have. Takes a constant time.
    #[must_use]
    pub fn vf_usage(&self, vf: VfId) -> VfUsage {
        let owner = Owner::Vf(vf);
        let (tids, limits) = (self.tids.usage(owner), self.tids.config().of(owner));
        let machine = &self.cm.lock().machine;
        let cm = machine.vf_statistics(vf);
        let cm = cm.map_or((0, 0), |statistics| (statistics.ids, statistics.pending));
        let groups = self.mcast.usage(vf.into());
        let mcast = self.mcast.config();
        let subscriptions = self.notices.usage(vf.into());
        let notices = self.notices.config();
        let queue = self.limiter.queue(vf);
        let member = vf.into();
        VfUsage {
            tids: Use::new(tids.live, limits.per_vf),
            sa_requests: Use::new(tids.waiting_for_sa, limits.sa_per_vf),
            cm_ids: Use::new(cm.0, machine.quota(vf)),
            cm_pending: Use::new(cm.1, machine.config().pending_per_vf),
            groups: Use::new(groups.held, mcast.groups_of(member)),
            joins: Use::new(groups.waiting, mcast.waiting_of(member)),
            subscriptions: Use::new(subscriptions.held, notices.subscriptions_of(member)),
            subscribing: Use::new(subscriptions.waiting, notices.waiting_of(member)),
            queued: Use::new(queue.len, queue.limit),
        }
    }

    /// How old a VF's oldest are. Looks at every transaction of the port and every communication id
    /// of the VF.
    #[must_use]
    pub fn vf_ages(&self, now: Instant, vf: VfId) -> VfAges {
        let own = self.tids.transactions(now);
        let own = own.filter(|transaction| transaction.owner == Owner::Vf(vf));
        VfAges {
            transaction: own.map(|transaction| transaction.idle).max(),
            ..self.ages_besides_transactions(now, vf)
        }
    }

    /// [`PortMux::vf_ages`] of all VFs, by [`VfId::index`], with one look at each transaction.
    pub(crate) fn ages(&self, now: Instant) -> Vec<VfAges> {
        let mut ages: Vec<VfAges> = Vec::new();
        for (vf, _) in self.vfs.iter() {
            ages.resize(vf.index() + 1, VfAges::default());
            ages[vf.index()] = self.ages_besides_transactions(now, vf);
        }
        for transaction in self.tids.transactions(now) {
            if let Owner::Vf(vf) = transaction.owner
                && let Some(oldest) = ages.get_mut(vf.index())
            {
                oldest.transaction = oldest.transaction.max(Some(transaction.idle));
            }
        }
        ages
    }

    fn ages_besides_transactions(&self, now: Instant, vf: VfId) -> VfAges {
        let machine = &self.cm.lock().machine;
        let exchanges = machine.connections_of(now, vf);
        let oldest_frame = self.limiter.queue(vf).since;
        VfAges {
            transaction: None,
            exchange: exchanges.filter_map(|exchange| exchange.idle).max(),
            frame: oldest_frame.map(|since| now.saturating_duration_since(since)),
        }
    }

    /// Where a MAD of a VF counts, or one of the port's own.
    pub(crate) fn statistics_of(&mut self, vf: Option<VfId>) -> &mut MadStatistics {
        let record = vf.and_then(|vf| self.vfs.get_mut(vf));
        record.map_or(&mut self.statistics, |record| &mut record.statistics)
    }
}
