//! Questions of a guest to its port's management agent, changes of the port, and what it is told.

use hca_api::{PortChange, PortState, VirtualPort};
use ib_wire::mad::{AttributeId, Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{
    CapabilityMask, GuidInfo, LidRoutedSmp, NodeDescription, NodeInfo, PKeyTable, PortInfo,
    PortState as WirePortState, SmpAttribute,
};
use ib_wire::{Guid, PKeyIndex, PortNum};
use mlx4_defs::mad_ifc::{MadIfcInput, MadIfcOutput};
use mlx4_defs::set_port::SetPort;
use mlx4_defs::{Mailbox, Opcode, Status};
use vf_proxy::mlx4::{Mlx4Config, Mlx4Function};
use zerocopy::{FromZeros, IntoBytes};

use super::hostile::Input;
use crate::mlx4_driver::{
    Bench, Command, Core, DriverError, Event, GuestMemory, Input as Given, Output,
};

const PORT: PortNum = PortNum(1);
const PROCESSORS: u16 = 1;
const PAGES: usize = 512;
/// Op modifier bit: the answer to the network.
const NETWORK_VIEW: u8 = 8;
const MANAGERS: CapabilityMask =
    CapabilityMask::IS_SM.union(CapabilityMask::IS_DEVICE_MANAGEMENT_SUPPORTED);
/// What a driver asks, and what it does not.
const ATTRIBUTES: [AttributeId; 8] = [
    NodeDescription::ID,
    NodeInfo::ID,
    PortInfo::ID,
    GuidInfo::ID,
    PKeyTable::ID,
    AttributeId::new(0xff90),
    AttributeId::new(0x0020),
    AttributeId::new(0x0012),
];

struct Scene {
    bench: Bench,
    driver: Core,
    smi: bool,
    state: PortState,
    /// What the guest was told last.
    told: Option<bool>,
    answers: usize,
    refusals: usize,
    events: usize,
}

impl Scene {
    fn new() -> Self {
        let memory = GuestMemory::new(PAGES);
        let function = Box::new(Mlx4Function::new(&Mlx4Config::default()));
        let mut bench = Bench::new(&memory, 1, function);
        let driver =
            Core::probe(&mut bench, memory.clone(), PROCESSORS).expect("the function answers");
        Self {
            bench,
            driver,
            smi: false,
            state: PortState::Active,
            told: None,
            answers: 0,
            refusals: 0,
            events: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0..4 => self.ask(input),
            4 | 5 => self.set_port(input),
            6 => self.change(input),
            _ => self.listen(),
        }
    }

    /// Gives a command; its output, or the status with which it was refused.
    fn give(&mut self, command: &Command) -> Result<Box<Mailbox>, Status> {
        match self.driver.execute(&mut self.bench, command) {
            Ok(reply) => {
                self.answers += 1;
                Ok(reply.mailbox)
            }
            Err(DriverError::Command { status, .. }) => {
                self.refusals += 1;
                Err(Status::new(status))
            }
            Err(error) => panic!("{command:?}: {error}"),
        }
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        let class = [
            MgmtClass::SUBN_LID_ROUTED,
            MgmtClass::SUBN_DIRECTED_ROUTE,
            MgmtClass::PERF,
        ];
        let class = input.pick(&class).unwrap_or_default();
        let method = [Method::GET, Method::SET, Method::TRAP_REPRESS];
        let method = input.pick(&method).unwrap_or_default();
        let attribute = input.pick(&ATTRIBUTES).unwrap_or_default();
        let mut mad = Mad::new(MadHeader::new(class, method, attribute));
        mad.header.attribute_modifier = u32::from(input.byte()).into();
        if input.flag() {
            input.damage(mad.as_mut_bytes());
        }
        let mut given = MadIfcInput {
            mad,
            ..MadIfcInput::new_zeroed()
        };
        input.fill(given.packet.as_mut_bytes());
        let (op, modifier) = (input.byte() & 0xf, port(input));
        let command = Command::new(Opcode::MAD_IFC, modifier)
            .variant(op)
            .with(&given)
            .giving(Output::Mailbox);
        let header = &mad.header;
        let own = op & NETWORK_VIEW == 0
            && header.mgmt_class == MgmtClass::SUBN_LID_ROUTED
            && header.method == Method::GET;
        match self.give(&command) {
            Ok(answer) => {
                assert!(own || self.smi, "{header:?} was answered");
                if own {
                    self.check(&mad, &answer.view::<MadIfcOutput>().mad);
                }
            }
            Err(status) => {
                let is_forbidden = !own && !self.smi && modifier & 0xff == 1;
                let expected = if is_forbidden {
                    Status::BAD_OP
                } else {
                    Status::BAD_PARAM
                };
                assert_eq!(status, expected, "{header:?} of port {modifier:#x}");
            }
        }
    }

    /// What a guest may see of its port.
    fn check(&self, asked: &Mad, answer: &Mad) {
        assert_eq!(answer.header.tid, asked.header.tid);
        if answer.header.status != MadStatus::OK {
            return;
        }
        let smp: &LidRoutedSmp = answer.view();
        match answer.header.attribute_id {
            PortInfo::ID => {
                let info: &PortInfo = smp.attribute();
                let active = info.port_state() == WirePortState::ACTIVE;
                assert!(active || info.port_state() == WirePortState::DOWN);
                assert_eq!(active, self.state == PortState::Active);
                assert_eq!(info.capability_mask.get() & MANAGERS.get(), 0);
            }
            GuidInfo::ID => {
                let others = &smp.attribute::<GuidInfo>().guids[1..];
                assert!(others.iter().all(|guid| *guid == Guid::NONE));
            }
            _ => {}
        }
    }

    fn set_port(&mut self, input: &mut Input<'_>) {
        let mut mailbox = Mailbox::default();
        let set: &mut SetPort = mailbox.view_mut();
        input.fill(set.as_mut_bytes());
        let wanted = CapabilityMask::new(set.capability_mask.get());
        let (op, modifier) = (input.byte() % 4, port(input));
        let mut command = Command::new(Opcode::SET_PORT, modifier).variant(op);
        command.input = Given::Mailbox(Box::new(mailbox));
        let is_legal = op == 0 && modifier & 0xff == 1 && wanted.get() & MANAGERS.get() == 0;
        match self.give(&command) {
            Ok(_) => {
                assert!(is_legal, "{wanted:?} of port {modifier:#x}");
                assert!(self.capabilities().contains(wanted));
            }
            Err(status) => {
                assert!(!is_legal, "{wanted:?} was refused");
                assert_eq!(status, Status::BAD_PARAM);
            }
        }
    }

    fn capabilities(&mut self) -> CapabilityMask {
        let class = MgmtClass::SUBN_LID_ROUTED;
        let given = MadIfcInput {
            mad: Mad::new(MadHeader::new(class, Method::GET, PortInfo::ID)),
            ..MadIfcInput::new_zeroed()
        };
        let command = Command::new(Opcode::MAD_IFC, PORT.0.into())
            .with(&given)
            .giving(Output::Mailbox);
        let answer = self.give(&command).expect("a guest may see its port");
        let smp: &LidRoutedSmp = answer.view::<MadIfcOutput>().mad.view();
        smp.attribute::<PortInfo>().capability_mask
    }

    /// The PF shows the guest another port, and tells it so.
    fn change(&mut self, input: &mut Input<'_>) {
        let states = [PortState::Active, PortState::Down, PortState::Init];
        self.state = input.pick(&states).unwrap_or_default();
        self.smi = input.flag();
        let view = VirtualPort {
            state: self.state,
            pkeys: vec![Some(PKeyIndex(0)), None],
            smi_enabled: self.smi,
        };
        self.bench.show_port(PORT, view);
        let bits = u16::from(input.byte());
        self.bench
            .notify_port(PORT, PortChange::from_bits_truncate(bits));
    }

    /// The guest serves its interrupts. Of its port's state it hears in turns.
    fn listen(&mut self) {
        self.give(&Command::new(Opcode::NOP, 0x1f))
            .expect("nothing is done");
        while let Some(event) = self.driver.poll_event() {
            self.events += 1;
            match event {
                Event::PortChange { port, active } => {
                    assert_eq!(port, PORT);
                    assert_ne!(self.told, Some(active), "told twice");
                    self.told = Some(active);
                }
                Event::PortManagement { port, changed, .. } => {
                    assert_eq!(port, PORT);
                    assert_eq!(changed & 0b1_0001, 0, "the SM's address was told");
                }
                other => panic!("{other:?}"),
            }
        }
        let active = self.state == PortState::Active;
        assert!(self.told.is_none_or(|told| told == active));
    }
}

/// Mostly the port that there is.
fn port(input: &mut Input<'_>) -> u32 {
    let byte = u32::from(input.byte());
    if byte < 0xe0 { 1 | byte << 16 } else { byte }
}

fn play(data: &[u8]) -> Scene {
    let mut input = Input::new(data);
    let mut scene = Scene::new();
    let resets = scene.bench.resets();
    while input.has_operation() {
        scene.step(&mut input);
    }
    scene.listen();
    assert_eq!(scene.bench.resets(), resets, "a command reset the function");
    scene
}

pub(super) fn mlx4_ports(data: &[u8]) {
    play(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_answered_refused_and_told() {
        let scene = play(include_bytes!("../../fuzz/corpus/mlx4_ports/start"));
        assert!(
            scene.answers > 6 && scene.refusals == 0,
            "{}",
            scene.refusals
        );
        let scene = play(include_bytes!("../../fuzz/corpus/mlx4_ports/forbidden"));
        assert!(scene.refusals >= 4, "{}", scene.refusals);
        let scene = play(include_bytes!("../../fuzz/corpus/mlx4_ports/flaps"));
        assert!(scene.events >= 5, "{}", scene.events);
    }
}
