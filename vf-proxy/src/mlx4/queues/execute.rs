//! The commands about queues, carried out.

use hca_api::{Hca, QpHandle, QpModify};
use ib_wire::{Gid, Lid, Qpn};
use mlx4_defs::cq::CqContext;
use mlx4_defs::qp::{QpMailbox, QpState};
use mlx4_defs::srq::SrqContext;
use mlx4_defs::{Cqn, Mailbox, Srqn, Status};

use super::super::command::QueueCommand;
use super::super::lengthy::{NewQueue, Step};
use super::super::mtt::Mtts;
use super::super::pd::{Pds, status_of};
use super::super::resources::Resources;
use super::super::vhcr::Output;
use super::cq::{Cq, NewRing};
use super::qp::{Parts, Qp};
use super::srq::Srq;
use super::transition::Transition;
use super::{QueueEvent, Queues};

/// What the rest of the function lends to a command.
pub(in super::super) struct Tables<'a> {
    pub(in super::super) resources: &'a mut Resources,
    pub(in super::super) mtts: &'a mut Mtts,
    pub(in super::super) pds: &'a mut Pds,
}

/// Attachments that all queue pairs together can have. The provider counts those of queue pairs that it
/// has; they stay when a queue pair is reset, so another bound has to hold for all.
pub(in super::super) const MAX_ATTACHMENTS: usize = 1 << 13;

impl Queues {
    /// Carries out a command.
    ///
    /// # Errors
    /// The status with which it ends.
    pub(in super::super) fn execute(
        &mut self,
        hca: &mut dyn Hca,
        tables: &mut Tables<'_>,
        command: QueueCommand,
    ) -> Result<Step, Status> {
        match command {
            QueueCommand::CreateCq {
                cqn,
                context,
                initialised,
            } => return self.create_cq(hca, tables, cqn, &context, initialised),
            QueueCommand::DestroyCq(cqn) => self.destroy_cq(hca, tables, cqn)?,
            QueueCommand::ResizeCq(cqn, context) => {
                tables.resources.cqs.owned.check_hardware(cqn)?;
                self.collect(hca, cqn);
                let cq = self.cqs.get_mut(&cqn).ok_or(Status::BAD_RESOURCE)?;
                let (ring, fill) = cq.resize(hca, tables.mtts, &context)?;
                return Ok(Step::queue(fill, NewQueue::Ring { cqn, ring }));
            }
            QueueCommand::ModerateCq(cqn, moderation) => {
                tables.resources.cqs.owned.check_hardware(cqn)?;
                let cq = self.cqs.get_mut(&cqn).ok_or(Status::BAD_RESOURCE)?;
                if cq.moderate(moderation) {
                    self.wake(cqn);
                }
            }
            QueueCommand::CreateSrq(srqn, context) => {
                self.create_srq(hca, tables, srqn, &context)?;
            }
            QueueCommand::DestroySrq(srqn) => self.destroy_srq(hca, tables, srqn)?,
            QueueCommand::QuerySrq(srqn) => {
                tables.resources.srqs.owned.check_hardware(srqn)?;
                let srq = self.srqs.get(&srqn).ok_or(Status::BAD_RESOURCE)?;
                return Ok(Step::Done(Output::Mailbox(Box::new(Mailbox::with(
                    &srq.query(hca),
                )))));
            }
            QueueCommand::ArmSrq(srqn, limit) => {
                tables.resources.srqs.owned.check_hardware(srqn)?;
                let srq = self.srqs.get(&srqn).ok_or(Status::BAD_RESOURCE)?;
                srq.arm(hca, limit)?;
            }
            QueueCommand::Transit {
                qpn,
                transition: Transition::RstToInit,
                given,
                ..
            } => self.create_qp(hca, tables, qpn, &given)?,
            QueueCommand::Transit {
                qpn,
                transition,
                drained_event,
                given,
            } => {
                tables.resources.qps.check_hardware(qpn)?;
                self.transit(hca, qpn, transition, &given, drained_event)?;
            }
            QueueCommand::ResetQp(qpn) => self.reset_qp(hca, tables, qpn)?,
            QueueCommand::QueryQp(qpn) => {
                tables.resources.qps.check_hardware(qpn)?;
                self.follow_provider(hca, qpn);
                let qp = self.qps.get(&qpn).ok_or(Status::BAD_RESOURCE)?;
                return Ok(Step::Done(Output::Mailbox(Box::new(Mailbox::with(
                    &qp.query(hca),
                )))));
            }
            QueueCommand::Attach {
                qpn,
                mgid,
                block_loopback,
            } => {
                tables.resources.qps.check_mapped(qpn)?;
                self.attach(hca, qpn, mgid, block_loopback)?;
            }
            QueueCommand::Detach { qpn, mgid } => self.detach(hca, qpn, mgid)?,
        }
        Ok(Step::Done(Output::None))
    }

