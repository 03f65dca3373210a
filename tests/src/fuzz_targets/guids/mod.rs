//! A sequence of operations on the manager of a port's alias GUIDs.

mod sa;

use std::collections::{BTreeMap, BTreeSet};

use ib_endpoint::{Message, SaAnswer, SaError, TransferError};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadStatus, Method};
use ib_wire::notice::ClassPortInfo;
use ib_wire::sa::{GuidInfoRecord, SaMad};
use ib_wire::{Guid, Lid};
use pf_context::guids::{
    GuidConfig, GuidManager, GuidOutput, GuidSizes, GuidState, GuidToken, GuidWish,
};
use vf_tunnel::VfId;
use zerocopy::IntoBytes;

use self::sa::{Sa, block, entries};
use super::hostile::{Input, pass_time};
use super::sa_side::vf;

/// VFs, of which some are beyond the table.
const VFS: u16 = 21;
const TABLE: u16 = 18;
const LID: u16 = 5;
/// CapabilityMask2 of an SA that supports additional GUIDs.
const ADDITIONAL_GUIDS: u32 = 0x20;

type Answer = Result<SaAnswer, SaError>;

fn some_vf(input: &mut Input<'_>) -> VfId {
    vf(1 + u16::from(input.byte()) % VFS)
}

struct Scene {
    now: Instant,
    manager: GuidManager,
    outstanding: Vec<(GuidToken, SaMad)>,
    /// What VFs were told.
    guids: BTreeMap<VfId, Guid>,
    active: bool,
    told: usize,
    requests: usize,
    /// The rest of an honest world: an SA that keeps to its word, though its answers may be lost, the
    /// hardware's table, and what the administrator wants.
    sa: Option<Sa>,
    hardware: BTreeMap<u16, u64>,
    wishes: BTreeMap<VfId, GuidWish>,
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.byte() % 16 {
            0..3 => {
                let (vf, wish) = (some_vf(input), wish(input));
                // A refusal changes nothing, which the checks see.
                if self.manager.want(now, vf, wish).is_ok() {
                    self.wishes.insert(vf, wish);
                }
            }
            3 => {
                let vf = some_vf(input);
                self.manager.withdraw(now, vf);
                self.wishes.remove(&vf);
            }
            4..8 => self.answer(input),
            8 => self.lose(input),
            9 | 10 => {
                let index = 1 + u16::from(input.byte()) % TABLE;
                if self.sa.is_some() {
                    if input.byte() < 0x20 {
                        self.show(index, 0);
                    } else {
                        self.write_hardware();
                    }
                    self.pull();
                    return;
                }
                let granted = VfId::new(index).and_then(|vf| self.manager.view(vf).granted);
                let guid = if input.byte() < 0x20 { None } else { granted };
                self.manager
                    .hardware(now, index, guid.unwrap_or(Guid::NONE));
            }
            11 => self.port(input),
            12 => {
                let vf = some_vf(input);
                match &mut self.sa {
                    None => self.manager.groups_left(now, vf),
                    Some(sa) if input.flag() => {
                        sa.in_groups
                            .extend(self.guids.get(&vf).map(|guid| guid.get()));
                    }
                    Some(sa) => sa.take_elsewhere(u64::from(input.byte() % 16), input.flag()),
                }
            }
            13 if input.byte() >= 0xf0 && self.sa.is_none() => self.manager.withdraw_all(now),
            13 => self.manager.client_reregister(now),
            14 => {
                if let Some(sa) = &mut self.sa {
                    sa.fail_over();
                }
                self.manager.sm_changed(now);
            }
            _ => {
                let end = now + input.time();
                self.wait(end);
            }
        }
        self.pull();
        self.check();
    }

    fn port(&mut self, input: &mut Input<'_>) {
        self.active = input.byte() >= 0x40;
        self.manager.port_active(self.now, self.active);
    }

    /// The SA answers with what was asked for, or with anything.
    fn answer(&mut self, input: &mut Input<'_>) {
        if let Some((token, asked)) = input.take(&mut self.outstanding) {
            let answer = match &mut self.sa {
                None => answer(&asked, input),
                Some(sa) => match input.byte() {
                    0..8 => Err(SaError::Status(MadStatus::SA_NO_RESOURCES)),
                    8..16 if asked.header.attribute_id != AttributeId::CLASS_PORT_INFO => {
                        let taken = sa.take(&asked);
                        let wrong = taken.map(|_| block(31, [Guid::NONE; 8]));
                        response(&asked, wrong)
                    }
                    _ => honest_answer(sa, &asked),
                },
            };
            self.manager.answered(self.now, token, &answer);
        }
    }

    fn lose(&mut self, input: &mut Input<'_>) {
        if let Some((token, asked)) = input.take(&mut self.outstanding) {
            if let Some(sa) = &mut self.sa
                && input.flag()
            {
                let _unheard = honest_answer(sa, &asked);
            }
            let answer = Err(TransferError::TimedOut { transmissions: 10 }.into());
            self.manager.answered(self.now, token, &answer);
        }
    }

    fn pull(&mut self) {
        while let Some(output) = self.manager.poll_output() {
            match output {
                GuidOutput::Request { token, request } => {
                    assert!(self.active, "asked on a port that is down");
                    let mad = *request.message().mad().view::<SaMad>();
                    if mad.header.attribute_id != AttributeId::CLASS_PORT_INFO {
                        let entries = entries(&mad);
                        assert!(!entries.is_empty());
                        assert!(entries.iter().all(|(index, _)| (1..TABLE).contains(index)));
                    }
                    self.requests += 1;
                    self.outstanding.push((token, mad));
                }
                GuidOutput::Guid { vf, guid } => {
                    self.told += 1;
                    self.take_guid(vf, guid);
                }
                GuidOutput::CheckPort => assert!(!self.active),
                GuidOutput::LeaveGroups { vf, .. } => self.leave_groups(vf),
                GuidOutput::State { .. } => {}
            }
        }
    }

    /// In an honest world a VF leaves, and every other one's leaving is reported.
    fn leave_groups(&mut self, vf: VfId) {
        if let Some(sa) = &mut self.sa {
            let held = sa.table.get(&vf.get()).copied();
            sa.in_groups.retain(|guid| Some(*guid) != held);
            if vf.get().is_multiple_of(2) {
                self.manager.groups_left(self.now, vf);
            }
        }
    }

    fn show(&mut self, index: u16, guid: u64) {
        self.hardware.insert(index, guid);
        self.manager.hardware(self.now, index, Guid::new(guid));
    }

    /// The SM writes the whole table.
    fn write_hardware(&mut self) {
        for index in 1..TABLE {
            let held = self.sa.as_ref().and_then(|sa| sa.table.get(&index));
            let guid = held.copied().unwrap_or(0);
            self.show(index, guid);
        }
    }

    fn take_guid(&mut self, vf: VfId, guid: Option<Guid>) {
        match guid {
            Some(guid) => {
                assert!(!guid.is_none());
                assert_eq!(self.manager.view(vf).hardware, guid);
                assert!(
                    !self.guids.values().any(|held| *held == guid),
                    "another VF's"
                );
                if self.sa.is_some() {
                    assert_eq!(self.hardware.get(&vf.get()), Some(&guid.get()));
                }
                assert_eq!(self.guids.insert(vf, guid), None);
            }
            None => assert!(self.guids.remove(&vf).is_some()),
        }
    }

    fn wait(&mut self, end: Instant) {
        let mut now = self.now;
        pass_time(&mut now, end, |at| {
            self.now = at;
            self.manager.handle_timeout(at);
            self.pull();
            self.manager.poll_timeout()
        });
        self.now = now;
    }

    fn check(&self) {
        let sizes = self.manager.sizes();
        assert_eq!(sizes.requests, self.outstanding.len());
        assert!(sizes.requests <= GuidManager::MAX_IN_FLIGHT);
        let mut blocks = BTreeSet::new();
        for (_, asked) in &self.outstanding {
            if asked.header.attribute_id != AttributeId::CLASS_PORT_INFO {
                let record: GuidInfoRecord = asked.record();
                assert!(blocks.insert(record.block), "two requests for a block");
                assert!(u16::from(record.block) * 8 < TABLE);
            }
        }
        let all: BTreeSet<u64> = self.guids.values().map(|guid| guid.get()).collect();
        assert_eq!(all.len(), self.guids.len(), "two VFs of one GUID");
        let mut wanted = 0;
        for vf in (1..=VFS).map(vf) {
            let view = self.manager.view(vf);
            wanted += usize::from(view.wish != GuidWish::None);
            if let GuidState::InHardware(guid) = view.state {
                assert_eq!(self.guids.get(&vf), Some(&guid));
            }
        }
        assert_eq!(sizes.wanted, wanted);
    }

    /// Everything works from now on, until nothing is left to do: then the SA, the hardware and the VFs
    /// agree with the wishes.
    fn settle(mut self) {
        if let Some(sa) = &mut self.sa {
            sa.foreign.clear();
            sa.in_groups.clear();
        }
        self.active = true;
        self.manager.port_active(self.now, true);
        self.pull();
        let before = self.requests;
        for _ in 0..1_000 {
            while !self.outstanding.is_empty() {
                self.answer_oldest();
            }
            self.write_hardware();
            self.pull();
            if self.outstanding.is_empty() {
                let Some(due) = self.manager.poll_timeout() else {
                    break;
                };
                self.wait(due);
            }
        }
        assert!(self.requests - before < 200, "{}", self.requests - before);
        let sizes = self.manager.sizes();
        assert_eq!((sizes.requests, sizes.timers), (0, 0));
        for vf in (1..=VFS).map(vf) {
            self.check_state(vf);
        }
    }

    fn check_state(&self, vf: VfId) {
        let held = self.sa.as_ref().and_then(|sa| sa.table.get(&vf.get()));
        let held = held.map(|guid| Guid::new(*guid));
        assert_eq!(held, self.guids.get(&vf).copied(), "{vf}");
        let state = match (self.wishes.get(&vf).copied().unwrap_or_default(), held) {
            (GuidWish::None, held) => {
                assert_eq!(held, None, "{vf} has a GUID that is not wanted");
                GuidState::NotRequested
            }
            (_, None) if vf.get() >= TABLE => GuidState::TableTooSmall,
            (GuidWish::SmAssigned, Some(guid)) => GuidState::InHardware(guid),
            (GuidWish::Admin(guid), Some(_)) => GuidState::InHardware(guid),
            (wish, None) => panic!("{vf} has nothing of {wish:?}"),
        };
        assert_eq!(self.manager.state(vf), state, "{vf}");
    }

    fn answer_oldest(&mut self) {
        let (token, asked) = self.outstanding.remove(0);
        let sa = self.sa.as_mut().expect("an honest world");
        let answer = honest_answer(sa, &asked);
        self.manager.answered(self.now, token, &answer);
        self.pull();
    }

    /// The PF of an honest world shuts down, and the SA answers all or nothing.
    fn shut_down(mut self, answers: bool) {
        self.manager.withdraw_all(self.now);
        self.pull();
        let before = self.requests;
        while self.manager.sizes().requests + self.manager.sizes().timers > 0 {
            match (self.outstanding.is_empty(), answers) {
                (true, _) => {}
                (false, true) => self.answer_oldest(),
                (false, false) => {
                    self.lose(&mut Input::new(&[]));
                    self.pull();
                }
            }
            self.wait(self.now + Duration::from_secs(1));
            assert!(self.requests - before < 100);
        }
        if answers && self.active {
            assert_eq!(self.manager.sizes().held, 0);
            assert!(self.guids.is_empty());
        }
    }

    /// The PF shuts down, and the SA answers nothing more.
    fn wind_down(mut self) {
        self.manager.withdraw_all(self.now);
        self.pull();
        let mut silence = Input::new(&[]);
        for _ in 0..1_000 {
            if self.outstanding.is_empty() && self.manager.sizes().timers == 0 {
                break;
            }
            while !self.outstanding.is_empty() {
                self.lose(&mut silence);
                self.pull();
            }
            self.wait(self.now + Duration::from_secs(1));
        }
        let GuidSizes {
            wanted,
            requests,
            timers,
            ..
        } = self.manager.sizes();
        assert_eq!((wanted, requests, timers), (0, 0, 0));
    }
}

