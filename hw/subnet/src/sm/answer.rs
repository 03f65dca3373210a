//! What other nodes ask of the manager or tell it, and how managers change places.

use ib_endpoint::{MadAddress, smi};
use ib_vtime::Instant;
use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::notice::{
    CapabilityDetails, LocalChanges, Notice, NoticeReport, NoticeType, ProducerType,
    SystemImageGuidDetails, TrapNumber,
};
use ib_wire::smp::{DirectedRouteSmp, LidRoutedSmp, SmInfo, SmState, SmpAttribute};
use ib_wire::{Gid, Lid, MKey, Tid};

use super::discovery::OtherManager;
use super::election::{self, Rank, control};
use super::job::{Job, get, set};
use super::{Phase, Sm, SmEvent, trap};

impl Sm {
    pub(super) fn on_request(&mut self, now: Instant, from: &MadAddress, mad: &Mad) {
        let header = &mad.header;
        match (header.method, header.attribute_id) {
            (Method::TRAP, AttributeId::NOTICE) => self.on_trap(now, from, mad),
            (Method::GET, SmInfo::ID) => self.answer_sm_info(from, mad, MadStatus::OK),
            (Method::SET, SmInfo::ID) => self.on_control(now, from, mad),
            _ => self.stats.ignored += 1,
        }
    }

    fn on_trap(&mut self, now: Instant, from: &MadAddress, mad: &Mad) {
        if !from.lid.is_unicast() || mad.header.mgmt_class != MgmtClass::SUBN_LID_ROUTED {
            self.stats.ignored += 1;
            return;
        }
        self.stats.traps += 1;
        let mut repress = smi::answer(mad);
        // Without the sender's key its agent takes it for an intruder's, and goes on repeating the trap.
        repress.view_mut::<LidRoutedSmp>().mkey = self.config.mkey;
        self.reply(*from, repress);
        if self.state != SmState::MASTER {
            return;
        }
        let notice = *mad.view::<LidRoutedSmp>().attribute::<Notice>();
        if trap::calls_for_sweep(&notice) {
            self.follow_up(now, from.lid);
        }
        if !self.traps.admit(now, from.lid, notice.trap_number) {
            self.stats.noisy_traps += 1;
            return;
        }
        self.sweep_wanted |= trap::calls_for_sweep(&notice);
        self.note_system_image_guid(from.lid, &notice);
        let issuer = self
            .topology
            .port_by_lid(from.lid)
            .and_then(|id| self.topology.port(id));
        let issuer_gid = issuer.map_or(Gid::NONE, crate::topology::Port::gid);
        self.event(SmEvent::Trap(NoticeReport { notice, issuer_gid }));
    }

    /// Takes a node's new system image GUID from trap 145, so that NodeRecords show it before the next
    /// sweep.
    fn note_system_image_guid(&mut self, from: Lid, notice: &Notice) {
        if !notice.is_generic() || notice.trap_number != TrapNumber::SYSTEM_IMAGE_GUID_CHANGED {
            return;
        }
        if let Some(port) = self.topology.port_by_lid(from) {
            let guid = notice.details::<SystemImageGuidDetails>().system_image_guid;
            self.topology.node_mut(port.node).info.system_image_guid = guid;
        }
    }

    fn answer_sm_info(&mut self, from: &MadAddress, mad: &Mad, status: MadStatus) {
        let mut answer = smi::answer(mad);
        let info = self.sm_info();
        if mad.header.mgmt_class == MgmtClass::SUBN_LID_ROUTED {
            answer.header.status = status;
            *answer.view_mut::<LidRoutedSmp>().attribute_mut() = info;
        } else {
            // The highest bit says the direction.
            let status = MadStatus::new(status.get() | 1 << 15);
            answer.header.status = status;
            *answer.view_mut::<DirectedRouteSmp>().attribute_mut() = info;
        }
        self.reply(*from, answer);
    }

    /// A control packet of another manager (IBA 14.4.1). One that its sender may not send, or that
    /// makes no sense in this manager's state, is answered with an error and changes nothing.
    fn on_control(&mut self, now: Instant, from: &MadAddress, mad: &Mad) {
        let (mkey, sender) = match mad.header.mgmt_class {
            MgmtClass::SUBN_LID_ROUTED => {
                let smp: &LidRoutedSmp = mad.view();
                (smp.mkey, *smp.attribute::<SmInfo>())
            }
            _ => {
                let smp: &DirectedRouteSmp = mad.view();
                (smp.mkey, *smp.attribute::<SmInfo>())
            }
        };
        if self.config.mkey != MKey::default() && mkey != self.config.mkey {
            self.stats.ignored += 1;
            return;
        }
        let modifier = mad.header.attribute_modifier;
        if !election::may_send(sender.state(), modifier)
            || !election::may_receive(self.state, modifier)
        {
            self.answer_sm_info(from, mad, MadStatus::INVALID_FIELD);
            return;
        }
        match modifier {
            control::HANDOVER => {
                self.answer_sm_info(from, mad, MadStatus::OK);
                self.sweep_wanted = true;
                if self.state != SmState::MASTER {
                    self.take_over();
                }
                return;
            }
            control::DISABLE => self.leave_election(SmState::NOT_ACTIVE),
            control::STANDBY => {
                self.set_state(SmState::STANDBY);
                self.next_check = now;
            }
            control::DISCOVER => {
                self.set_state(SmState::DISCOVERING);
                self.sweep_wanted = true;
            }
            // ACKNOWLEDGE: the other one has taken over.
            _ => {}
        }
        self.answer_sm_info(from, mad, MadStatus::OK);
    }

