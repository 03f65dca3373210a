//! What an operator can look at, as plain data: the rows that `vhca show` prints.
//!
//! [`Inspect`] is all that a front end needs to know of the PF. Rows come one at a time, so that a
//! table of a million connections is never in memory twice. In every row `vf` is [`VfId::PF`] for what
//! is the PF's own: the port's requests for its VFs, and its software's.

use ib_vtime::Instant;
use ib_wire::notice::InformInfo;
use ib_wire::sa::JoinState;
use ib_wire::{Gid, Guid, Lid, Lmc, PKey, PortNum, Sl, SubnetPrefix};
use mad_mux::steering::Owner;
use mad_mux::tid::Transaction;
use mcast_agg::UnderWay;
use vf_tunnel::{DropReason, PhysicalPKeyIndex, VfId, VirtualPKeyIndex};

use crate::mux::PortMux;
use crate::output::Sizes;
use crate::pf_software;
use crate::statistics::{CountedClass, MadStatistics, VfAges, VfUsage};

/// Rows, one at a time.
pub type Rows<'a, T> = Box<dyn Iterator<Item = T> + 'a>;

/// A VF on a port.
#[derive(Clone, Debug, PartialEq)]
pub struct VfRow {
    /// The port.
    pub port: PortNum,
    /// The VF.
    pub vf: VfId,
    /// Its GUID, once the hardware has it.
    pub guid: Option<Guid>,
    /// Whether its tunnel works.
    pub active: bool,
    /// Whether its port is up.
    pub up: bool,
    /// Why its port is as it is, in a stable word: `up`, `physical_down`, `no_guid`, ...
    pub reason: &'static str,
    /// What is known of that beyond the word.
    pub detail: Option<&'static str>,
    /// What became of its MADs.
    pub statistics: MadStatistics,
    /// What it has, and its quotas.
    pub usage: VfUsage,
    /// How old its oldest are.
    pub ages: VfAges,
    /// Frames that wait for its tunnel. A mux has no tunnels: its frames wait in a
    /// [`PfContext`](crate::PfContext).
    pub delivering: usize,
}

/// A port.
#[derive(Clone, Debug, PartialEq)]
pub struct PortRow {
    /// The port.
    pub port: PortNum,
    /// Its own GUID.
    pub guid: Option<Guid>,
    /// Its base LID.
    pub lid: Lid,
    /// Its LID mask count.
    pub lmc: Lmc,
    /// Whether it is active.
    pub up: bool,
    /// The SM's LID.
    pub sm_lid: Lid,
    /// The SL that leads to the SM.
    pub sm_sl: Sl,
    /// The subnet's prefix.
    pub subnet_prefix: SubnetPrefix,
    /// Its VFs.
    pub vfs: usize,
    /// Transactions of its own with the SA that wait for their answer.
    pub sa_requests: usize,
    /// Live objects.
    pub sizes: Sizes,
    /// What became of its own MADs.
    pub statistics: MadStatistics,
}

/// A transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TidRow {
    /// The port.
    pub port: PortNum,
    /// Who asked.
    pub vf: VfId,
    /// What is known of it.
    pub transaction: Transaction,
}

/// A communication id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmRow {
    /// The port.
    pub port: PortNum,
    /// What is known of the exchange.
    pub connection: cm_paravirt::Connection,
}

/// What a VF has or serves, for SIDR requests without a GRH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidrRow {
    /// The VF.
    pub vf: VfId,
    /// The address or service.
    pub entry: cm_paravirt::SidrEntry,
}

/// A multicast group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRow {
    /// The port.
    pub port: PortNum,
    /// The group's address.
    pub mgid: Gid,
    /// Its LID; 0 until the SA has told.
    pub mlid: Lid,
    /// Its partition; 0 until the SA has told.
    pub pkey: PKey,
    /// What the port holds at the SA.
    pub joined: JoinState,
    /// How often the port has asked the SA to join, retransmissions not counted.
    pub sa_joins: u64,
    /// Who holds what.
    pub members: Vec<(VfId, JoinState)>,
    /// Joins that wait for the SA.
    pub waiting: usize,
    /// What the SA is asked now.
    pub under_way: Option<UnderWay>,
}

/// A subscription of the port to notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionRow {
    /// The port.
    pub port: PortNum,
    /// What it is about.
    pub info: InformInfo,
    /// Whether the port holds it at the SA.
    pub at_sa: bool,
    /// Who holds it.
    pub holders: Vec<VfId>,
    /// Requests that wait for the SA.
    pub waiting: usize,
    /// What the SA is asked now.
    pub under_way: Option<UnderWay>,
}

/// An entry of a port's GUID table: VF `n` has entry `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuidRow {
    /// The port.
    pub port: PortNum,
    /// Whose entry it is.
    pub vf: VfId,
    /// The GUID in hardware.
    pub guid: Option<Guid>,
    /// The GID that it makes.
    pub gid: Option<Gid>,
    /// How far it is, in a stable word.
    pub state: &'static str,
    /// When the SA is asked again, if it has declined.
    pub retry_at: Option<Instant>,
}