fn wish(input: &mut Input<'_>) -> GuidWish {
    match input.byte() % 16 {
        0 => GuidWish::None,
        1..4 => GuidWish::SmAssigned,
        15 => GuidWish::Admin(Guid::new(u64::MAX)),
        guid => GuidWish::Admin(Guid::new(guid.into())),
    }
}

fn class_port_info(asked: &SaMad, is_additional: bool) -> SaMad {
    let mut mad = *asked;
    mad.header.method = Method::GET_RESP;
    let mut info = ClassPortInfo::default();
    info.set_capability_mask2(if is_additional { ADDITIONAL_GUIDS } else { 0 });
    mad.data[..size_of::<ClassPortInfo>()].copy_from_slice(info.as_bytes());
    mad
}

fn whole(mad: &SaMad) -> Answer {
    let answer = SaAnswer::from_response(Message::single(Mad::from_layout(mad)));
    answer.map_err(SaError::Status)
}

fn response(asked: &SaMad, record: Result<GuidInfoRecord, MadStatus>) -> Answer {
    let mut mad = *asked;
    mad.header.method = Method::GET_RESP;
    mad.set_record(&record.map_err(SaError::Status)?);
    whole(&mad)
}

fn honest_answer(sa: &mut Sa, asked: &SaMad) -> Answer {
    if asked.header.attribute_id == AttributeId::CLASS_PORT_INFO {
        return whole(&class_port_info(asked, true));
    }
    response(asked, sa.take(asked))
}

