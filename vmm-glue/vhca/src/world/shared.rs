//! A host whose adapter is shared: the PF with its own software, and what runs on its VFs.

use std::collections::VecDeque;

use hca_api::{FunctionManager, Hca, SpecialQp};
use ib_endpoint::{EndPort, EndPortConfig, EndPortError, EndPortEvent, MadTransport, SmaError};
use ib_vtime::{Instant, Secret};
use ib_wire::PortNum;
use pf_context::context::PfEvent;
use pf_context::{PfContext, PfHost};
use vf_proxy::native::ProxyQp;
use vf_tunnel::VfId;

use super::manager::ManagerPlace;
use super::socket::Sockets;
use super::software::Software;
use crate::DropLog;

/// MADs that a guest's proxy QP holds each way.
const GUEST_DEPTH: u32 = 128;

/// What runs on an adapter that a PF divides among consumers.
#[derive(Debug)]
pub(super) struct SharedHost {
    pub(super) host: PfHost,
    /// Events of the PF's own software that wait to be pulled, in the order of the ports.
    events: Vec<VecDeque<EndPortEvent>>,
    pub(super) sockets: Sockets,
    pub(super) manager: ManagerPlace,
    pub(super) trouble: Option<SmaError>,
    /// What happened to the VFs, and when; the oldest go when nobody takes them.
    news: VecDeque<(Instant, PfEvent)>,
    drops: DropLog,
}

/// Events about VFs that may wait to be taken.
const MAX_NEWS: usize = 4096;

impl SharedHost {
    pub(super) fn new(context: PfContext) -> Self {
        Self {
            events: context.ports().iter().map(|_| VecDeque::new()).collect(),
            host: PfHost::new(context),
            sockets: Sockets::default(),
            manager: ManagerPlace::default(),
            trouble: None,
            news: VecDeque::new(),
            drops: DropLog::new(),
        }
    }

    pub(super) fn poll_event(&mut self, port: PortNum) -> Option<EndPortEvent> {
        self.events
            .get_mut(port.index().checked_sub(1)?)?
            .pop_front()
    }

    pub(super) fn poll_news(&mut self) -> Option<(Instant, PfEvent)> {
        self.news.pop_front()
    }

    /// Lets the PF do what is due, until `is_over`. Returns `true` if there may be more.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        hca: &mut dyn FunctionManager,
        is_over: &mut dyn FnMut() -> bool,
    ) -> bool {
        let context = self.host.context_mut();
        while let Some(event) = hca.poll_event() {
            context.handle_hca_event(now, hca, &event);
            self.manager.handle_hca_event(now, &event);
        }
        let mut has_more = context.poll(now, hca);
        while has_more && !is_over() {
            has_more = context.poll(now, hca);
        }
        self.take_context_events(now);
        self.sockets.poll(hca);
        let managed = self.manager.port();
        if let Some(port) = managed.and_then(|port| self.host.context_mut().port_mut(port)) {
            has_more |= self.manager.poll(now, hca, port.own_mut().gsi(), is_over);
        }
        has_more
    }

    fn take_context_events(&mut self, now: Instant) {
        while let Some(event) = self.host.context_mut().poll_event() {
            match event {
                PfEvent::Own { port, event } => self.take_own_event(now, port, event),
                PfEvent::Dropped { vf, reason, .. } => self.drops.log(now, vf, reason),
                PfEvent::Unreadable { error, .. } => self.trouble = Some(error),
                PfEvent::VfPort { .. } | PfEvent::WishRefused { .. } => {
                    if self.news.len() == MAX_NEWS {
                        self.news.pop_front();
                    }
                    self.news.push_back((now, event));
                }
            }
        }
    }

    /// Requests to the SA go to the manager, everything else waits for the PF's user.
    fn take_own_event(&mut self, now: Instant, port: PortNum, event: EndPortEvent) {
        let managed = self.manager.port() == Some(port);
        let own = self.host.context_mut().port_mut(port).filter(|_| managed);
        let left = match own {
            Some(own) => self
                .manager
                .handle_port_event(now, own.own_mut().gsi(), event),
            None => Some(event),
        };
        if let Some(events) = self.events.get_mut(port.index().saturating_sub(1)) {
            events.extend(left);
        }
    }

    /// When to poll the PF at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let context = self.host.context().poll_timeout();
        context.into_iter().chain(self.manager.poll_timeout()).min()
    }

    /// Forgets what was logged of a VF that is gone.
    pub(super) fn forget(&mut self, vf: VfId) {
        self.drops.forget(vf);
    }
}

/// Starts a guest's software on a VF: an [`EndPort`] on the proxy of each port's QP1.
pub(super) fn start_guest(
    now: Instant,
    hca: &mut dyn Hca,
    secret: Secret,
) -> Result<Software, EndPortError> {
    let mut secrets = secret.numbers();
    let mut ports: Vec<EndPort> = Vec::new();
    for number in 1..=hca.attributes().num_ports {
        match open_guest_port(now, hca, PortNum(number), secrets.secret()) {
            Ok(port) => ports.push(port),
            Err(error) => {
                for port in ports {
                    port.close(hca);
                }
                return Err(error);
            }
        }
    }
    Ok(Software::new(ports))
}

fn open_guest_port(
    now: Instant,
    hca: &mut dyn Hca,
    port: PortNum,
    secret: Secret,
) -> Result<EndPort, EndPortError> {
    let proxy = ProxyQp::open(hca, SpecialQp::Gsi, port, GUEST_DEPTH)?;
    let config = EndPortConfig::host(port, secret);
    let proxy: Box<dyn MadTransport> = Box::new(proxy);
    EndPort::open_on(now, hca, config, proxy, None)
}
