//! The emulated adapter's port, for which the uplink is the subnet manager: it makes the port what the
//! simulated one is, by SMPs over the link.

use std::collections::BTreeMap;

use ib_fabric::Frame;
use ib_vtime::Instant;
use ib_wire::mad::{AttributeModifier, Mad, MadHeader, Method, MgmtClass};
use ib_wire::smp::{
    DirectedRouteSmp, GuidInfo, LinkDownDefaultState, LinkSpeed, LinkWidth, PKeyTable,
    PKeyTableModifier, PortInfo, PortPhysState, PortState, SmpAttribute,
};
use ib_wire::{Guid, Lid, Mtu, PKey, Sl, Tid};

use super::config::{NEAR_REREAD, NEAR_RETRY, NEAR_TIMEOUT};
use super::far::FarPort;

/// What the uplink does next to the adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Read,
    Addresses,
    PKeys(u16),
    Guids(u8),
    State(PortState),
}

/// An SMP on its way.
#[derive(Clone, Debug)]
struct Sent {
    step: Step,
    mad: Mad,
    deadline: Instant,
}

/// The adapter's port, and what the uplink has made of it.
#[derive(Debug)]
pub(super) struct NearPort {
    plugged: bool,
    info: Option<PortInfo>,
    pkeys: BTreeMap<u16, PKeyTable>,
    guids: BTreeMap<u8, GuidInfo>,
    /// Clients on the port shall register again.
    reregister: bool,
    sent: Option<Sent>,
    /// The adapter refused: nothing more until then.
    pause: Option<Instant>,
    /// When the port is read again, in case that somebody else changed it.
    next_read: Instant,
    next_serial: u64,
}

impl NearPort {
    /// A port without a cable.
    pub(super) const fn new() -> Self {
        Self {
            plugged: false,
            info: None,
            pkeys: BTreeMap::new(),
            guids: BTreeMap::new(),
            reregister: false,
            sent: None,
            pause: None,
            next_read: Instant::ZERO,
            next_serial: 0,
        }
    }

    /// The cable is in or out. A port that was without one is read anew, and its clients register
    /// again: what manages the fabric may have been another one meanwhile.
    pub(super) fn plug(&mut self, plugged: bool) {
        if plugged != self.plugged {
            let serial = self.next_serial;
            *self = Self {
                plugged,
                reregister: plugged,
                next_serial: serial,
                ..Self::new()
            };
        }
    }

    pub(super) const fn is_plugged(&self) -> bool {
        self.plugged
    }

    /// Has the port's clients register again.
    pub(super) const fn reregister(&mut self) {
        self.reregister = self.plugged;
    }

    /// The port's base LID and mask, once the adapter has them.
    pub(super) fn owns(&self, lid: Lid) -> bool {
        self.info.as_ref().is_some_and(|info| owns(info, lid))
    }

    /// Whether the adapter is as the simulated port is.
    pub(super) fn is_settled(&self, far: &FarPort, guids: &BTreeMap<u8, GuidInfo>) -> bool {
        self.sent.is_none() && (!self.plugged || self.next_step(far, guids).is_none())
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let next = self.pause.unwrap_or(self.next_read);
        let due = self.sent.as_ref().map_or(next, |sent| sent.deadline);
        self.plugged.then_some(due)
    }

