//! A service in virtual time, and what its tables and metrics are made with where there is none.

use ib_vtime::Duration;
use vhca::Driven;
use vhca_service::serve::Service;
use vhca_service::show::{VmmRow, Vmms};

/// Runs a service for so long.
pub fn pass(service: &mut Service, time: Duration) {
    let mut now = service.lab().world().now();
    let end = now + time;
    while now < end {
        service.poll(now);
        now = service
            .poll_timeout()
            .map_or(end, |next| next.max(now).min(end));
    }
    service.poll(end);
}

/// No VMMs, for tables and metrics.
#[derive(Debug)]
pub struct NoVmms;

impl Vmms for NoVmms {
    fn is_empty(&self) -> bool {
        true
    }

    fn of_host(&self, _: &str) -> Vec<VmmRow> {
        Vec::new()
    }
}
