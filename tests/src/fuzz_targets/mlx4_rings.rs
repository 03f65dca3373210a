//! A guest that writes anything into the rings of its queues, and rings.

use hca_api::ResourceCounts;
use ib_vtime::Duration;
use mlx4_defs::Uar;
use mlx4_defs::bar::Register;
use mlx4_defs::cq::{ArmCommand, CqDoorbell};
use vf_proxy::mlx4::{Mlx4Config, Mlx4Function};
use zerocopy::IntoBytes;

use super::hostile::Input;
use crate::mlx4_driver::{
    Bench, Bus, Driver, FIRST_LID, GuestMemory, Owner, PAGE, Talker, TalkerSpec,
};

const PAGES: usize = 4096;
const UAR_BAR: u8 = 2;
/// Bytes that are written at a time.
const MOST: usize = 64;
/// Values that mean something where they are read: counts, owners' bits, sizes.
const TELLING: [u32; 6] = [0, 1, 0x20, 0x8000_0000, 0x8000_000a, u32::MAX];

/// A guest with a program and a part of its kernel that talk, the one with receives in a shared queue.
struct Scene {
    bench: Bench,
    memory: GuestMemory,
    driver: Driver,
    talkers: Vec<Talker>,
    /// First byte and bytes of what the talkers' queues are in, with their buffers.
    rings: (u64, usize),
}

impl Scene {
    fn new() -> Self {
        let memory = GuestMemory::new(PAGES);
        let function = Box::new(Mlx4Function::new(&Mlx4Config::default()));
        let mut bench = Bench::new(&memory, 1, function);
        let mut driver = Driver::probe(&mut bench, memory.clone()).expect("the function answers");
        let before = memory.allocated_pages();
        let first = memory.allocate_page();
        let talkers = [(Owner::User, true), (Owner::Kernel, false)]
            .map(|(owner, shared)| {
                let spec = TalkerSpec {
                    owner,
                    shared,
                    ..TalkerSpec::default()
                };
                Talker::open(&mut driver, &mut bench, &spec).expect("a talker")
            })
            .into();
        let pages = memory.allocated_pages() - before;
        Self {
            rings: (first, pages * PAGE),
            bench,
            memory,
            driver,
            talkers,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 | 1 => self.scribble(input),
            2 => self.tell(input),
            3 => self.say(input),
            4 => self.ring(input),
            5 => self.arm(input),
            6 => {
                // A driver that finds nonsense in its rings gives up, or takes it for what it is.
                let _ = self.driver.serve(&mut self.bench);
            }
            _ => self
                .bench
                .wait(Duration::from_millis(1 << (input.byte() % 10))),
        }
    }

    /// Somewhere in the rings, at a multiple of `align` and [`MOST`] bytes before their end.
    fn place(&self, input: &mut Input<'_>, align: usize) -> u64 {
        let (first, len) = self.rings;
        let offset = usize::from(input.byte()) << 16 | usize::from(input.byte()) << 8;
        let offset = (offset | usize::from(input.byte())) % (len - MOST) / align * align;
        first + offset as u64
    }

    fn scribble(&mut self, input: &mut Input<'_>) {
        let at = self.place(input, 1);
        let mut bytes = [0; MOST];
        let bytes = &mut bytes[..1 + input.index(MOST)];
        input.fill(bytes);
        self.memory.write(at, bytes);
    }

    fn tell(&mut self, input: &mut Input<'_>) {
        let at = self.place(input, 4);
        let value = input.pick(&TELLING).unwrap_or_default();
        self.memory.write(at, &value.to_be_bytes());
    }

    /// A request as it should be, from one talker to the other or itself.
    fn say(&mut self, input: &mut Input<'_>) {
        let (from, to) = (input.index(2), input.index(2));
        let address = self.talkers[to].address(FIRST_LID.into());
        let way = self.talkers[from].way_to(address);
        let message = vec![7; usize::from(input.byte())];
        // All buffers can be in use.
        let _ = self.talkers[from].say(&mut self.driver, &mut self.bench, &way, &message);
    }

    fn uar(&self, input: &mut Input<'_>) -> Uar {
        // That of the kernel, that of the program, and one of nobody.
        self.driver.uar().wrapping_add((input.byte() % 3).into())
    }

    fn ring(&mut self, input: &mut Input<'_>) {
        let uar = self.uar(input);
        let qpn = match input.byte() {
            which @ 0..200 => self.talkers[usize::from(which % 2)].qpn.get(),
            other => other.into(),
        };
        let offset = Register::Send { uar }.offset();
        self.bench.write_be32(UAR_BAR, offset, qpn << 8);
    }

    fn arm(&mut self, input: &mut Input<'_>) {
        let uar = self.uar(input);
        let talker = &self.talkers[input.index(2)];
        let cqn = if input.flag() {
            talker.send_cq
        } else {
            talker.recv_cq
        };
        let command = ArmCommand::new(input.byte() % 8);
        let doorbell = CqDoorbell::new(cqn, command, 0, u32::from(input.byte()) << 16);
        let second = false;
        let offset = Register::Cq { uar, second }.offset();
        self.bench.bar_write(UAR_BAR, offset, doorbell.as_bytes());
    }

    /// Whatever was written, a reset gives everything back.
    fn end(mut self) {
        self.bench.reset();
        assert_eq!(self.bench.owned(), ResourceCounts::default());
        assert_eq!(self.bench.function().poll_timeout(), None);
    }
}

/// Bytes and doorbells of a guest, in any order.
pub(super) fn mlx4_rings(data: &[u8]) {
    let mut input = Input::new(data);
    let mut scene = Scene::new();
    while input.has_operation() {
        scene.step(&mut input);
    }
    scene.end();
}
