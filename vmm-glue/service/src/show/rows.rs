//! The columns of each table.

use ib_wire::sa::JoinState;
use mcast_agg::UnderWay;
use pf_context::inspect::{
    CmRow, Counted, CounterRow, GroupRow, GuidRow, PKeyRow, PortRow, SidrRow, SubscriptionRow,
    TidRow,
};
use pf_context::{Use, VfUsage};
use vf_tunnel::VfId;
use vhca_control::table::{Cell, Column, column};

use super::table::Row;
use super::vfs::FaultyVf;

/// A VF's number; the PF has a word.
fn vf(vf: VfId) -> Cell {
    if vf == VfId::PF {
        Cell::of(vf)
    } else {
        Cell::Number(vf.get().into())
    }
}

/// The kinds of membership, by the names that IBA 15.2.5.17 gives them.
fn states(state: JoinState) -> impl Iterator<Item = &'static str> {
    let kinds = [
        (JoinState::FULL_MEMBER, "full"),
        (JoinState::NON_MEMBER, "non_member"),
        (JoinState::SEND_ONLY_NON_MEMBER, "send_only_non_member"),
        (JoinState::SEND_ONLY_FULL_MEMBER, "send_only_full"),
    ];
    let held = kinds
        .into_iter()
        .filter(move |(kind, _)| state.contains(*kind));
    held.map(|(_, name)| name)
}

/// The quotas of which at least nine tenths are used.
fn near_quota(usage: &VfUsage) -> Cell {
    let named = usage.named().into_iter();
    let near = named.filter(|(_, used)| used.live > 0 && used.live * 10 >= used.limit * 9);
    Cell::List(near.map(|(name, _)| Cell::of(name)).collect())
}

/// A number and its limit.
fn usage(used: Use) -> Cell {
    Cell::object([
        ("live", Cell::count(used.live)),
        ("limit", Cell::count(used.limit)),
    ])
}

fn under_way(under_way: Option<UnderWay>) -> Cell {
    Cell::option(under_way, |UnderWay { what, attempts }| {
        let parts = [
            ("request", Cell::of(what)),
            ("attempts", Cell::Number(attempts.into())),
        ];
        Cell::object(parts)
    })
}

impl Row for FaultyVf {
    const COLUMNS: &'static [Column<'static>] = &[
        column("port"),
        column("vf"),
        column("guid"),
        column("active").wide(),
        column("up"),
        column("fault"),
        column("reason").wide(),
        column("detail").wide(),
        column("sent"),
        column("delivered"),
        column("dropped"),
        column("near_quota").shrinks_to(6),
        column("tids").wide().separated_by("/"),
        column("sa_requests").wide().separated_by("/"),
        column("cm_ids").wide().separated_by("/"),
        column("cm_pending").wide().separated_by("/"),
        column("groups").wide().separated_by("/"),
        column("subscriptions").wide().separated_by("/"),
        column("queued").wide().separated_by("/"),
        column("delivering").wide(),
        column("oldest_transaction_ms").wide(),
        column("oldest_exchange_ms").wide(),
        column("oldest_frame_ms").wide(),
        column("memory_wait_ms").wide(),
    ];

    fn cells(&self) -> Vec<Cell> {
        let Self {
            row,
            fault,
            memory_wait,
        } = self;
        let (used, ages, mads) = (&row.usage, &row.ages, row.statistics.total());
        vec![
            Cell::Number(row.port.0.into()),
            vf(row.vf),
            Cell::option(row.guid, Cell::of),
            Cell::Flag(row.active),
            Cell::Flag(row.up),
            Cell::option(*fault, Cell::of),
            Cell::of(row.reason),
            Cell::option(row.detail, Cell::of),
            Cell::Number(mads.to_wire + mads.loopback + mads.answered + mads.absorbed),
            Cell::Number(mads.delivered),
            Cell::Number(row.statistics.dropped()),
            near_quota(used),
            usage(used.tids),
            usage(used.sa_requests),
            usage(used.cm_ids),
            usage(used.cm_pending),
            usage(used.groups),
            usage(used.subscriptions),
            usage(used.queued),
            Cell::count(row.delivering),
            Cell::option(ages.transaction, Cell::time),
            Cell::option(ages.exchange, Cell::time),
            Cell::option(ages.frame, Cell::time),
            Cell::option(*memory_wait, Cell::time),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.row.vf == vf
    }

    fn has_problem(&self) -> bool {
        self.fault.is_some() || !self.row.up
    }
}