    /// The present master made this manager master.
    fn take_over(&mut self) {
        self.abandon();
        self.first_sweep = true;
        self.programmed.clear();
        self.master = None;
        self.sweep_wanted = true;
        self.set_state(SmState::MASTER);
    }

    fn leave_election(&mut self, state: SmState) {
        self.abandon();
        self.master = None;
        self.set_state(state);
    }

    /// Drops whatever is under way.
    fn abandon(&mut self) {
        self.queue.clear();
        self.phase = Phase::Idle;
        self.sweep_wanted = false;
        self.read_back_wanted = false;
        self.has_lost_writes = false;
    }

    /// Leaves the subnet to another manager and watches it.
    pub(super) fn stand_by(&mut self, now: Instant, other: OtherManager) {
        self.phase = Phase::Idle;
        self.master = Some((other, 0));
        self.first_sweep = true;
        self.next_check = now + self.config.master_poll_interval;
        self.set_state(SmState::STANDBY);
        self.claim_mastership(&other);
    }

    /// Asks a better manager to take over. If it does not answer, this one goes on.
    pub(super) fn hand_over(&mut self, other: OtherManager) {
        let request = set(
            &other.path,
            control::HANDOVER,
            self.config.mkey,
            &self.sm_info(),
        );
        self.queue.push(request, Job::HandOver(other.guid));
        self.phase = Phase::HandingOver(other);
    }

    pub(super) fn poll_master(&mut self) {
        match &self.master {
            Some((other, _)) => self
                .queue
                .push(get::<SmInfo>(&other.path, 0), Job::PollMaster),
            None => self.sweep_wanted = true,
        }
    }

    pub(super) fn master_answered(&mut self, now: Instant, info: &SmInfo) {
        let Some((other, misses)) = &mut self.master else {
            return;
        };
        (other.info, *misses) = (*info, 0);
        let other = *other;
        match info.state() {
            SmState::MASTER => self.claim_mastership(&other),
            // Still finding out, or on its way to become master.
            SmState::DISCOVERING => {}
            // Nobody is master any more.
            _ => self.rediscover(now),
        }
    }

    pub(super) fn master_missed(&mut self, now: Instant) {
        let Some((_, misses)) = &mut self.master else {
            return;
        };
        *misses += 1;
        if *misses >= self.config.master_poll_misses {
            self.rediscover(now);
        }
    }

    fn rediscover(&mut self, now: Instant) {
        self.master = None;
        self.next_check = now;
        self.sweep_wanted = true;
        self.set_state(SmState::DISCOVERING);
    }

    /// Lets a lesser master know that a better manager stands by: trap 144 with the flag for a
    /// changed priority makes it look.
    fn claim_mastership(&mut self, other: &OtherManager) {
        let own = Rank::new(self.config.priority, self.guid);
        let is_lesser = other.info.state() == SmState::MASTER && Rank::of(&other.info) < own;
        let port = |guid| self.topology.port(self.topology.port_by_guid(guid)?);
        let (Some(own_port), Some(master)) = (port(self.guid), port(other.guid)) else {
            return;
        };
        if !is_lesser || !master.info.lid.is_unicast() || !own_port.info.lid.is_unicast() {
            return;
        }
        let mut details = CapabilityDetails {
            lid: own_port.info.lid,
            capability_mask: own_port.info.capability_mask,
            changes: LocalChanges::SM_PRIORITY,
            ..CapabilityDetails::default()
        };
        details.set_other_local_changes(true);
        let notice = Notice::generic(
            NoticeType::INFORMATIONAL,
            ProducerType::CA,
            TrapNumber::CAPABILITY_MASK_CHANGED,
            own_port.info.lid,
            &details,
        );
        let to = MadAddress::smi(master.info.lid);
        let id = AttributeId::NOTICE;
        let mut mad = Mad::new(MadHeader::new(MgmtClass::SUBN_LID_ROUTED, Method::TRAP, id));
        self.act_count = self.act_count.wrapping_add(1);
        mad.header.tid = Tid::new(u64::from(self.act_count));
        *mad.view_mut::<LidRoutedSmp>().attribute_mut() = notice;
        self.reply(to, mad);
    }

    fn reply(&mut self, to: MadAddress, mad: Mad) {
        if self.queue.send(to, mad).is_err() {
            self.stats.overflows += 1;
        }
    }
}
