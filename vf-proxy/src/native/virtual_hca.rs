//! A VF as the adapter that its program holds.

use hca_api::{AsyncEvent, Consumer, DeviceAttributes, Hca, HcaEvent};
use ib_endpoint::{EndPortError, SmaError};
use ib_vtime::{Instant, SecretNumbers};
use ib_wire::PortNum;

use super::{VfPort, VirtualHcaConfig, VirtualHcaEvent};

/// A VF that a program holds. See the [module](super).
#[derive(Debug)]
pub struct VirtualHca {
    config: VirtualHcaConfig,
    attributes: DeviceAttributes,
    ports: Vec<VfPort>,
    /// Each life after a reset has ids of its own.
    secrets: SecretNumbers,
    is_dead: bool,
    tells_death: bool,
}

impl VirtualHca {
    /// Takes the proxy QPs of all ports of a VF's function, and reads the ports. The program must be
    /// the function's only one: events that wait belong to a life before this one, and are dropped.
    ///
    /// # Errors
    /// See [`EndPortError`]; nothing is left behind.
    pub fn open(
        now: Instant,
        hca: &mut dyn Hca,
        config: VirtualHcaConfig,
    ) -> Result<Self, EndPortError> {
        let mut this = Self {
            config,
            attributes: hca.attributes(),
            ports: Vec::new(),
            secrets: config.secret.numbers(),
            is_dead: true,
            tells_death: false,
        };
        this.begin(now, hca)?;
        Ok(this)
    }

    /// Gives up all that is left and begins anew: after the function was reset, or because the program
    /// wants a clean start. Queue pairs, groups, queries and connections are those of the old life,
    /// and no event of it comes any more.
    ///
    /// # Errors
    /// See [`EndPortError`]; then it stays closed, and this may be tried again.
    pub fn reopen(&mut self, now: Instant, hca: &mut dyn Hca) -> Result<(), EndPortError> {
        self.end(now, hca);
        self.begin(now, hca)
    }

    fn begin(&mut self, now: Instant, hca: &mut dyn Hca) -> Result<(), EndPortError> {
        while hca.poll_event().is_some() {}
        self.attributes = hca.attributes();
        for number in 1..=self.attributes.num_ports {
            let secret = self.secrets.secret();
            match VfPort::open(now, hca, PortNum(number), &self.config, secret) {
                Ok(port) => self.ports.push(port),
                Err(error) => {
                    self.release(hca);
                    return Err(error);
                }
            }
        }
        self.is_dead = false;
        Ok(())
    }

    /// Ends all, and tells whom it concerns as far as that goes at once.
    fn end(&mut self, now: Instant, hca: &mut dyn Hca) {
        if !self.is_dead {
            for port in &mut self.ports {
                port.say_goodbye(now, hca);
            }
        }
        self.release(hca);
    }

    fn release(&mut self, hca: &mut dyn Hca) {
        for port in self.ports.drain(..) {
            port.close(hca);
        }
        self.is_dead = true;
        self.tells_death = false;
    }

    /// The adapter as the VF sees it.
    #[must_use]
    pub const fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    /// The ports, in their order; none after a reset that could not be followed by a new start.
    #[must_use]
    pub fn ports(&self) -> &[VfPort] {
        &self.ports
    }

    /// A port; `None` if the VF has none of this number.
    #[must_use]
    pub fn port(&self, port: PortNum) -> Option<&VfPort> {
        self.ports.get(port.index().checked_sub(1)?)
    }

    /// A port, to be used; `None` if the VF has none of this number.
    pub fn port_mut(&mut self, port: PortNum) -> Option<&mut VfPort> {
        self.ports.get_mut(port.index().checked_sub(1)?)
    }

    /// Whether the function was reset, or failed, since this was opened.
    #[must_use]
    pub const fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Takes an event of the function.
    ///
    /// # Errors
    /// See [`SmaError`]: a port could not be read anew; what was known of it before stays.
    pub fn handle_hca_event(
        &mut self,
        now: Instant,
        hca: &mut dyn Hca,
        event: &HcaEvent,
    ) -> Result<(), SmaError> {
        if self.is_dead {
            return Ok(());
        }
        if let HcaEvent::Async(AsyncEvent::FunctionReset | AsyncEvent::DeviceFatal) = event {
            self.is_dead = true;
            self.tells_death = true;
            return Ok(());
        }
        let handled = self
            .ports
            .iter_mut()
            .map(|port| port.handle_hca_event(now, hca, event));
        handled.fold(Ok(()), Result::and)
    }

    /// Receives, runs timers, and sends, within the budget. Whether there may be more to do at once;
    /// if not, the function raises [`HcaEvent::Completion`] when there is.
    pub fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        if self.is_dead {
            return false;
        }
        let polled = self.ports.iter_mut().map(|port| port.poll(now, hca));
        polled.fold(false, |busy, more| busy | more)
    }

    /// When to call [`Self::poll`] at the latest; a time that has passed means at once.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.is_dead {
            return None;
        }
        self.ports.iter().filter_map(VfPort::poll_timeout).min()
    }

    /// The next event. What happened before a reset comes before the news of it.
    pub fn poll_event(&mut self) -> Option<VirtualHcaEvent> {
        let of_ports = self.ports.iter_mut().find_map(|own| {
            let event = own.poll_event()?;
            let port = own.port();
            Some(VirtualHcaEvent::Port { port, event })
        });
        of_ports.or_else(|| core::mem::take(&mut self.tells_death).then_some(VirtualHcaEvent::Dead))
    }

    /// Gives back all that was made on the function. Groups are left as far as that goes without an
    /// answer; connections are not ended.
    ///
    /// After a reset call this, or [`Self::reopen`], before anything new is made on the function:
    /// handles may name other objects then.
    pub fn close(mut self, now: Instant, hca: &mut dyn Hca) {
        self.end(now, hca);
    }
}

/// Whoever drives functions drives a VF that a program holds like any other.
impl Consumer for VirtualHca {
    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        // What was known of a port that cannot be read stays, and the next event of it reads it again.
        let _ = self.handle_hca_event(now, hca, event);
    }

    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        self.poll(now, hca)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }
}