    /// The next SMP to the adapter, with its first hop made. `guids` is what its GUID table shall be.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        far: &FarPort,
        guids: &BTreeMap<u8, GuidInfo>,
    ) -> Option<Frame> {
        if !self.plugged {
            return None;
        }
        if let Some(sent) = &mut self.sent {
            if sent.deadline > now {
                return None;
            }
            sent.deadline = now + NEAR_TIMEOUT;
            return frame(&sent.mad);
        }
        if self.pause.is_some_and(|until| until > now) {
            return None;
        }
        self.pause = None;
        let step = match self.next_step(far, guids) {
            Some(step) => step,
            None if self.next_read <= now => Step::Read,
            None => return None,
        };
        self.next_read = now + NEAR_REREAD;
        let mut mad = self.request(step, far, guids)?;
        self.next_serial += 1;
        mad.header.tid = Tid::new(self.next_serial);
        self.sent = Some(Sent {
            step,
            mad,
            deadline: now + NEAR_TIMEOUT,
        });
        frame(&mad)
    }

    /// What is to do, in the order of a subnet manager: addresses, tables, states.
    fn next_step(&self, far: &FarPort, guids: &BTreeMap<u8, GuidInfo>) -> Option<Step> {
        let Some(near) = &self.info else {
            return Some(Step::Read);
        };
        let wanted = far.info()?;
        let (is, shall) = (near.port_state(), wanted.port_state());
        if (is == PortState::ARMED && shall == PortState::INIT)
            || (is == PortState::ACTIVE && shall != PortState::ACTIVE)
        {
            return Some(Step::State(PortState::DOWN));
        }
        if !has_addresses(wanted) {
            return None;
        }
        if self.reregister || with_addresses(near, wanted) != *near {
            return Some(Step::Addresses);
        }
        let keys = (0..).zip(far.pkeys());
        // A block that never held a key needs none to be taken away.
        let differs = |block: &u16, keys: &PKeyTable| match self.pkeys.get(block) {
            Some(written) => written != keys,
            None => !is_empty(keys),
        };
        if let Some((block, _)) = keys.into_iter().find(|(block, keys)| differs(block, keys)) {
            return Some(Step::PKeys(block));
        }
        if let Some((block, _)) = guids
            .iter()
            .find(|(block, guids)| self.guids.get(block) != Some(guids))
        {
            return Some(Step::Guids(*block));
        }
        match (is, shall) {
            (PortState::INIT, PortState::ARMED | PortState::ACTIVE) => {
                Some(Step::State(PortState::ARMED))
            }
            (PortState::ARMED, PortState::ACTIVE) => Some(Step::State(PortState::ACTIVE)),
            _ => None,
        }
    }

    fn request(&self, step: Step, far: &FarPort, guids: &BTreeMap<u8, GuidInfo>) -> Option<Mad> {
        Some(match step {
            Step::Read => smp::<PortInfo>(Method::GET, AttributeModifier::default(), None),
            Step::Addresses => {
                let mut info = with_addresses(self.info.as_ref()?, far.info()?);
                info.set_client_reregister(self.reregister);
                info.set_port_state(PortState::NO_CHANGE);
                set_port(info)
            }
            Step::PKeys(block) => {
                let keys = far.pkeys().get(usize::from(block))?;
                let modifier = PKeyTableModifier { port: 0, block };
                smp(Method::SET, modifier.encode(), Some(keys))
            }
            Step::Guids(block) => smp(
                Method::SET,
                AttributeModifier::new(block.into()),
                Some(guids.get(&block)?),
            ),
            Step::State(state) => {
                let mut info = with_addresses(self.info.as_ref()?, far.info()?);
                if !has_addresses(&info) {
                    // The port goes down with the addresses that it has.
                    info = *self.info.as_ref()?;
                }
                info.set_port_state(state);
                set_port(info)
            }
        })
    }

    /// Takes an SMP that came from the adapter. Whether it was an answer to one of the uplink's, and if
    /// so, whether the adapter did as it was told.
    pub(super) fn take(&mut self, now: Instant, mad: &Mad) -> Option<Result<(), ()>> {
        let sent = self
            .sent
            .take_if(|sent| sent.mad.header.tid == mad.header.tid)?;
        let smp: &DirectedRouteSmp = mad.view();
        if smp.status().get() != 0 {
            self.pause = Some(now + NEAR_RETRY);
            self.info = None;
            return Some(Err(()));
        }
        match sent.step {
            Step::Read => self.info = Some(*smp.attribute()),
            Step::Addresses => {
                self.reregister = false;
                self.info = Some(without_commands(smp.attribute()));
            }
            // What a table holds now is what was written, except for what is read only there.
            Step::PKeys(block) => {
                let written: &DirectedRouteSmp = sent.mad.view();
                self.pkeys.insert(block, *written.attribute());
            }
            Step::Guids(block) => {
                let written: &DirectedRouteSmp = sent.mad.view();
                self.guids.insert(block, *written.attribute());
            }
            // The link does as it is told after the answer.
            Step::State(PortState::DOWN) => self.info = None,
            Step::State(_) => self.info = Some(without_commands(smp.attribute())),
        }
        Some(Ok(()))
    }
}

