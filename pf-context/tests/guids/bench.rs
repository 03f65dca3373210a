//! A manager whose SA is the test.

use ib_endpoint::{Message, SaAnswer, SaError, TransferError};
use ib_vtime::{Duration, Instant};
use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::notice::ClassPortInfo;
use ib_wire::sa::{ComponentMask, GuidInfoRecord, SaMad};
use ib_wire::{Guid, Lid};
use pf_context::guids::{
    GuidConfig, GuidManager, GuidOutput, GuidState, GuidToken, GuidWish, WishRefusal,
};
use vf_tunnel::VfId;
use zerocopy::IntoBytes;

pub(crate) const LID: Lid = Lid::new(5);
/// CapabilityMask2 of an SA that supports additional GUIDs, as OpenSM's says it.
const ADDITIONAL_GUIDS: u32 = 0x20;

pub(crate) type Answer = Result<SaAnswer, SaError>;

pub(crate) fn vf(number: u16) -> VfId {
    VfId::new(number).unwrap()
}

pub(crate) fn admin(guid: u64) -> GuidWish {
    GuidWish::Admin(Guid::new(guid))
}

/// A request as it was pulled.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) token: GuidToken,
    pub(crate) mad: SaMad,
}

impl Asked {
    pub(crate) fn is_about_support(&self) -> bool {
        self.mad.header.attribute_id == AttributeId::CLASS_PORT_INFO
    }

    pub(crate) fn record(&self) -> GuidInfoRecord {
        self.mad.record()
    }

    /// The entries that the component mask names, by table index, with the GUIDs asked for.
    pub(crate) fn entries(&self) -> Vec<(u16, u64)> {
        let record = self.record();
        (0..8)
            .filter(|&at| {
                let component = GuidInfoRecord::guid_component(usize::from(at));
                self.mad.component_mask.contains(component)
            })
            .map(|at| {
                let index = u16::from(record.block) * 8 + at;
                (index, record.guids[usize::from(at)].get())
            })
            .collect()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.mad.header.method == Method::SET
    }
}

pub(crate) fn timed_out() -> Answer {
    let transmissions = 10;
    Err(TransferError::TimedOut { transmissions }.into())
}

pub(crate) fn refusal(status: MadStatus) -> Answer {
    Err(SaError::Status(status))
}

/// The SA's answer with a whole block.
pub(crate) fn block(number: u8, guids: [u64; 8]) -> Answer {
    let record = GuidInfoRecord {
        lid: LID,
        block: number,
        guids: guids.map(Guid::new),
        ..GuidInfoRecord::default()
    };
    let mad = SaMad::new(Method::GET_RESP, ComponentMask::NONE, &record);
    Ok(SaAnswer::from_response(Message::single(Mad::from_layout(&mad))).unwrap())
}

/// The SA's ClassPortInfo.
pub(crate) fn class_port_info(supports: bool) -> Answer {
    let mut info = ClassPortInfo::default();
    info.set_capability_mask2(if supports { ADDITIONAL_GUIDS } else { 0 });
    let class = MgmtClass::SUBN_ADM;
    let header = MadHeader::new(class, Method::GET_RESP, AttributeId::CLASS_PORT_INFO);
    let mut mad = Mad::new(header);
    mad.view_mut::<SaMad>().data[..size_of::<ClassPortInfo>()].copy_from_slice(info.as_bytes());
    Ok(SaAnswer::from_response(Message::single(mad)).unwrap())
}

pub(crate) struct Bench {
    pub(crate) manager: GuidManager,
    pub(crate) now: Instant,
    /// Everything but requests, since it was last taken.
    pub(crate) told: Vec<GuidOutput>,
}

impl Bench {
    /// A port that is down.
    pub(crate) fn down(config: GuidConfig) -> Self {
        Self {
            manager: GuidManager::new(config),
            now: Instant::ZERO,
            told: Vec::new(),
        }
    }

    /// An active port with a LID.
    pub(crate) fn active(config: GuidConfig) -> Self {
        let mut bench = Self::down(config);
        bench.manager.set_lid(bench.now, LID);
        bench.manager.port_active(bench.now, true);
        bench
    }

