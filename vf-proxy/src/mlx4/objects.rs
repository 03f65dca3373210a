//! What the driver made: everything that a reset forgets, and the commands that change it.

use hca_api::{Hca, PortChange};
use ib_wire::PortNum;
use mlx4_defs::eqe::{Eqe, EventType};
use mlx4_defs::{Mailbox, Status};

use super::capability::{self, LOG_MTTS, check_port};
use super::command::{Change, Command, Creation, Query, QueueCommand};
use super::eq::Eqs;
use super::lengthy::{Lengthy, NewQueue, Step};
use super::mpt::{Mpts, NewRegion};
use super::mtt::Mtts;
use super::pd::Pds;
use super::ports::Ports;
use super::queues::{QueueEvent, Queues, Tables};
use super::resources::{Release, Resources};
use super::vhcr::Output;

/// What the driver made.
#[derive(Debug)]
pub(super) struct Objects {
    pub(super) resources: Resources,
    pub(super) mtts: Mtts,
    pub(super) pds: Pds,
    pub(super) mpts: Mpts,
    pub(super) eqs: Eqs,
    ports: Ports,
    pub(super) queues: Queues,
    /// Commands that ended by event; the driver counts them, too.
    token: u16,
}

impl Default for Objects {
    fn default() -> Self {
        Self {
            resources: Resources::default(),
            mtts: Mtts::new(LOG_MTTS),
            pds: Pds::default(),
            mpts: Mpts::default(),
            eqs: Eqs::default(),
            ports: Ports::default(),
            queues: Queues::default(),
            token: 0,
        }
    }
}

impl Objects {
    /// Begins to execute a command; most are done then.
    ///
    /// # Errors
    /// The status with which the command ends.
    pub(super) fn execute(&mut self, hca: &mut dyn Hca, command: Command) -> Result<Step, Status> {
        let output = match command {
            Command::Nop => Output::None,
            Command::Query(query) => Output::Mailbox(self.query(hca, query)?),
            Command::Allocate(wanted) => {
                let first = self.resources.allocate(hca, &mut self.mtts, wanted)?;
                Output::Immediate(first)
            }
            Command::Create(Creation::Eq(eqn, context)) => {
                let (eq, fill) = self.eqs.create(&mut self.mtts, eqn, &context)?;
                return Ok(Step::queue(fill, NewQueue::Eq(Box::new(eq))));
            }
            Command::Create(Creation::Region(index, entry)) => {
                self.resources.mpts.owned.check_software(index)?;
                let region = NewRegion::new(&self.mtts, index, &entry)?;
                return Ok(Step::More(Lengthy::Region(Box::new(region))));
            }
            Command::Change(change) => {
                self.change(hca, change)?;
                Output::None
            }
            Command::Queue(command) => {
                let ended = match command {
                    QueueCommand::DestroyCq(cqn) => Some(cqn),
                    _ => None,
                };
                let mut tables = Tables {
                    resources: &mut self.resources,
                    mtts: &mut self.mtts,
                    pds: &mut self.pds,
                };
                let step = self.queues.execute(hca, &mut tables, command)?;
                if let Some(cqn) = ended {
                    self.eqs.forget_completions(cqn);
                }
                return Ok(step);
            }
        };
        Ok(Step::Done(output))
    }

    /// Makes a region of the pages that were looked up.
    pub(super) fn finish_region(
        &mut self,
        hca: &mut dyn Hca,
        region: &NewRegion,
    ) -> Result<(), Status> {
        let (mtts, pds) = (&mut self.mtts, &mut self.pds);
        let index = self.mpts.create(hca, mtts, pds, region)?;
        self.resources.mpts.owned.set_hardware(index, true);
        Ok(())
    }