    fn create_cq(
        &mut self,
        hca: &mut dyn Hca,
        tables: &mut Tables<'_>,
        cqn: Cqn,
        context: &CqContext,
        initialised: bool,
    ) -> Result<Step, Status> {
        tables.resources.cqs.owned.check_software(cqn)?;
        let cq = Cq::new(hca, tables.mtts, context)?;
        if initialised {
            self.add_cq(tables, cqn, cq);
            return Ok(Step::Done(Output::None));
        }
        let (fill, cq) = (cq.fill(), Box::new(cq));
        Ok(Step::queue(fill, NewQueue::Cq { cqn, cq }))
    }

    /// A completion queue's entries are the device's: it is there.
    pub(in super::super) fn add_cq(&mut self, tables: &mut Tables<'_>, cqn: Cqn, cq: Cq) {
        self.cq_by_handle.insert(cq.handle, cqn);
        self.cq_pages.add(cq.uar(), cqn);
        self.cqs.insert(cqn, cq);
        tables.resources.cqs.owned.set_hardware(cqn, true);
    }

    /// Has a completion queue go on in another buffer, whose entries are the device's.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] if the buffer cannot take what waits by now.
    pub(in super::super) fn move_cq(
        &mut self,
        hca: &mut dyn Hca,
        tables: &mut Tables<'_>,
        cqn: Cqn,
        ring: NewRing,
    ) -> Result<(), Status> {
        self.collect(hca, cqn);
        let cq = self.cqs.get_mut(&cqn).ok_or(Status::BAD_RESOURCE)?;
        cq.move_to(hca, tables.mtts, ring)
    }

    fn destroy_cq(
        &mut self,
        hca: &mut dyn Hca,
        tables: &mut Tables<'_>,
        cqn: Cqn,
    ) -> Result<(), Status> {
        tables.resources.cqs.owned.check_hardware(cqn)?;
        if self.cqs.get(&cqn).is_some_and(|cq| cq.users != 0) {
            return Err(Status::RESOURCE_BUSY);
        }
        self.backlog.remove_cq(cqn);
        if let Some(cq) = self.cqs.remove(&cqn) {
            self.cq_by_handle.remove(&cq.handle);
            self.cq_pages.remove(cq.uar(), cqn);
            cq.end(hca, tables.mtts);
        }
        self.events.retain(|event| match event {
            QueueEvent::Completion { cqn: of, .. } => *of != cqn,
            QueueEvent::Async(_) => true,
        });
        tables.resources.cqs.owned.set_hardware(cqn, false);
        Ok(())
    }

    fn create_srq(
        &mut self,
        hca: &mut dyn Hca,
        tables: &mut Tables<'_>,
        srqn: Srqn,
        context: &SrqContext,
    ) -> Result<(), Status> {
        tables.resources.srqs.owned.check_software(srqn)?;
        let srq = Srq::new(hca, tables.mtts, tables.pds, context)?;
        self.srq_by_handle.insert(srq.handle, srqn);
        self.srqs.insert(srqn, srq);
        tables.resources.srqs.owned.set_hardware(srqn, true);
        Ok(())
    }

