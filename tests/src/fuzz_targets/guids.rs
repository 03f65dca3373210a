//! A sequence of operations on the manager of a port's alias GUIDs.

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

use super::hostile::{Input, pass_time};
use super::sa_side::vf;

/// VFs, of which some are beyond the table.
const VFS: u16 = 21;
const TABLE: u16 = 18;
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
}

impl Scene {
    fn step(&mut self, input: &mut Input<'_>) {
        let now = self.now;
        match input.byte() % 16 {
            0..3 => {
                let (vf, wish) = (some_vf(input), wish(input));
                // A refusal changes nothing, which the checks see.
                let _refusal = self.manager.want(now, vf, wish);
            }
            3 => self.manager.withdraw(now, some_vf(input)),
            4..8 => self.answer(input),
            8 => self.lose(input),
            9 | 10 => {
                let index = 1 + u16::from(input.byte()) % TABLE;
                let granted = VfId::new(index).and_then(|vf| self.manager.view(vf).granted);
                let guid = if input.byte() < 0x20 { None } else { granted };
                self.manager
                    .hardware(now, index, guid.unwrap_or(Guid::NONE));
            }
            11 => self.port(input),
            12 => self.manager.groups_left(now, some_vf(input)),
            13 if input.byte() >= 0xf0 => self.manager.withdraw_all(now),
            13 => self.manager.client_reregister(now),
            14 => self.manager.sm_changed(now),
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
            let answer = answer(&asked, input);
            self.manager.answered(self.now, token, &answer);
        }
    }

    fn lose(&mut self, input: &mut Input<'_>) {
        if let Some((token, _)) = input.take(&mut self.outstanding) {
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
                    self.outstanding.push((token, mad));
                }
                GuidOutput::Guid { vf, guid } => {
                    self.told += 1;
                    self.take_guid(vf, guid);
                }
                GuidOutput::CheckPort => assert!(!self.active),
                GuidOutput::State { .. } | GuidOutput::LeaveGroups { .. } => {}
            }
        }
    }

    fn take_guid(&mut self, vf: VfId, guid: Option<Guid>) {
        match guid {
            Some(guid) => {
                assert!(!guid.is_none());
                assert_eq!(self.manager.view(vf).hardware, guid);
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

fn answer(asked: &SaMad, input: &mut Input<'_>) -> Answer {
    let mut mad = *asked;
    mad.header.method = Method::GET_RESP;
    if asked.header.attribute_id == AttributeId::CLASS_PORT_INFO {
        let mut info = ClassPortInfo::default();
        info.set_capability_mask2(if input.byte() < 0xf0 {
            ADDITIONAL_GUIDS
        } else {
            0
        });
        mad.data[..size_of::<ClassPortInfo>()].copy_from_slice(info.as_bytes());
    } else {
        mad.set_record(&granted(asked, input));
    }
    match input.byte() {
        0..8 => return Err(SaError::Status(MadStatus::SA_NO_RESOURCES)),
        8..16 => return Err(SaError::Status(MadStatus::SA_DENIED)),
        16..32 => input.damage(&mut mad.data),
        _ => {}
    }
    let answer = SaAnswer::from_response(Message::single(Mad::from_layout(&mad)));
    answer.map_err(SaError::Status)
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
/// keeps a manager busy that is to shut down.
pub(super) fn guids(data: &[u8]) {
    play(data).wind_down();
}

fn play(data: &[u8]) -> Scene {
    let mut input = Input::new(data);
    let mut manager = GuidManager::new(GuidConfig {
        seed: 7,
        table_len: TABLE,
        alias_members: input.flag(),
    });
    let now = Instant::from_millis(1);
    manager.set_lid(now, Lid::new(5));
    manager.port_active(now, true);
    let mut scene = Scene {
        now,
        manager,
        outstanding: Vec::new(),
        guids: BTreeMap::new(),
        active: true,
        told: 0,
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
            include_bytes!("../../fuzz/corpus/guids/grant").as_slice(),
            include_bytes!("../../fuzz/corpus/guids/sm-chooses"),
        ] {
            assert_eq!(play(seed).told, 2);
        }
    }
}
