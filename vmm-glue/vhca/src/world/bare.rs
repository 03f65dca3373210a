//! A bare node: a host on whose ports nothing of the world's runs but the MAD agents that programs use, as on a Linux host with
//! `ib_umad` and without `ib_cm`.

use hca_api::{AsyncEvent, Consumer, Hca, HcaError, HcaEvent, SpecialQp};
use ib_endpoint::{BoundAgent, MadAgent, MadAgentConfig, MadQp};
use ib_vtime::{Instant, Secret};
use ib_wire::PortNum;

/// MADs that each special queue pair holds each way.
const DEPTH: u32 = 512;

/// MADs that each special queue pair receives, and sends, in one poll.
const BUDGET: usize = 256;

/// A port of a bare node.
#[derive(Debug)]
struct BarePort {
    gsi: BoundAgent<MadQp>,
    smi: Option<BoundAgent<MadQp>>,
}

impl BarePort {
    fn bound(&mut self) -> impl Iterator<Item = &mut BoundAgent<MadQp>> {
        core::iter::once(&mut self.gsi).chain(&mut self.smi)
    }
}

/// The MAD agents on the ports of a bare node.
#[derive(Debug)]
pub(super) struct BareNode {
    ports: Vec<BarePort>,
    /// Uses the function beside the agents.
    program: Option<Box<dyn Consumer>>,
    is_dead: bool,
}

impl BareNode {
    /// Takes the QP1 of each port.
    pub(super) fn open(hca: &mut dyn Hca, secret: Secret) -> Result<Self, HcaError> {
        let mut secrets = secret.numbers();
        let ports = (1..=hca.attributes().num_ports).map(|port| -> Result<_, HcaError> {
            let config = MadAgentConfig::gsi(secrets.secret().seed());
            let gsi = open(hca, SpecialQp::Gsi, PortNum(port), config)?;
            Ok(BarePort { gsi, smi: None })
        });
        Ok(Self {
            ports: ports.collect::<Result<_, _>>()?,
            program: None,
            is_dead: false,
        })
    }

    /// Returns what uses the function beside the agents.
    pub(super) fn program(&self) -> Option<&dyn Consumer> {
        self.program.as_deref()
    }

    /// Returns the place of what uses the function beside the agents.
    pub(super) const fn program_mut(&mut self) -> &mut Option<Box<dyn Consumer>> {
        &mut self.program
    }

    fn port_mut(&mut self, port: PortNum) -> Option<&mut BarePort> {
        self.ports.get_mut(port.index().checked_sub(1)?)
    }

    /// Takes the QP0 of a port, unless it has it already.
    pub(super) fn open_smi(
        &mut self,
        hca: &mut dyn Hca,
        number: PortNum,
        config: MadAgentConfig,
    ) -> Result<(), HcaError> {
        let port = self.port_mut(number).ok_or(HcaError::InvalidPort)?;
        if port.smi.is_none() {
            port.smi = Some(open(hca, SpecialQp::Smi, number, config)?);
        }
        Ok(())
    }

    /// Returns the agents on a port's QP1, and on its QP0 if it is open.
    pub(super) fn agents(
        &mut self,
        port: PortNum,
    ) -> Option<(&mut MadAgent, Option<&mut MadAgent>)> {
        let port = self.port_mut(port)?;
        let smi = port.smi.as_mut().map(BoundAgent::agent);
        Some((port.gsi.agent(), smi))
    }
}

fn open(
    hca: &mut dyn Hca,
    special: SpecialQp,
    port: PortNum,
    config: MadAgentConfig,
) -> Result<BoundAgent<MadQp>, HcaError> {
    let qp = MadQp::open(hca, special, port, DEPTH)?;
    Ok(BoundAgent::new(qp, MadAgent::new(config)))
}

impl Consumer for BareNode {
    fn handle_hca_event(&mut self, now: Instant, hca: &mut dyn Hca, event: &HcaEvent) {
        use AsyncEvent::{DeviceFatal, FunctionReset};

        if let Some(program) = &mut self.program {
            program.handle_hca_event(now, hca, event);
        }
        // Programs on umad have no events of ports.
        if let HcaEvent::Async(FunctionReset | DeviceFatal) = event {
            self.is_dead = true;
        }
    }

    fn poll(&mut self, now: Instant, hca: &mut dyn Hca) -> bool {
        let mut has_more = false;
        if !self.is_dead {
            for bound in self.ports.iter_mut().flat_map(BarePort::bound) {
                has_more |= bound.poll(now, hca, BUDGET);
            }
        }
        if let Some(program) = &mut self.program {
            has_more |= program.poll(now, hca);
        }
        has_more
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let ports = self.ports.iter().filter(|_| !self.is_dead);
        let bound = ports.flat_map(|port| core::iter::once(&port.gsi).chain(&port.smi));
        let program = self
            .program
            .iter()
            .filter_map(|program| program.poll_timeout());
        bound
            .filter_map(BoundAgent::poll_timeout)
            .chain(program)
            .min()
    }
}