fn answer(asked: &SaMad, input: &mut Input<'_>) -> Answer {
    let mut mad = if asked.header.attribute_id == AttributeId::CLASS_PORT_INFO {
        class_port_info(asked, input.byte() < 0xf0)
    } else {
        let mut mad = *asked;
        mad.header.method = Method::GET_RESP;
        mad.set_record(&granted(asked, input));
        mad
    };
    match input.byte() {
        0..8 => return Err(SaError::Status(MadStatus::SA_NO_RESOURCES)),
        8..16 => return Err(SaError::Status(MadStatus::SA_DENIED)),
        16..32 => input.damage(&mut mad.data),
        _ => {}
    }
    whole(&mad)
}

/// The block as it is after the request: what was asked for, another choice, or nothing.
fn granted(asked: &SaMad, input: &mut Input<'_>) -> GuidInfoRecord {
    let mut record: GuidInfoRecord = asked.record();
    for (at, guid) in record.guids.iter_mut().enumerate() {
        let is_asked = asked
            .component_mask
            .contains(GuidInfoRecord::guid_component(at));
        let choice = 0x1000 + u64::from(record.block) * 8 + u64::from(input.byte() / 0x40);
        if !is_asked || asked.header.method != Method::SET {
            *guid = Guid::NONE;
        } else if guid.is_none() {
            *guid = Guid::new(choice << 8 | u64::try_from(at).unwrap_or(0));
        }
    }
    record
}