    fn destroy_srq(
        &mut self,
        hca: &mut dyn Hca,
        tables: &mut Tables<'_>,
        srqn: Srqn,
    ) -> Result<(), Status> {
        tables.resources.srqs.owned.check_hardware(srqn)?;
        if self.srqs.get(&srqn).is_some_and(Srq::is_used) {
            return Err(Status::RESOURCE_BUSY);
        }
        if let Some(srq) = self.srqs.remove(&srqn) {
            self.srq_by_handle.remove(&srq.handle);
            srq.end(hca, tables.mtts, tables.pds);
        }
        tables.resources.srqs.owned.set_hardware(srqn, false);
        Ok(())
    }

    /// `RST2INIT_QP`: the queue pair is made.
    fn create_qp(
        &mut self,
        hca: &mut dyn Hca,
        tables: &mut Tables<'_>,
        qpn: Qpn,
        given: &QpMailbox,
    ) -> Result<(), Status> {
        tables.resources.qps.check_software(qpn)?;
        let special = tables.resources.known_special_qpns();
        let context = &given.context;
        let cq = |cqn| self.cqs.get(&cqn).ok_or(Status::BAD_PARAM);
        let srqn = context.has_srq().then_some(context.srqn);
        let parts = Parts {
            send_cq: cq(context.send_cqn)?,
            recv_cq: cq(context.receive_cqn)?,
            srq: srqn
                .map(|srqn| self.srqs.get(&srqn).ok_or(Status::BAD_PARAM))
                .transpose()?,
            proxy: special.and_then(|special| special.proxy_of(qpn)),
        };
        let life = self.next_life;
        let (mtts, pds) = (&mut *tables.mtts, &mut *tables.pds);
        let mut qp = Qp::new(hca, mtts, pds, &parts, (qpn, life), context)?;
        let joined = match srqn.and_then(|srqn| self.srqs.get_mut(&srqn)) {
            Some(srq) => srq.join(hca, pds, qp.is_kernel()),
            None => Ok(()),
        };
        let ready = joined.and_then(|()| {
            qp.transit(hca, Transition::RstToInit, given, false)
                .and_then(|()| self.attach_again(hca, &qp))
                .inspect_err(|_| self.leave_srq(&qp))
        });
        if let Err(status) = ready {
            self.detach_all(hca, &qp);
            qp.end(hca, mtts, pds);
            return Err(status);
        }
        self.next_life = life.next();
        self.insert(qp);
        tables.resources.qps.set_hardware(qpn, true);
        Ok(())
    }

    fn insert(&mut self, qp: Qp) {
        let qpn = qp.qpn;
        for cqn in [qp.cqn(false), qp.cqn(true)] {
            if let Some(cq) = self.cqs.get_mut(&cqn) {
                cq.users += 1;
            }
        }
        self.qp_by_handle.insert(qp.handle, qpn);
        self.qp_by_life.insert(qp.life, qpn);
        self.send_pages.add(qp.uar(), qpn);
        self.qps.insert(qpn, qp);
    }

    fn leave_srq(&mut self, qp: &Qp) {
        if let Some(srq) = qp.srqn().and_then(|srqn| self.srqs.get_mut(&srqn)) {
            srq.leave(qp.is_kernel());
        }
    }

    fn transit(
        &mut self,
        hca: &mut dyn Hca,
        qpn: Qpn,
        transition: Transition,
        given: &QpMailbox,
        drained_event: bool,
    ) -> Result<(), Status> {
        let qp = self.qps.get_mut(&qpn).ok_or(Status::BAD_RESOURCE)?;
        qp.transit(hca, transition, given, drained_event)?;
        let drained = drained_event && transition == Transition::RtsToSqd;
        match transition.target() {
            QpState::ERR => {
                self.flush_at_provider(hca, qpn);
                self.collect_of(hca, qpn);
                self.entered_error(qpn, QpState::ERR);
                self.serve(hca, qpn);
            }
            QpState::RTS => self.serve(hca, qpn),
            QpState::SQD if drained => self.collect_of(hca, qpn),
            _ => {}
        }
        self.condemn(hca);
        Ok(())
    }