    /// An active port whose SA is known to support additional GUIDs.
    pub(crate) fn ready() -> Self {
        Self::ready_with(GuidConfig::default())
    }

    pub(crate) fn ready_with(config: GuidConfig) -> Self {
        let mut bench = Self::active(config);
        bench.want(1, admin(0x1));
        let asked = bench.asked_one();
        assert!(asked.is_about_support());
        bench.withdraw(1);
        bench.answer(&asked, class_port_info(true));
        assert!(bench.asked().is_empty());
        bench.told.clear();
        bench
    }

    /// Creates an SA that lists members by their alias GUIDs, and VF 3 with one.
    pub(crate) fn with_alias_members() -> Self {
        let mut bench = Self::ready_with(GuidConfig {
            alias_members: true,
            ..GuidConfig::default()
        });
        bench.bring_up(3, 0xa);
        bench
    }

    pub(crate) fn want(&mut self, number: u16, wish: GuidWish) {
        self.manager.want(self.now, vf(number), wish).unwrap();
    }

    pub(crate) fn refused(&mut self, number: u16, wish: GuidWish) -> WishRefusal {
        let wanted = self.manager.want(self.now, vf(number), wish);
        wanted.unwrap_err()
    }

    pub(crate) fn hardware(&mut self, index: u16, guid: u64) {
        self.manager.hardware(self.now, index, Guid::new(guid));
    }

    pub(crate) fn withdraw(&mut self, number: u16) {
        self.manager.withdraw(self.now, vf(number));
    }

    /// All requests that are to be sent now.
    pub(crate) fn asked(&mut self) -> Vec<Asked> {
        let mut asked = Vec::new();
        while let Some(output) = self.manager.poll_output() {
            match output {
                GuidOutput::Request { token, request } => {
                    let mad = *request.message().mad().view::<SaMad>();
                    asked.push(Asked { token, mad });
                }
                other => self.told.push(other),
            }
        }
        asked
    }

    /// The one request that is to be sent now.
    pub(crate) fn asked_one(&mut self) -> Asked {
        let mut asked = self.asked();
        assert_eq!(asked.len(), 1, "{asked:?}");
        asked.remove(0)
    }

    pub(crate) fn answer(&mut self, asked: &Asked, answer: Answer) {
        self.manager.answered(self.now, asked.token, &answer);
    }

    /// The SA grants what was asked for, with the rest of the block empty.
    pub(crate) fn grant(&mut self, asked: &Asked) {
        let record = asked.record();
        self.answer(asked, block(record.block, record.guids.map(Guid::get)));
    }

    pub(crate) fn delete(&mut self, asked: &Asked) {
        assert!(!asked.is_set());
        self.answer(asked, block(asked.record().block, [0; 8]));
    }

    /// A VF gets a GUID all the way.
    pub(crate) fn bring_up(&mut self, number: u16, guid: u64) {
        self.want(number, admin(guid));
        let asked = self.asked_one();
        self.grant(&asked);
        self.hardware(number, guid);
        assert!(self.asked().is_empty());
        assert_eq!(self.state(number), GuidState::InHardware(Guid::new(guid)));
        self.told.clear();
    }

    pub(crate) fn state(&self, number: u16) -> GuidState {
        self.manager.state(vf(number))
    }

    /// Lets time pass up to the next timer: how long that was.
    pub(crate) fn pass(&mut self) -> Duration {
        let due = self.manager.poll_timeout().unwrap();
        let passed = due - self.now;
        self.now = due;
        self.manager.handle_timeout(due);
        passed
    }

    /// What VFs were told about their GUIDs, since that was last taken.
    pub(crate) fn guids_told(&mut self) -> Vec<(u16, Option<u64>)> {
        let told = self.told.drain(..);
        told.filter_map(|output| match output {
            GuidOutput::Guid { vf, guid } => Some((vf.get(), guid.map(Guid::get))),
            _ => None,
        })
        .collect()
    }
}