/// An administrator's wishes for the GUIDs of VFs, an SA that grants, refuses, loses and lies, and a
/// port that comes and goes. No input gives a GUID to two VFs, asks for a block twice at a time, or
/// keeps a manager busy that is to shut down. With an SA that does not lie all agree in the end.
pub(super) fn guids(data: &[u8]) {
    play(Input::honest(data)).settle();
    play(Input::honest(data)).shut_down(true);
    play(Input::honest(data)).shut_down(false);
    play(Input::new(data)).wind_down();
}

fn play(mut input: Input<'_>) -> Scene {
    let mut manager = GuidManager::new(GuidConfig {
        seed: input.seed(),
        table_len: TABLE,
        alias_members: input.flag(),
    });
    let now = Instant::from_millis(1);
    manager.set_lid(now, Lid::new(LID));
    manager.port_active(now, true);
    let mut scene = Scene {
        now,
        manager,
        outstanding: Vec::new(),
        guids: BTreeMap::new(),
        active: true,
        told: 0,
        requests: 0,
        sa: input.is_honest().then(Sa::default),
        hardware: BTreeMap::new(),
        wishes: BTreeMap::new(),
    };
    while input.has_operation() {
        scene.step(&mut input);
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_give_guids_and_take_them_back() {
        for seed in [
            include_bytes!("../../../fuzz/corpus/guids/grant").as_slice(),
            include_bytes!("../../../fuzz/corpus/guids/sm-chooses"),
        ] {
            assert_eq!(play(Input::new(seed)).told, 2);
        }
    }
}
