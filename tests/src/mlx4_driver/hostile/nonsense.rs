//! What no driver does: commands, doorbells, requests and registers of nonsense.

use ib_vtime::Duration;
use mlx4_defs::bar::{Register, UAR_SIZE};
use mlx4_defs::wqe::ControlSegment;
use mlx4_defs::{Eqn, MAILBOX_SIZE, Mailbox, Opcode, Uar};
use zerocopy::FromBytes;

use super::super::{Bus, Command, GuestMemory, Input, Output};
use super::{Choices, HostileGuest};

/// Opcodes that the function knows, and some that it does not.
const OPCODES: [Opcode; 41] = [
    Opcode::QUERY_DEV_CAP,
    Opcode::QUERY_FW,
    Opcode::QUERY_ADAPTER,
    Opcode::INIT_PORT,
    Opcode::CLOSE_PORT,
    Opcode::QUERY_HCA,
    Opcode::SET_PORT,
    Opcode::SW2HW_MPT,
    Opcode::QUERY_MPT,
    Opcode::HW2SW_MPT,
    Opcode::WRITE_MTT,
    Opcode::MAP_EQ,
    Opcode::SW2HW_EQ,
    Opcode::HW2SW_EQ,
    Opcode::SW2HW_CQ,
    Opcode::HW2SW_CQ,
    Opcode::QUERY_CQ,
    Opcode::RST2INIT_QP,
    Opcode::INIT2RTR_QP,
    Opcode::RTR2RTS_QP,
    Opcode::RTS2RTS_QP,
    Opcode::SQERR2RTS_QP,
    Opcode::TO_ERR_QP,
    Opcode::RTS2SQD_QP,
    Opcode::SQD2RTS_QP,
    Opcode::TO_RST_QP,
    Opcode::QUERY_QP,
    Opcode::MAD_IFC,
    Opcode::MODIFY_CQ,
    Opcode::INIT2INIT_QP,
    Opcode::NOP,
    Opcode::SW2HW_SRQ,
    Opcode::HW2SW_SRQ,
    Opcode::QUERY_SRQ,
    Opcode::SQD2SQD_QP,
    Opcode::CONFIG_DEV,
    Opcode::ARM_SRQ,
    Opcode::QUERY_IF_STAT,
    Opcode::ALLOC_RES,
    Opcode::FREE_RES,
    Opcode::QP_ATTACH,
];

impl HostileGuest {
    /// A number that may mean something: of an object of the guest's own, or any.
    fn some_number(&mut self, choices: &mut Choices<'_>) -> u32 {
        let at = choices.index(self.talkers.len());
        let Some(talker) = self.talkers.get(at) else {
            return choices.number();
        };
        match choices.byte() % 8 {
            0..3 => talker.qpn.get(),
            3 => talker.recv_cq.get(),
            4 => talker.send_cq.get(),
            5 => talker.srq.map_or(0, |srqn| srqn.get()),
            6 => talker.qpn.get().wrapping_add(u32::from(choices.byte())),
            _ => choices.number(),
        }
    }

    /// An address that may be one of the guest's memory.
    fn some_address(&mut self, choices: &mut Choices<'_>) -> u64 {
        let page = self.memory.some_page(choices.index(usize::MAX));
        match choices.byte() % 4 {
            0 => u64::from(choices.number()) << 32 | u64::from(choices.number()),
            1 => GuestMemory::BASE + u64::from(choices.number()),
            _ => page + u64::from(choices.byte()),
        }
    }

    /// A mailbox: zeros, noise, or what a mailbox held before, with some numbers changed.
    fn some_mailbox(&mut self, choices: &mut Choices<'_>) -> Box<Mailbox> {
        let mut mailbox = Box::new(Mailbox::default());
        match choices.byte() % 4 {
            0 => {}
            1 => {
                for byte in &mut mailbox.0[..256] {
                    *byte = choices.byte();
                }
            }
            _ => {
                if let Some(inbox) = self.driver.as_mut().map(|driver| driver.core().inbox()) {
                    self.memory.read(inbox, &mut mailbox.0);
                }
            }
        }
        for _ in 0..choices.byte() % 4 {
            let value = match choices.byte() % 3 {
                0 => self.some_number(choices).to_be_bytes(),
                1 => {
                    let [.., a, b, c, d] = self.some_address(choices).to_be_bytes();
                    [a, b, c, d]
                }
                _ => choices.number().to_be_bytes(),
            };
            let at = choices.index(70) * 4;
            mailbox.0[at..at + 4].copy_from_slice(&value);
        }
        let used = 256.min(MAILBOX_SIZE);
        choices.damage(&mut mailbox.0[..used]);
        mailbox
    }

