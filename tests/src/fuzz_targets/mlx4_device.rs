//! A guest's driver of an mlx4 function, and what no driver does.

use hca_api::ResourceCounts;
use mlx4_defs::{Mailbox, Opcode};
use vf_proxy::mlx4::{Mlx4Config, Mlx4Function};

use super::hostile::{Input, remember};
use crate::mlx4_driver::hostile::{Choices, Depth, HostileGuest};
use crate::mlx4_driver::{
    Bench, Bus, Command, Core, GuestMemory, Input as CommandInput, Output, QUOTA,
};

/// Pages of the guest.
const PAGES: usize = 2048;

/// Steps of one input at most: each can be a whole probe.
const STEPS: usize = 300;

/// Processors of the guest.
const PROCESSORS: u16 = 1;

fn bench(memory: &GuestMemory) -> Bench {
    let function = Mlx4Function::new(&Mlx4Config { vectors: 3 });
    Bench::new(memory, 1, Box::new(function))
}

fn check(bench: &mut Bench) {
    let owned = bench.owned();
    assert!(HostileGuest::is_within(&owned, &QUOTA), "{owned:?}");
}

/// The machine is reset: nothing is left.
fn wind_down(bench: &mut Bench) {
    bench.reset();
    assert_eq!(bench.owned(), ResourceCounts::default());
}

/// A guest that is a driver and then is not: no input makes the device panic, owns more than its quota,
/// or leaves something behind a reset.
pub(super) fn mlx4_device(data: &[u8]) {
    play_guest(data);
}

fn play_guest(data: &[u8]) -> Depth {
    let memory = GuestMemory::new(PAGES);
    let mut bench = bench(&memory);
    let mut hostile = HostileGuest::new(memory);
    let mut rest = data.iter();
    for _ in 0..STEPS {
        if rest.len() == 0 {
            break;
        }
        let mut choices = Choices::new(|| rest.next().copied().unwrap_or(0));
        hostile.step(&mut bench, &mut choices);
        check(&mut bench);
    }
    wind_down(&mut bench);
    hostile.depth
}

/// Opcodes that an input names by one byte; the rest of the bytes are unknown opcodes.
const OPCODES: [Opcode; 32] = [
    Opcode::ALLOC_RES,
    Opcode::FREE_RES,
    Opcode::WRITE_MTT,
    Opcode::SW2HW_MPT,
    Opcode::QUERY_MPT,
    Opcode::HW2SW_MPT,
    Opcode::SW2HW_EQ,
    Opcode::HW2SW_EQ,
    Opcode::MAP_EQ,
    Opcode::SW2HW_CQ,
    Opcode::HW2SW_CQ,
    Opcode::MODIFY_CQ,
    Opcode::SW2HW_SRQ,
    Opcode::HW2SW_SRQ,
    Opcode::QUERY_SRQ,
    Opcode::ARM_SRQ,
    Opcode::RST2INIT_QP,
    Opcode::INIT2RTR_QP,
    Opcode::RTR2RTS_QP,
    Opcode::RTS2RTS_QP,
    Opcode::RTS2SQD_QP,
    Opcode::SQD2RTS_QP,
    Opcode::SQD2SQD_QP,
    Opcode::SQERR2RTS_QP,
    Opcode::TO_ERR_QP,
    Opcode::TO_RST_QP,
    Opcode::QUERY_QP,
    Opcode::QP_ATTACH,
    Opcode::MAD_IFC,
    Opcode::SET_PORT,
    Opcode::QUERY_IF_STAT,
    Opcode::QUERY_FUNC_CAP,
];

/// A lower driver that gives any command.
struct Scene {
    bench: Bench,
    memory: GuestMemory,
    core: Core,
    /// Numbers that the device gave.
    numbers: Vec<u32>,
    /// Pages for queues.
    pages: Vec<u64>,
    accepted: usize,
}

impl Scene {
    fn number(&self, input: &mut Input<'_>) -> u32 {
        match input.byte() {
            low @ 0..128 => u32::from(low),
            128..224 => input.pick(&self.numbers).unwrap_or(0),
            _ => u32::from_le_bytes([(); 4].map(|()| input.byte())),
        }
    }

