//! Bytes of a VMM, cut anyhow, to the vfio-user server of a function, with descriptors among them.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::LazyLock;

use emulated_hca::HcaConfig;
use emulated_hca::hca::Device;
use hca_api::{FunctionId, FunctionManager, FunctionSpec, Hca, ResourceCounts};
use ib_vtime::Instant;
use ib_wire::Guid;
use rustix::event::{EventfdFlags, eventfd};
use vf_pci::PciFunction;
use vf_proxy::mlx4::{Mlx4Config, Mlx4Function};
use vhca::Slice;
use vhca_receiver::PassedFd;
use vhca_vfio_user::codec::{ANNOUNCED_FDS, Assembler, HeaderFlags, MAX_MESSAGE};
use vhca_vfio_user::{
    DoorbellChange, GuestMemory, Lent, MAX_DOORBELLS, Session, Signaller, Signals,
};

use super::hostile::Input;

const VF: FunctionId = FunctionId(1);

/// One for all inputs, as a service has it: to end it takes long.
static SIGNALLER: LazyLock<Signaller> =
    LazyLock::new(|| Signals::default().signaller().expect("asynchronous I/O"));

/// Descriptors of one input at most.
const DESCRIPTORS: usize = 64;

/// A function of an adapter that nobody else uses, with the memory of a VMM that shares it as the input says.
fn adapter(memory: &GuestMemory) -> Device {
    let mut device = Device::new(&HcaConfig::new(Guid::new(1), "fuzz"), 7);
    let mut pf = device
        .function(FunctionId::PF)
        .expect("the physical function");
    let made = pf.create_function(FunctionSpec {
        id: VF,
        node_guid: Guid::new(2),
        memory: Box::new(memory.clone()),
        quota: ResourceCounts {
            pds: 8,
            avs: 8,
            cqs: 8,
            srqs: 8,
            qps: 8,
            mrs: 8,
            mws: 8,
            attachments: 8,
        },
    });
    made.expect("a VF of the adapter");
    device
}

/// The first byte of the input and every byte behind a piece say how long the next piece is, and whether a descriptor
/// comes with it. What the session says must be a reply to what it was told, and it must end with the memory's ranges
/// disjoint, or with a reason.
pub(super) fn vfio_user(data: &[u8]) {
    let mut input = Input::new(data);
    let memory = GuestMemory::default();
    let mut device = adapter(&memory);
    let mut function = Mlx4Function::new(&Mlx4Config { vectors: 4 });
    // Memory space and bus master, so that registers answer.
    let mut hca = device.function(VF).expect("the VF");
    function.config_write(Instant::ZERO, &mut hca, 0x04, &[6, 0]);
    let vectors = function.interrupt_vectors();
    let mut session = Session::new(memory.clone(), vectors, SIGNALLER.clone())
        .with_doorbells(Box::new(|| eventfd(0, EventfdFlags::NONBLOCK)));
    let mut assembler = Assembler::new(ANNOUNCED_FDS);
    let mut left = DESCRIPTORS;
    while input.has_operation() {
        let piece = input.byte();
        let fd = (piece & 0x80 != 0 && left > 0).then(|| File::open("/dev/null"));
        let fd = fd
            .and_then(Result::ok)
            .map(OwnedFd::from)
            .map(PassedFd::from);
        left -= usize::from(fd.is_some());
        let space = assembler.space();
        assert!(!space.is_empty() && space.len() <= MAX_MESSAGE);
        let count = usize::from(piece & 0x7f).clamp(1, space.len());
        space[..count].fill_with(|| input.byte());
        let Ok(message) = assembler.filled(count, fd) else {
            return;
        };
        let Some(message) = message else { continue };
        let header = message.header;
        let mut hca = device.function(VF).expect("the VF");
        let mut lent = Lent {
            function: &mut function,
            hca: &mut hca,
            now: Instant::ZERO,
        };
        let handled = session.handle(message, &mut lent, &mut Slice::endless());
        let handled = handled.expect("there was time for all of it");
        if let Some(reply) = &handled.reply {
            assert!(!header.flags().contains(HeaderFlags::NO_REPLY));
            assert_eq!(
                reply.bytes[..4],
                [header.id.to_bytes(), header.command.to_bytes()].concat()
            );
            let size: [u8; 4] = reply.bytes[4..8].try_into().expect("four bytes");
            assert_eq!(u32::from_le_bytes(size) as usize, reply.bytes.len());
            assert!(reply.bytes.len() <= MAX_MESSAGE && reply.doorbells.len() <= MAX_DOORBELLS);
            assert!(reply.doorbells.iter().all(|at| session.event(at).is_some()));
        }
        if handled.end.is_some() {
            return;
        }
        while let Some(change) = session.poll_doorbell_change() {
            if let DoorbellChange::Added(doorbell) = change {
                session.note_rung(doorbell);
            }
        }
        session.ring(&mut lent);
        while function.poll(Instant::ZERO, &mut hca) {}
        while function.poll_event().is_some() {}
        while hca.poll_event().is_some() {}
    }
    let statistics = memory.statistics();
    assert_eq!(statistics.shared, 0, "no file was memory");
}