    /// `2RST_QP`: the queue pair ends. What has completed is told; nothing more will.
    fn reset_qp(
        &mut self,
        hca: &mut dyn Hca,
        tables: &mut Tables<'_>,
        qpn: Qpn,
    ) -> Result<(), Status> {
        if tables.resources.qps.check_software(qpn).is_ok() {
            return Ok(());
        }
        tables.resources.qps.check_hardware(qpn)?;
        self.collect_of(hca, qpn);
        let qp = self.qps.remove(&qpn).ok_or(Status::BAD_RESOURCE)?;
        self.backlog.remove_qp(qpn);
        self.qp_by_life.remove(&qp.life);
        self.send_pages.remove(qp.uar(), qpn);
        self.qp_by_handle.remove(&qp.handle);
        for cqn in [qp.cqn(false), qp.cqn(true)] {
            if let Some(cq) = self.cqs.get_mut(&cqn) {
                cq.users = cq.users.saturating_sub(1);
            }
        }
        self.leave_srq(&qp);
        self.detach_all(hca, &qp);
        qp.end(hca, tables.mtts, tables.pds);
        tables.resources.qps.set_hardware(qpn, false);
        Ok(())
    }

    // Multicast groups. The driver names them by GID alone.

    fn attach(
        &mut self,
        hca: &mut dyn Hca,
        qpn: Qpn,
        mgid: Gid,
        block_loopback: bool,
    ) -> Result<(), Status> {
        if !mgid.is_multicast() {
            return Err(Status::BAD_PARAM);
        }
        let known = self.groups.get(&qpn);
        if !known.is_some_and(|groups| groups.mgids.contains(&mgid))
            && self.attachments() >= MAX_ATTACHMENTS
        {
            return Err(Status::EXCEED_LIM);
        }
        if let Some(qp) = self.qps.get(&qpn) {
            attach_at_provider(hca, qp.handle, mgid, block_loopback)?;
        }
        let groups = self.groups.entry(qpn).or_default();
        groups.mgids.insert(mgid);
        groups.block_loopback = block_loopback;
        Ok(())
    }

    fn attachments(&self) -> usize {
        self.groups.values().map(|of| of.mgids.len()).sum()
    }

    fn detach(&mut self, hca: &mut dyn Hca, qpn: Qpn, mgid: Gid) -> Result<(), Status> {
        let groups = self.groups.get_mut(&qpn).ok_or(Status::BAD_PARAM)?;
        if !groups.mgids.remove(&mgid) {
            return Err(Status::BAD_PARAM);
        }
        if groups.mgids.is_empty() {
            self.groups.remove(&qpn);
        }
        if let Some(qp) = self.qps.get(&qpn) {
            hca.detach_multicast(qp.handle, mgid, Lid::NONE)
                .map_err(status_of)?;
        }
        Ok(())
    }

    /// Groups that a queue pair was attached to before it was reset are still its groups.
    fn attach_again(&self, hca: &mut dyn Hca, qp: &Qp) -> Result<(), Status> {
        let Some(groups) = self.groups.get(&qp.qpn) else {
            return Ok(());
        };
        let mut mgids = groups.mgids.iter();
        mgids.try_for_each(|mgid| attach_at_provider(hca, qp.handle, *mgid, groups.block_loopback))
    }

    fn detach_all(&self, hca: &mut dyn Hca, qp: &Qp) {
        if let Some(groups) = self.groups.get(&qp.qpn) {
            for mgid in &groups.mgids {
                // One that could not be attached again is not there.
                let _ = hca.detach_multicast(qp.handle, *mgid, Lid::NONE);
            }
        }
    }

    /// Numbers of queue pairs were given back; their groups are nobody's.
    pub(in super::super) fn forget_groups(&mut self, first: Qpn, count: u32) {
        let given_back = |qpn: Qpn| qpn.get().wrapping_sub(first.get()) < count;
        self.groups.retain(|qpn, _| !given_back(*qpn));
    }
}

fn attach_at_provider(
    hca: &mut dyn Hca,
    handle: QpHandle,
    mgid: Gid,
    block_loopback: bool,
) -> Result<(), Status> {
    let block = QpModify {
        block_multicast_loopback: Some(block_loopback),
        ..QpModify::default()
    };
    hca.attach_multicast(handle, mgid, Lid::NONE)
        .and_then(|()| hca.modify_qp(handle, &block))
        .map_err(status_of)
}