impl Row for PortRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("port"),
        column("up"),
        column("vfs"),
        column("subnet_prefix").wide(),
        column("sm_sl").wide(),
        column("tids"),
        column("cm_ids"),
        column("mcast_groups"),
        column("mcast_members"),
        column("subscriptions"),
        column("path_cache"),
        column("queued"),
        column("sa_requests"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let sizes = &self.sizes;
        vec![
            Cell::Number(self.port.0.into()),
            Cell::Flag(self.up),
            Cell::count(self.vfs),
            Cell::of(self.subnet_prefix),
            Cell::Number(self.sm_sl.get().into()),
            Cell::count(sizes.tids),
            Cell::count(sizes.cm_ids),
            Cell::count(sizes.mcast_groups),
            Cell::count(sizes.mcast_members),
            Cell::count(sizes.subscriptions),
            Cell::count(sizes.path_cache),
            Cell::count(sizes.queued),
            Cell::count(self.sa_requests),
        ]
    }

    fn has_problem(&self) -> bool {
        !self.up
    }
}

impl Row for TidRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("port"),
        column("vf"),
        column("tid"),
        column("wire_tid"),
        column("class").shrinks_to(8),
        column("method").shrinks_to(8),
        column("attribute").shrinks_to(6).headed("ATTR"),
        column("lid"),
        column("qpn").wide(),
        column("gid").wide(),
        column("state"),
        column("idle_ms"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let transaction = &self.transaction;
        let peer = &transaction.peer;
        vec![
            Cell::Number(self.port.0.into()),
            vf(self.vf),
            Cell::of(transaction.tid.0),
            Cell::of(transaction.wire_tid.0),
            Cell::of(transaction.class),
            Cell::of(transaction.method),
            Cell::of(transaction.attribute),
            Cell::Number(peer.lid.get().into()),
            Cell::Number(peer.qpn.get().into()),
            Cell::option((!peer.gid.is_none()).then_some(peer.gid), Cell::of),
            Cell::of(transaction.state.as_str()),
            Cell::time(transaction.idle),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.vf == vf
    }
}

impl Row for CmRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("port"),
        column("vf"),
        column("vf_id"),
        column("wire_id"),
        column("remote_id"),
        column("kind"),
        column("state"),
        column("superseded").wide(),
        column("lid"),
        column("alternate_lid").wide(),
        column("gid").wide(),
        column("qpn").wide(),
        column("ca_guid").wide(),
        column("pkey").wide(),
        column("idle_ms"),
        column("remaining_ms"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let exchange = &self.connection;
        let known = |is_none: bool, text: String| {
            if is_none {
                Cell::None
            } else {
                Cell::Text(text)
            }
        };
        vec![
            Cell::Number(self.port.0.into()),
            vf(exchange.vf),
            Cell::option(exchange.vf_id, |id| Cell::of(id.0)),
            Cell::of(exchange.wire_id.0),
            Cell::option(exchange.remote_id, |id| Cell::of(id.0)),
            Cell::of(if exchange.sidr { "sidr" } else { "connection" }),
            Cell::of(exchange.state.as_str()),
            Cell::Flag(exchange.superseded),
            Cell::Number(exchange.lid.get().into()),
            Cell::option(exchange.alternate_lid, |lid| Cell::Number(lid.get().into())),
            known(exchange.gid.is_none(), exchange.gid.to_string()),
            Cell::Number(exchange.qpn.get().into()),
            known(exchange.ca_guid.is_none(), exchange.ca_guid.to_string()),
            known(!exchange.pkey.is_valid(), exchange.pkey.to_string()),
            Cell::option(exchange.idle, Cell::time),
            Cell::option(exchange.remaining, Cell::time),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.connection.vf == vf
    }
}