    fn query(&mut self, hca: &mut dyn Hca, query: Query) -> Result<Box<Mailbox>, Status> {
        match query {
            Query::DevCap => Ok(capability::query_dev_cap(&hca.attributes())),
            Query::Firmware => Ok(capability::query_firmware()),
            Query::Adapter => Ok(capability::query_adapter()),
            Query::Hca => Ok(capability::query_hca(&hca.attributes())),
            Query::FuncCap => Ok(capability::query_func_cap(&hca.attributes())),
            Query::FuncCapPort(port) => {
                check_port(hca, port)?;
                let special = self.resources.special_qpns(hca)?;
                let device = hca.attributes();
                Ok(capability::query_func_cap_port(&device, port, special))
            }
            Query::Port(port) => capability::query_port(hca, port),
            Query::Region(index) => {
                self.resources.mpts.owned.check_software(index)?;
                Ok(capability::answer(&self.mpts.query(index)))
            }
            Query::Counter { index, reset } => {
                self.resources.counters.owned.check_mapped(index)?;
                let traffic = &mut self.queues.traffic;
                let seen = traffic.query(index);
                if reset {
                    traffic.clear(index);
                }
                Ok(capability::answer(&seen))
            }
            Query::Mad(request) => self.ports.ask(hca, &request),
        }
    }

    fn change(&mut self, hca: &mut dyn Hca, change: Change) -> Result<(), Status> {
        match change {
            Change::InitPort(port) | Change::ClosePort(port) => check_port(hca, port),
            Change::SetPort(settings) => self.ports.change(hca, &settings),
            Change::Release(given) => {
                let (mtts, mpts) = (&mut self.mtts, &mut self.mpts);
                self.resources.release(hca, mtts, mpts, given)?;
                match given {
                    Release::Qpns { first, count } => self.queues.forget_groups(first, count),
                    Release::Counter(index) => self.queues.traffic.clear(index),
                    _ => {}
                }
                Ok(())
            }
            Change::WriteMtt(first, entries) => self.mtts.write(first, &entries),
            Change::DestroyRegion(index) => {
                self.resources.mpts.owned.check_hardware(index)?;
                let (mtts, pds) = (&mut self.mtts, &mut self.pds);
                self.mpts.destroy(hca, mtts, pds, index)?;
                self.resources.mpts.owned.set_hardware(index, false);
                Ok(())
            }
            Change::DestroyEq(eqn) => self.eqs.destroy(&mut self.mtts, eqn),
            Change::MapEq { eqn, events, unmap } => self.eqs.map(eqn, events, unmap),
        }
    }

    /// A port has changed.
    pub(super) fn port_changed(&mut self, hca: &dyn Hca, port: PortNum, change: PortChange) {
        if check_port(hca, port).is_ok() {
            self.ports.handle_port_change(hca, port, change);
        }
    }

    /// Puts the next event of the ports into an event queue, if there is room; gives the vector to raise, if
    /// that one interrupts. `None` when there are no more, or they have to wait.
    pub(super) fn post_port_event(&mut self, hca: &mut dyn Hca) -> Option<Option<u16>> {
        let kinds = [EventType::PORT_CHANGE, EventType::PORT_MNG_CHG_EVENT];
        if !kinds.into_iter().all(|kind| self.eqs.has_room(kind)) {
            return None;
        }
        let eqe = self.ports.poll_event()?;
        Some(self.eqs.post_assigned(hca, eqe))
    }

    /// Puts the next event of the queues into an event queue; gives the vector to raise, if that one
    /// interrupts. `None` when there are no more.
    pub(super) fn post_queue_event(&mut self, hca: &mut dyn Hca) -> Option<Option<u16>> {
        let event = self.queues.poll_event()?;
        Some(match event {
            QueueEvent::Completion { cqn, eqn } => self.eqs.post(hca, eqn, Eqe::completion(cqn)),
            QueueEvent::Async(eqe) => self.eqs.post_assigned(hca, eqe),
        })
    }

    /// A command that ends by event is done; gives the vector to raise.
    pub(super) fn command_done(&mut self, hca: &mut dyn Hca) -> Option<u16> {
        self.token = self.token.wrapping_add(1);
        self.eqs.post_assigned(hca, Eqe::command(self.token))
    }

    /// The driver polls for the end of its commands: when it uses events again it counts from the
    /// beginning.
    pub(super) const fn command_polled(&mut self) {
        self.token = 0;
    }
}