    /// Bytes of the input, with numbers and addresses that mean something at some places.
    fn mailbox(&self, input: &mut Input<'_>) -> Box<Mailbox> {
        let mut mailbox = Box::new(Mailbox::default());
        input.fill(&mut mailbox.0);
        for _ in 0..input.byte() % 8 {
            let at = input.index(64) * 4;
            let value = if input.flag() {
                self.number(input).to_be_bytes()
            } else {
                let present = u64::from(input.flag());
                let page = input.pick(&self.pages).unwrap_or(0) | present;
                let [high @ .., a, b, c, d] = page.to_be_bytes();
                mailbox.0[at..at + 4].copy_from_slice(&high);
                [a, b, c, d]
            };
            mailbox.0[at + 4..at + 8].copy_from_slice(&value);
        }
        mailbox
    }

    /// Gives a command. Whether the driver can go on.
    fn command(&mut self, input: &mut Input<'_>) -> bool {
        let opcode = usize::from(input.byte());
        let opcode = OPCODES.get(opcode % 40).copied();
        let opcode = opcode.unwrap_or_else(|| Opcode::new(u16::from(input.byte()) << 3));
        let kind = input.byte();
        let command = Command {
            opcode,
            op_modifier: kind >> 6,
            in_modifier: self.number(input),
            input: match kind % 4 {
                0 => CommandInput::None,
                1 => CommandInput::Value(
                    u64::from(self.number(input)) << 32 | u64::from(self.number(input)),
                ),
                2 => CommandInput::Mailbox(self.mailbox(input)),
                _ => CommandInput::At(input.pick(&self.pages).unwrap_or(1)),
            },
            output: match kind >> 2 & 3 {
                0 | 1 => Output::Value,
                2 => Output::Mailbox,
                _ => Output::At(input.pick(&self.pages).unwrap_or(u64::MAX)),
            },
        };
        match self.core.execute(&mut self.bench, &command) {
            Ok(reply) => {
                self.accepted += 1;
                if command.output == Output::Value {
                    let [.., a, b, c, d] = reply.value.to_be_bytes();
                    remember(&mut self.numbers, u32::from_be_bytes([a, b, c, d]));
                }
                true
            }
            Err(error) => error.status().is_some(),
        }
    }

    fn doorbell(&mut self, input: &mut Input<'_>) {
        let number = self.number(input);
        let offset = u64::from(self.number(input)) << (input.byte() % 16);
        let [a, b, c, d] = number.to_be_bytes();
        self.bench
            .bar_write(2, offset, &[a, b, c, d, b, c, d, input.byte()]);
    }

    fn step(&mut self, input: &mut Input<'_>) -> bool {
        match input.byte() % 8 {
            0..6 => self.command(input),
            6 => {
                self.doorbell(input);
                true
            }
            _ => {
                let page = input.pick(&self.pages).unwrap_or(GuestMemory::BASE);
                let mut bytes = [0; 64];
                input.fill(&mut bytes);
                let offset = input.index(63) as u64 * 64;
                self.memory.write(page + offset, &bytes);
                true
            }
        }
    }
}

/// Commands and doorbells of any bytes, behind a probe: no input makes the device panic, owns more than
/// its quota, or leaves something behind a reset.
pub(super) fn mlx4_commands(data: &[u8]) {
    play_commands(data);
}

fn play_commands(data: &[u8]) -> usize {
    let memory = GuestMemory::new(PAGES);
    let mut bench = bench(&memory);
    let mut input = Input::new(data);
    let Ok(core) = Core::probe(&mut bench, memory.clone(), PROCESSORS) else {
        unreachable!("nothing was done to the function");
    };
    let mut scene = Scene {
        pages: memory.allocate_pages(16),
        bench,
        memory,
        core,
        numbers: Vec::new(),
        accepted: 0,
    };
    while input.has_operation() {
        if !scene.step(&mut input) {
            break;
        }
        check(&mut scene.bench);
    }
    wind_down(&mut scene.bench);
    scene.accepted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_get_deep() {
        let guest = play_guest(include_bytes!(
            "../../fuzz/corpus/mlx4_device/connections-1"
        ));
        println!("{guest:?}");
        assert!(guest.probes > 0 && guest.talkers > 0 && guest.steps > 10);
        assert!(guest.connections > 0 && guest.messages > 0);
        let accepted = play_commands(include_bytes!("../../fuzz/corpus/mlx4_commands/objects"));
        assert_eq!(accepted, 9);
    }
}