impl Row for GroupRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("port"),
        column("mgid"),
        column("mlid"),
        column("pkey"),
        column("joined").shrinks_to(8),
        column("sa_joins").wide(),
        column("waiting"),
        column("under_way").shrinks_to(8).separated_by("*"),
        column("members").shrinks_to(8).separated_by(":"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let member = |&(id, state)| {
            // A plus sign between the kinds: commas stand between the members.
            let names: Vec<&str> = states(state).collect();
            Cell::object([("vf", vf(id)), ("state", Cell::Text(names.join("+")))])
        };
        vec![
            Cell::Number(self.port.0.into()),
            Cell::of(self.mgid),
            Cell::of(self.mlid),
            Cell::of(self.pkey),
            Cell::List(states(self.joined).map(Cell::of).collect()),
            Cell::Number(self.sa_joins),
            Cell::count(self.waiting),
            under_way(self.under_way),
            Cell::List(self.members.iter().map(member).collect()),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.members.iter().any(|(member, _)| *member == vf)
    }
}

impl Row for SidrRow {
    const COLUMNS: &'static [Column<'static>] = &[column("vf"), column("sidr")];

    fn cells(&self) -> Vec<Cell> {
        vec![vf(self.vf), Cell::of(self.entry)]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.vf == vf
    }
}

impl Row for SubscriptionRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("port"),
        column("trap"),
        column("type"),
        column("gid"),
        column("lids").separated_by("-"),
        column("at_sa"),
        column("waiting").wide(),
        column("under_way").shrinks_to(8).separated_by("*"),
        column("holders").shrinks_to(8),
    ];

    fn cells(&self) -> Vec<Cell> {
        let info = &self.info;
        let by_gid = !info.gid.is_none();
        let range = [
            ("first", info.lid_range_begin),
            ("last", info.lid_range_end),
        ];
        let range = range.map(|(name, lid)| (name, Cell::Number(lid.get().into())));
        vec![
            Cell::Number(self.port.0.into()),
            Cell::Number(info.trap_number.get().into()),
            Cell::Number(info.notice_type.get().into()),
            Cell::option(by_gid.then_some(info.gid), Cell::of),
            Cell::option((!by_gid).then_some(range), Cell::object),
            Cell::Flag(self.at_sa),
            Cell::count(self.waiting),
            under_way(self.under_way),
            Cell::List(self.holders.iter().map(|&holder| vf(holder)).collect()),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.holders.contains(&vf)
    }
}

impl Row for GuidRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("port"),
        column("vf"),
        column("guid"),
        column("gid"),
        column("state").shrinks_to(8),
        column("retry_at_ms"),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::Number(self.port.0.into()),
            vf(self.vf),
            Cell::option(self.guid, Cell::of),
            Cell::option(self.gid, Cell::of),
            Cell::of(self.state),
            Cell::option(self.retry_at, |at| {
                Cell::time(at.saturating_duration_since(ib_vtime::Instant::ZERO))
            }),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.vf == vf
    }

    fn has_problem(&self) -> bool {
        self.state != "in_hardware"
    }
}

/// Returns true if an entry has a key, or stands for a place of the port's table that has none.
pub(super) fn is_used(row: &PKeyRow) -> bool {
    row.pkey.is_valid() || (row.vf != VfId::PF && row.physical.is_some())
}

impl Row for PKeyRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("port"),
        column("vf"),
        column("index"),
        column("physical_index"),
        column("pkey"),
    ];

    fn cells(&self) -> Vec<Cell> {
        vec![
            Cell::Number(self.port.0.into()),
            vf(self.vf),
            Cell::Number(self.index.0.0.into()),
            Cell::option(self.physical, |index| Cell::Number(index.0.0.into())),
            Cell::option(self.pkey.is_valid().then_some(self.pkey), Cell::of),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.vf == vf
    }
}

impl Row for CounterRow {
    const COLUMNS: &'static [Column<'static>] = &[
        column("port"),
        column("vf"),
        column("class"),
        column("verdict"),
        column("reason"),
        column("count"),
    ];

    fn cells(&self) -> Vec<Cell> {
        let [class, verdict, reason] = match self.counted {
            Counted::Mads(class, verdict) => {
                [Cell::of(class.as_str()), Cell::of(verdict), Cell::None]
            }
            Counted::Dropped(reason) => {
                [Cell::None, Cell::of("dropped"), Cell::of(reason.as_str())]
            }
        };
        let port = Cell::Number(self.port.0.into());
        vec![
            port,
            vf(self.vf),
            class,
            verdict,
            reason,
            Cell::Number(self.value),
        ]
    }

    fn is_of(&self, vf: VfId) -> bool {
        self.vf == vf
    }
}