fn is_empty(keys: &PKeyTable) -> bool {
    keys.pkeys.iter().all(|key| *key == PKey::INVALID)
}

/// Whether a LID is one of a port's.
fn owns(info: &PortInfo, lid: Lid) -> bool {
    let mask = !info.lmc().mask();
    info.lid.is_unicast() && lid.get() & mask == info.lid.get() & mask
}

/// Whether a port can come up with its addresses: it has its own, and those of a subnet manager
/// elsewhere. There is none behind the adapter, and its traps to itself would be answered by nobody.
fn has_addresses(info: &PortInfo) -> bool {
    let sm = info.master_sm_lid;
    info.lid.is_unicast() && sm.is_unicast() && !owns(info, sm)
}

/// The adapter's PortInfo with the addresses of the simulated port, and what else of it its clients
/// see. The rest, such as the lanes and the speeds, is between the adapter and its own link.
fn with_addresses(near: &PortInfo, far: &PortInfo) -> PortInfo {
    let mut info = *near;
    info.lid = far.lid;
    info.set_lmc(far.lmc());
    info.master_sm_lid = far.master_sm_lid;
    info.set_master_sm_sl(far.master_sm_sl());
    info.gid_prefix = far.gid_prefix;
    info.set_subnet_timeout(far.subnet_timeout());
    let mtu = far.neighbor_mtu().clamp(Mtu::MTU_256, near.mtu_cap());
    info.set_neighbor_mtu(mtu);
    info
}

fn without_commands(info: &PortInfo) -> PortInfo {
    let mut info = *info;
    info.set_client_reregister(false);
    info
}

/// A Set(PortInfo) that leaves the link as it is, but for the logical state that it says.
fn set_port(mut info: PortInfo) -> Mad {
    info.set_phys_state(PortPhysState::NO_CHANGE);
    info.set_link_down_default(LinkDownDefaultState::NO_CHANGE);
    info.link_width_enabled = LinkWidth(0);
    info.set_link_speed_enabled(LinkSpeed::from_low_bits(0));
    info.set_operational_vls(0);
    smp(Method::SET, AttributeModifier::default(), Some(&info))
}

/// A directed-route request over one hop, which is made.
fn smp<A: SmpAttribute + Copy>(
    method: Method,
    modifier: AttributeModifier,
    value: Option<&A>,
) -> Mad {
    let header = MadHeader::new(MgmtClass::SUBN_DIRECTED_ROUTE, method, A::ID);
    let mut mad = Mad::new(header);
    mad.header.attribute_modifier = modifier;
    let smp: &mut DirectedRouteSmp = mad.view_mut();
    let routed = smp.set_path(&[1]);
    debug_assert!(routed, "one hop fits");
    smp.set_hop_pointer(1);
    if let Some(value) = value {
        *smp.attribute_mut() = *value;
    }
    mad
}

/// The packet of an SMP between neighbours.
pub(super) fn frame(mad: &Mad) -> Option<Frame> {
    Frame::of_smp(mad, Lid::PERMISSIVE, Lid::PERMISSIVE, Sl::default())
}

/// The GUIDs of a block, but for the port's own, which is not the subnet manager's to write.
pub(super) fn aliases(block: u8, guids: &GuidInfo) -> GuidInfo {
    let mut aliases = *guids;
    if block == 0 {
        aliases.guids[0] = Guid::NONE;
    }
    aliases
}
