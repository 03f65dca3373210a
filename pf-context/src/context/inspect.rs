//! What there is to look at in a context: its ports' muxes, with what only the context knows.

use ib_vtime::Instant;
use ib_wire::PortNum;

use super::PfContext;
use super::config::GuidSource;
use super::port::PfPort;
use crate::guids::GuidState;
use crate::inspect::{
    CmRow, GroupRow, GuidRow, Inspect, PKeyRow, PortRow, PortView, Rows, SidrRow, SubscriptionRow,
    TidRow, VfRow,
};

impl PfContext {
    fn views(&self) -> impl Iterator<Item = (&PfPort, PortView<'_>)> {
        (1..).zip(&self.ports).map(|(number, port)| {
            let view = port.mux.inspect(PortNum(number));
            (port, view)
        })
    }
}

impl PfPort {
    fn vf_row(&self, row: VfRow) -> VfRow {
        let delivering = self.waiting(row.vf);
        let Some(reason) = self.reason(row.vf) else {
            return VfRow { delivering, ..row };
        };
        VfRow {
            up: reason.is_up(),
            reason: reason.as_str(),
            detail: reason.detail(),
            delivering,
            ..row
        }
    }

    fn guid_row(&self, row: GuidRow) -> GuidRow {
        let own = self.vfs.get(row.vf.index()).and_then(Option::as_deref);
        if own.is_none_or(|own| own.guid_source == GuidSource::Hardware) {
            return row;
        }
        let state = self.guids.state(row.vf);
        GuidRow {
            state: state.as_str(),
            retry_at: match state {
                GuidState::Declined { retry_at } => Some(retry_at),
                _ => None,
            },
            ..row
        }
    }
}

impl Inspect for PfContext {
    fn vfs(&self, now: Instant) -> Rows<'_, VfRow> {
        let rows = self
            .views()
            .flat_map(move |(port, view)| view.vfs(now).map(|row| port.vf_row(row)));
        Box::new(rows)
    }

    fn ports(&self) -> Rows<'_, PortRow> {
        Box::new(self.views().map(|(_, view)| view.port()))
    }

    fn tids(&self, now: Instant) -> Rows<'_, TidRow> {
        Box::new(self.views().flat_map(move |(_, view)| view.tids(now)))
    }

    fn cm(&self, now: Instant) -> Rows<'_, CmRow> {
        Box::new(self.views().flat_map(move |(_, view)| view.cm(now)))
    }

    fn sidr(&self) -> Rows<'_, SidrRow> {
        Box::new(self.views().take(1).flat_map(|(_, view)| view.sidr()))
    }

    fn groups(&self) -> Rows<'_, GroupRow> {
        Box::new(self.views().flat_map(|(_, view)| view.groups()))
    }

    fn subscriptions(&self) -> Rows<'_, SubscriptionRow> {
        Box::new(self.views().flat_map(|(_, view)| view.subscriptions()))
    }

    fn guids(&self) -> Rows<'_, GuidRow> {
        let rows = self
            .views()
            .flat_map(|(port, view)| view.guids().map(|row| port.guid_row(row)));
        Box::new(rows)
    }

    fn pkeys(&self) -> Rows<'_, PKeyRow> {
        Box::new(self.views().flat_map(|(_, view)| view.pkeys()))
    }
}
