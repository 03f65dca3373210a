//! Commands that take long.
//!
//! A guest chooses how large a queue is whose entries the device fills, and how many pages a region has, and gives such
//! commands as often as it wants. So they are carried out step by step; between two steps whoever drives the function
//! may have others served. The driver waits for the answer as it waits for firmware.

use hca_api::Hca;
use mlx4_defs::{Cqn, Status};

use super::eq::NewEq;
use super::mpt::NewRegion;
use super::objects::Objects;
use super::queues::{Cq, NewRing, Tables};
use super::vhcr::Output;
use vf_pci::Fill;

/// How far a command is.
#[derive(Debug)]
pub(super) enum Step {
    /// It is done.
    Done(Output),
    /// There is more to do.
    More(Lengthy),
}

impl Step {
    /// A queue was begun, whose entries are to be filled.
    pub(super) const fn queue(fill: Fill, queue: NewQueue) -> Self {
        Self::More(Lengthy::Queue(fill, queue))
    }
}

/// A command that is under way.
#[derive(Debug)]
pub(super) enum Lengthy {
    /// A queue's entries are given to the device.
    Queue(Fill, NewQueue),
    /// A region's pages are looked up.
    Region(Box<NewRegion>),
}

/// What is there once its entries are the device's.
#[derive(Debug)]
pub(super) enum NewQueue {
    /// An event queue.
    Eq(Box<NewEq>),
    /// A completion queue.
    Cq { cqn: Cqn, cq: Box<Cq> },
    /// The buffer in which a completion queue goes on.
    Ring { cqn: Cqn, ring: NewRing },
}

impl Objects {
    /// Does the next step of a command.
    ///
    /// # Errors
    /// The status with which the command ends.
    pub(super) fn go_on(&mut self, hca: &mut dyn Hca, command: Lengthy) -> Result<Step, Status> {
        match command {
            Lengthy::Queue(mut fill, queue) => match fill.step(hca) {
                Ok(false) => Ok(Step::queue(fill, queue)),
                Ok(true) => self.finish(hca, queue).map(|()| Step::Done(Output::None)),
                Err(_) => {
                    self.give_up(hca, queue);
                    Err(Status::BAD_PARAM)
                }
            },
            Lengthy::Region(mut region) => match region.look_up(&self.mtts) {
                Ok(false) => Ok(Step::More(Lengthy::Region(region))),
                Ok(true) => self
                    .finish_region(hca, &region)
                    .map(|()| Step::Done(Output::None)),
                Err(status) => Err(status),
            },
        }
    }

    fn finish(&mut self, hca: &mut dyn Hca, queue: NewQueue) -> Result<(), Status> {
        let mut tables = Tables {
            resources: &mut self.resources,
            mtts: &mut self.mtts,
            pds: &mut self.pds,
        };
        match queue {
            NewQueue::Eq(eq) => self.eqs.finish(*eq),
            NewQueue::Cq { cqn, cq } => self.queues.add_cq(&mut tables, cqn, *cq),
            NewQueue::Ring { cqn, ring } => {
                self.queues.move_cq(hca, &mut tables, cqn, ring)?;
            }
        }
        Ok(())
    }

    fn give_up(&mut self, hca: &mut dyn Hca, queue: NewQueue) {
        match queue {
            NewQueue::Eq(eq) => eq.give_up(&mut self.mtts),
            NewQueue::Cq { cq, .. } => cq.end(hca, &mut self.mtts),
            NewQueue::Ring { ring, .. } => ring.give_up(&mut self.mtts),
        }
    }
}