/// An entry of a P_Key table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PKeyRow {
    /// The port.
    pub port: PortNum,
    /// Whose table; [`VfId::PF`] for the port's.
    pub vf: VfId,
    /// The entry, in its owner's numbers.
    pub index: VirtualPKeyIndex,
    /// The entry of the port's table behind it, if there is one.
    pub physical: Option<PhysicalPKeyIndex>,
    /// What stands there.
    pub pkey: PKey,
}

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// MADs of a class that ended in a way, which has a stable text.
    Mads(CountedClass, &'static str),
    /// Frames dropped for a reason.
    Dropped(DropReason),
}

/// A counter. Those at zero are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRow {
    /// The port.
    pub port: PortNum,
    /// Whose MADs; [`VfId::PF`] also for those of nobody that is known.
    pub vf: VfId,
    /// What was counted.
    pub counted: Counted,
    /// How often.
    pub value: u64,
}

/// All that there is to look at, in a stable order.
pub trait Inspect: core::fmt::Debug {
    /// The VFs of each port.
    fn vfs(&self, now: Instant) -> Rows<'_, VfRow>;
    /// The ports.
    fn ports(&self) -> Rows<'_, PortRow>;
    /// The transactions.
    fn tids(&self, now: Instant) -> Rows<'_, TidRow>;
    /// The communication ids.
    fn cm(&self, now: Instant) -> Rows<'_, CmRow>;
    /// The addresses and services of VFs, which they have on all ports.
    fn sidr(&self) -> Rows<'_, SidrRow>;
    /// The multicast groups.
    fn groups(&self) -> Rows<'_, GroupRow>;
    /// The subscriptions to notices.
    fn subscriptions(&self) -> Rows<'_, SubscriptionRow>;
    /// The GUIDs.
    fn guids(&self) -> Rows<'_, GuidRow>;
    /// The P_Key tables.
    fn pkeys(&self) -> Rows<'_, PKeyRow>;

    /// The counters of every port and VF.
    fn counters(&self, now: Instant) -> Rows<'_, CounterRow> {
        let ports = self.ports();
        let of_ports = ports.flat_map(|row| counters(row.port, VfId::PF, row.statistics));
        let vfs = self.vfs(now);
        Box::new(of_ports.chain(vfs.flat_map(|row| counters(row.port, row.vf, row.statistics))))
    }
}

fn counters(
    port: PortNum,
    vf: VfId,
    statistics: MadStatistics,
) -> impl Iterator<Item = CounterRow> {
    let mut counters = Vec::new();
    for class in CountedClass::ALL {
        let mads = statistics.class(class);
        for (how, value) in [
            ("to_wire", mads.to_wire),
            ("loopback", mads.loopback),
            ("answered", mads.answered),
            ("absorbed", mads.absorbed),
            ("delivered", mads.delivered),
        ] {
            counters.push((Counted::Mads(class, how), value));
        }
    }
    let drops = DropReason::ALL.iter();
    counters.extend(drops.map(|&reason| (Counted::Dropped(reason), statistics.drops(reason))));
    let counted = counters.into_iter().filter(|&(_, value)| value > 0);
    counted.map(move |(counted, value)| CounterRow {
        port,
        vf,
        counted,
        value,
    })
}

/// A mux with the number that the hardware gives its port.
#[derive(Clone, Copy, Debug)]
pub struct PortView<'a> {
    mux: &'a PortMux,
    port: PortNum,
}

impl PortMux {
    /// What there is to look at. The mux does not know the port's number, so the caller tells it.
    #[must_use]
    pub const fn inspect(&self, port: PortNum) -> PortView<'_> {
        PortView { mux: self, port }
    }
}