    /// A command of nonsense.
    pub(super) fn command(&mut self, bus: &mut dyn Bus, choices: &mut Choices<'_>) {
        let opcode = choices.pick(&OPCODES).filter(|_| !choices.seldom(16));
        let opcode = opcode.unwrap_or_else(|| {
            let [_, _, a, b] = choices.number().to_be_bytes();
            Opcode::new(u16::from_be_bytes([a, b]) & 0xfff)
        });
        let input = match choices.byte() % 8 {
            0 => Input::None,
            1 => Input::Value(u64::from(self.some_number(choices))),
            2 => {
                let [low, high] = [self.some_number(choices), choices.number()];
                Input::Value(u64::from(high) << 32 | u64::from(low))
            }
            3 => Input::At(self.some_address(choices)),
            _ => Input::Mailbox(self.some_mailbox(choices)),
        };
        let output = match choices.byte() % 4 {
            0 => Output::None,
            1 => Output::Value,
            2 => Output::Mailbox,
            _ => Output::At(self.some_address(choices)),
        };
        let command = Command {
            opcode,
            op_modifier: choices.byte() % 4,
            in_modifier: self.some_number(choices),
            input,
            output,
        };
        let mut bus = self.impatient(bus);
        let Some(driver) = self.driver.as_mut() else {
            return;
        };
        match driver.core().execute(&mut bus, &command) {
            Ok(_) => self.depth.accepted += 1,
            Err(error) if error.status().is_some() => self.depth.refused += 1,
            Err(_) => self.recover(&mut bus),
        }
    }

    /// A doorbell of anything.
    pub(super) fn ring_anything(&mut self, bus: &mut dyn Bus, choices: &mut Choices<'_>) {
        let number = self.some_number(choices);
        let uar = Uar::from_low_bits(128 + u32::from(choices.byte() % 8));
        let register = match choices.byte() % 4 {
            0 => Register::Eq {
                eqn: Eqn(number % 600),
            },
            1 => Register::Send { uar },
            2 => Register::Cq {
                uar,
                second: choices.seldom(4),
            },
            _ => {
                let offset = u64::from(choices.number());
                let offset = offset % (UAR_SIZE * 2048 + 8);
                let bytes = choices.number().to_be_bytes();
                let len = choices.index(5);
                return bus.bar_write(2, offset, &bytes[..len]);
            }
        };
        let words = [number.rotate_left(8), choices.number()];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        let len = if choices.seldom(2) { 8 } else { 4 };
        bus.bar_write(2, register.offset(), &bytes[..len]);
    }

    /// Requests of nonsense in a send queue, handed over as requests are.
    pub(super) fn post_anything(&mut self, bus: &mut dyn Bus, choices: &mut Choices<'_>) {
        let at = choices.index(self.talkers.len());
        let (Some(driver), Some(talker)) = (self.driver.as_mut(), self.talkers.get_mut(at)) else {
            return;
        };
        let lid = driver.port(ib_wire::PortNum(1)).info.lid;
        let way = talker.way_to(talker.address(lid));
        let Ok(work) = talker.request(driver, &way, b"nonsense to come") else {
            return;
        };
        let (qpn, count) = (talker.qpn, 1 + choices.byte() % 3);
        for _ in 0..count {
            let work = work.clone();
            let _ = driver.write_changed(qpn, &work, |bytes| {
                if choices.seldom(3) {
                    for byte in &mut bytes[8..] {
                        *byte = choices.byte();
                    }
                }
                choices.damage(bytes);
                if choices.seldom(4)
                    && let Ok((control, _)) = ControlSegment::mut_from_prefix(bytes)
                {
                    control.set_size(choices.byte() % 64);
                }
            });
        }
        let _ = driver.ring(bus, qpn);
        bus.wait(Duration::from_micros(10));
    }

    /// Overwrites something in memory: rings, records, mailboxes, whatever is there.
    pub(super) fn scribble(&mut self, choices: &mut Choices<'_>) {
        for _ in 0..1 + choices.byte() % 8 {
            let page = self.memory.some_page(choices.index(usize::MAX));
            let offset = choices.index(4096 - 8) as u64;
            let bytes = [(); 4].map(|()| choices.byte());
            self.memory.write(page + offset, &bytes);
        }
    }

    /// Takes memory from under the device, or gives it back.
    pub(super) fn remap(&mut self, choices: &mut Choices<'_>) {
        if self.unmapped.len() < 8 && choices.seldom(2) {
            let page = self.memory.some_page(choices.index(usize::MAX));
            if self.memory.set_mapped(page, false) {
                self.unmapped.push(page);
            }
        } else {
            for page in self.unmapped.drain(..) {
                self.memory.set_mapped(page, true);
            }
        }
    }

    /// Registers of the channel, of MSI-X, and configuration space.
    pub(super) fn touch_registers(&mut self, bus: &mut dyn Bus, choices: &mut Choices<'_>) {
        let value = choices.number().to_be_bytes();
        match choices.byte() % 8 {
            0..3 => bus.bar_write(2, u64::from(choices.byte() % 32), &value),
            3 => bus.bar_write(4, u64::from(choices.number() % 0x2400), &value),
            4 => {
                let offset = u16::from(choices.byte());
                let len = choices.index(5);
                bus.config_write(offset, &value[..len]);
            }
            5 => {
                let mut out = vec![0; choices.index(64)];
                bus.config_read(u16::from(choices.byte()) * 16, &mut out);
            }
            _ => {
                let mut out = vec![0; choices.index(64)];
                let bar = choices.byte() % 6;
                bus.bar_read(bar, u64::from(choices.number()), &mut out);
            }
        }
        bus.wait(Duration::from_micros(10));
    }
}