impl<'a> PortView<'a> {
    /// The VFs.
    pub fn vfs(self, now: Instant) -> impl Iterator<Item = VfRow> + 'a {
        let Self { mux, port } = self;
        let ages = mux.ages(now);
        mux.vfs.iter().map(move |(vf, record)| {
            let (up, reason) = match (mux.port.up, record.guid) {
                (false, _) => (false, "physical_down"),
                (true, None) => (false, "no_guid"),
                (true, Some(_)) => (true, "up"),
            };
            VfRow {
                port,
                vf,
                guid: record.guid,
                active: record.active,
                up,
                reason,
                detail: None,
                statistics: record.statistics.clone(),
                usage: mux.vf_usage(vf),
                ages: ages[vf.index()],
                delivering: 0,
            }
        })
    }

    /// The port.
    #[must_use]
    pub fn port(self) -> PortRow {
        let Self { mux, port } = self;
        let mut statistics = mux.port_statistics().clone();
        if let Some(software) = mux.vf_statistics(VfId::PF) {
            statistics.add(software);
        }
        let own = [Owner::Pf, Owner::Vf(VfId::PF)].map(|owner| mux.tids.usage(owner));
        let waiting: u32 = own.iter().map(|usage| usage.waiting_for_sa).sum();
        PortRow {
            port,
            guid: mux
                .gids
                .iter()
                .find_map(|(guid, owner)| (owner == Owner::Pf).then_some(guid)),
            lid: mux.port.lid,
            lmc: mux.port.lmc,
            up: mux.port.up,
            sm_lid: mux.port.sm_lid,
            sm_sl: mux.port.sm_sl,
            subnet_prefix: mux.gids.prefix(),
            vfs: mux.vfs.iter().count(),
            sa_requests: usize::try_from(waiting).unwrap_or(usize::MAX),
            sizes: mux.sizes(),
            statistics,
        }
    }

    /// The transactions.
    pub fn tids(self, now: Instant) -> impl Iterator<Item = TidRow> + 'a {
        let Self { mux, port } = self;
        mux.tids.transactions(now).map(move |transaction| TidRow {
            port,
            vf: pf_software::tenant(transaction.owner),
            transaction,
        })
    }

    /// The communication ids.
    pub fn cm(self, now: Instant) -> impl Iterator<Item = CmRow> + 'a {
        let Self { mux, port } = self;
        let machine = &mux.cm.lock().machine;
        let connections = machine.connections(now);
        let of_port = connections.filter(|connection| connection.port == mux.number);
        let rows = of_port.map(|connection| CmRow { port, connection });
        rows.collect::<Vec<_>>().into_iter()
    }

    /// The addresses and services of VFs.
    pub fn sidr(self) -> impl Iterator<Item = SidrRow> + 'a {
        let cm = self.mux.cm.lock();
        let entries = cm.machine.sidr_table().iter();
        let rows = entries.map(|(vf, entry)| SidrRow { vf, entry });
        rows.collect::<Vec<_>>().into_iter()
    }

    /// The multicast groups.
    pub fn groups(self) -> impl Iterator<Item = GroupRow> + 'a {
        let Self { mux, port } = self;
        mux.mcast.groups().map(move |group| GroupRow {
            port,
            mgid: group.mgid(),
            mlid: group.record().mlid,
            pkey: group.record().pkey,
            joined: group.at_sa(),
            sa_joins: group.sa_joins(),
            members: group
                .members()
                .map(|(member, state)| (pf_software::tenant_of(member), state))
                .collect(),
            waiting: group.waiting(),
            under_way: group.under_way(),
        })
    }

    /// The subscriptions to notices.
    pub fn subscriptions(self) -> impl Iterator<Item = SubscriptionRow> + 'a {
        let Self { mux, port } = self;
        mux.notices
            .subscriptions()
            .map(move |subscription| SubscriptionRow {
                port,
                info: subscription.inform_info(),
                at_sa: subscription.is_at_sa(),
                holders: subscription.members().map(pf_software::tenant_of).collect(),
                waiting: subscription.waiting(),
                under_way: subscription.under_way(),
            })
    }

    /// The port's own GUID, then those of its VFs.
    pub fn guids(self) -> impl Iterator<Item = GuidRow> + 'a {
        let Self { mux, port } = self;
        let own = (VfId::PF, self.port().guid);
        let vfs = mux.vfs.iter().map(|(vf, record)| (vf, record.guid));
        core::iter::once(own)
            .chain(vfs)
            .map(move |(vf, guid)| GuidRow {
                port,
                vf,
                guid,
                gid: guid.map(|guid| Gid::from_parts(mux.gids.prefix(), guid)),
                state: guid.map_or("none", |_| "in_hardware"),
                retry_at: None,
            })
    }

    /// The port's own P_Key table, then those of its VFs.
    pub fn pkeys(self) -> impl Iterator<Item = PKeyRow> + 'a {
        let Self { mux, port } = self;
        let own = mux.pkeys.entries().map(|entry| (VfId::PF, entry));
        let vfs = mux.vfs.iter().flat_map(|(vf, record)| {
            let entries = record.pkeys.entries();
            entries.map(move |entry| (vf, entry))
        });
        own.chain(vfs)
            .map(move |(vf, (index, physical, pkey))| PKeyRow {
                port,
                vf,
                index,
                physical,
                pkey,
            })
    }
}

impl Inspect for PortView<'_> {
    fn vfs(&self, now: Instant) -> Rows<'_, VfRow> {
        Box::new((*self).vfs(now))
    }

    fn ports(&self) -> Rows<'_, PortRow> {
        Box::new(core::iter::once(self.port()))
    }

    fn tids(&self, now: Instant) -> Rows<'_, TidRow> {
        Box::new((*self).tids(now))
    }

    fn cm(&self, now: Instant) -> Rows<'_, CmRow> {
        Box::new((*self).cm(now))
    }

    fn sidr(&self) -> Rows<'_, SidrRow> {
        Box::new((*self).sidr())
    }

    fn groups(&self) -> Rows<'_, GroupRow> {
        Box::new((*self).groups())
    }

    fn subscriptions(&self) -> Rows<'_, SubscriptionRow> {
        Box::new((*self).subscriptions())
    }

    fn guids(&self) -> Rows<'_, GuidRow> {
        Box::new((*self).guids())
    }

    fn pkeys(&self) -> Rows<'_, PKeyRow> {
        Box::new((*self).pkeys())
    }
}
