//! Memory windows of programs.

use emulated_hca::EndNode;
use hca_api::{Cause, FunctionId, FunctionManager, ResourceCounts};
use ib_wire::PortNum;
use verbs_link::abi::memory::{AllocMw, AllocMwAnswer};
use verbs_link::abi::queue_pair::QpDestination;
use verbs_link::abi::ring::{BindArguments, FlushArguments, RdmaArguments};

use super::*;

/// `IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND | IBV_ACCESS_FLUSH_GLOBAL`.
const REGION: u32 = 1 | 1 << 4 | FLUSH_GLOBAL;
/// `IBV_ACCESS_FLUSH_GLOBAL`.
const FLUSH_GLOBAL: u32 = 1 << 8;
/// `IBV_ACCESS_FLUSH_PERSISTENT`.
const FLUSH_PERSISTENT: u32 = 1 << 9;
/// `IBV_ACCESS_REMOTE_WRITE`.
const REMOTE_WRITE: u32 = 1 << 1;

/// Status of a write that is refused: the queue pair is its own peer, which fails before it answers.
const FLUSHED: u32 = 5;
const LOCAL_QP_OP: u32 = 2;

/// A program whose queue pair is connected to itself, with 4096 bytes in a region.
struct Connected {
    queues: Datagrams,
    memory: u64,
    mr: RegMrAnswer,
    posted: u64,
}

impl Connected {
    fn new() -> Self {
        let mut queues = queues_of(2, 7);
        let qp = queues.qp.into();
        let change = ModifyQp {
            dest: QpDestination {
                dlid: LID.into(),
                port_num: 1,
                ..QpDestination::default()
            },
            qp_handle: qp,
            dest_qp_num: queues.qpn.into(),
            qp_access_flags: (REMOTE_WRITE | FLUSH_GLOBAL | FLUSH_PERSISTENT).into(),
            path_mtu: 3,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            port_num: 1,
            ..ModifyQp::default()
        };
        let init = attr_mask::PKEY_INDEX | attr_mask::PORT | attr_mask::ACCESS_FLAGS;
        let path = attr_mask::AV | attr_mask::PATH_MTU | attr_mask::DEST_QPN | attr_mask::RQ_PSN;
        let responder = attr_mask::MAX_DEST_RD_ATOMIC | attr_mask::MIN_RNR_TIMER;
        let retries = attr_mask::TIMEOUT | attr_mask::RETRY_CNT | attr_mask::RNR_RETRY;
        let requester = attr_mask::SQ_PSN | attr_mask::MAX_QP_RD_ATOMIC;
        for (qp_state, mask) in [(1, init), (2, path | responder), (3, retries | requester)] {
            let change = ModifyQp {
                attr_mask: (attr_mask::STATE | mask).into(),
                qp_state,
                ..change
            };
            queues
                .process
                .command(command::MODIFY_QP, &change, 0)
                .unwrap();
        }
        let memory = queues
            .process
            .with(|_, hca| hca.allocate_dma(4096).unwrap());
        let register = RegMr {
            start: memory.addr.into(),
            length: 4096.into(),
            hca_va: memory.addr.into(),
            pd_handle: queues.pd.into(),
            access_flags: REGION.into(),
            ..RegMr::default()
        };
        let (mr, ()) = queues.process.ask(command::REG_MR, &register);
        Self {
            queues,
            memory: memory.addr,
            mr,
            posted: 0,
        }
    }

    fn alloc(&mut self, mw_type: u8) -> Result<AllocMwAnswer, Errno> {
        let allocate = AllocMw {
            pd_handle: self.queues.pd.into(),
            mw_type,
            ..AllocMw::default()
        };
        let reply = self
            .queues
            .process
            .command(command::ALLOC_MW, &allocate, 8)?;
        Ok(AllocMwAnswer::read_from_bytes(&reply.answer).unwrap())
    }

    /// Posts a request with a list of the first 8 bytes. Returns status and opcode of its completion.
    fn request(&mut self, opcode: u32, arguments: &[u8], invalidated: u32) -> (u32, u32) {
        let done = self.complete(opcode, arguments, invalidated);
        (done.status.get(), done.opcode.get())
    }

    /// As [`Self::request`]. Returns the completion.
    fn complete(&mut self, opcode: u32, arguments: &[u8], invalidated: u32) -> CompletionElement {
        let mut request = SendElement {
            opcode: opcode.into(),
            send_flags: send_flags::SIGNALED.into(),
            immediate: invalidated.to_ne_bytes(),
            ..SendElement::default()
        };
        request.arguments[..arguments.len()].copy_from_slice(arguments);
        let mut list = Vec::new();
        if opcode == opcode::RDMA_WRITE {
            (request.length, request.num_sge) = (8.into(), 1.into());
            let sge = SgeElement {
                addr: self.memory.into(),
                length: 8.into(),
                lkey: self.mr.lkey,
            };
            list.extend_from_slice(sge.as_bytes());
        } else if opcode == opcode::ATOMIC_WRITE {
            // `ibv_wr_atomic_write` puts the value in place of the list.
            request.length = 8.into();
            list.extend_from_slice(&[9; 8]);
        } else if opcode == opcode::FLUSH {
            // More than an element has room for: these bytes are the peer's.
            request.length = 2048.into();
        }
        let bytes = [request.as_bytes(), &list].concat();
        self.queues.post(self.posted, &bytes);
        let process = &mut self.queues.process;
        for _ in 0..8 {
            // A turn of the queue pair: packets to itself stay within the adapter.
            let left = process.adapter.poll_transmit(Instant::ZERO, PortNum(1));
            assert!(left.is_none());
            process.settle();
        }
        let done = self.queues.completion(self.posted);
        self.posted += 1;
        done
    }

    /// Binds a window to 64 bytes behind the first 1024, under a key.
    fn bind(&mut self, window: u32, rkey: u32) -> (u32, u32) {
        let bind = BindArguments {
            addr: (self.memory + 1024).into(),
            length: 64.into(),
            mr_lkey: self.mr.lkey,
            mw_rkey: window.into(),
            rkey: rkey.into(),
            access: (REMOTE_WRITE | FLUSH_GLOBAL | FLUSH_PERSISTENT).into(),
        };
        self.request(opcode::BIND_MW, bind.as_bytes(), 0)
    }

    fn write(&mut self, rkey: u32, offset: u64) -> u32 {
        let to = RdmaArguments {
            remote_addr: (self.memory + offset).into(),
            rkey: rkey.into(),
            ..RdmaArguments::default()
        };
        self.request(opcode::RDMA_WRITE, to.as_bytes(), 0).0
    }

    /// Flushes 2048 bytes from an offset on, or the whole region. Returns status and opcode of the completion.
    fn flush(&mut self, rkey: u32, offset: u64, (placement, selectivity): (u8, u8)) -> (u32, u32) {
        let flush = FlushArguments {
            remote_addr: (self.memory + offset).into(),
            rkey: rkey.into(),
            placement,
            selectivity,
            ..FlushArguments::default()
        };
        self.request(opcode::FLUSH, flush.as_bytes(), 0)
    }

    fn destroy(&mut self, number: u32, handle: u32) -> Result<Reply, Errno> {
        let named = HandleCommand {
            handle: handle.into(),
        };
        self.queues.process.command(number, &named, 0)
    }
}

#[test]
fn t065_t066_t067_a_program_binds_windows_by_requests_and_its_peer_writes_by_their_keys() {
    for mw_type in [1, 2] {
        let mut program = Connected::new();
        let window = program.alloc(mw_type).unwrap();
        // The upper bits are the window's, whatever the program writes there.
        let key = window.rkey.get() ^ 1;
        assert_eq!(program.bind(window.rkey.get(), key ^ 0x100), (0, 5));
        program
            .queues
            .process
            .with(|_, hca| hca.dma_write(program.memory, &[7; 8]).unwrap());
        assert_eq!(program.write(key, 1024 + 56), 0);
        let mut stored = [0; 8];
        let at = program.memory + 1024 + 56;
        program
            .queues
            .process
            .with(|_, hca| hca.dma_read(at, &mut stored).unwrap());
        assert_eq!(stored, [7; 8]);
        let to = RdmaArguments {
            remote_addr: (program.memory + 1024).into(),
            rkey: key.into(),
            ..RdmaArguments::default()
        };
        let written = program.request(opcode::ATOMIC_WRITE, to.as_bytes(), 0);
        assert_eq!(written, (0, 9));
        let at = program.memory + 1024;
        program
            .queues
            .process
            .with(|_, hca| hca.dma_read(at, &mut stored).unwrap());
        assert_eq!(stored, [9; 8]);
        assert_eq!(program.flush(key, 1024, (1, 1)), (0, 8));
        if mw_type == 2 {
            let freed = program.request(opcode::LOCAL_INV, &[], key);
            assert_eq!(freed, (0, 6));
            assert_eq!(program.write(key, 1024), FLUSHED);
        } else {
            assert_eq!(program.bind(key, key), (0, 5));
            assert_eq!(program.write(key, 1024 + 57), FLUSHED);
        }
    }
}

#[test]
fn a_program_flushes_a_range_or_a_region_and_nothing_that_has_no_such_memory() {
    let mut program = Connected::new();
    let key = program.mr.rkey.get();
    for (offset, kind) in [(0, (1, 0)), (2048, (1, 0)), (1 << 20, (1, 1))] {
        assert_eq!(program.flush(key, offset, kind), (0, 8));
    }
    assert_eq!(program.write(key, 0), FLUSHED, "the right to flush alone");
    // A byte behind the region; no placement, persistent memory, a reserved placement; by a window.
    for (offset, kind) in [
        (2049, (1, 0)),
        (0, (0, 0)),
        (0, (2, 0)),
        (0, (3, 1)),
        (0, (4, 1)),
    ] {
        let mut program = Connected::new();
        let key = program.mr.rkey.get();
        assert_eq!(program.flush(key, offset, kind).0, FLUSHED, "{kind:?}");
        let mut program = Connected::new();
        let window = program.alloc(2).unwrap().rkey.get();
        assert_eq!(program.bind(window, window), (0, 5));
        let through = program.flush(window, 1024, kind).0;
        assert_eq!(through, FLUSHED, "{kind:?}");
    }
    // A selectivity that the device does not know.
    let mut program = Connected::new();
    let key = program.mr.rkey.get();
    let failed = program.flush(key, 0, (1, 2)).0;
    assert_eq!(failed, LOCAL_QP_OP);
}

#[test]
fn memory_is_flushed_globally_by_those_with_the_right_to_it_and_never_persistent() {
    let mut program = Connected::new();
    let register = |access_flags: u32, program: &Connected| RegMr {
        start: program.memory.into(),
        length: 4096.into(),
        hca_va: program.memory.into(),
        pd_handle: program.queues.pd.into(),
        access_flags: access_flags.into(),
        ..RegMr::default()
    };
    let persistent = register(1 | FLUSH_PERSISTENT, &program);
    let refused = program
        .queues
        .process
        .command(command::REG_MR, &persistent, 16);
    assert_eq!(refused, Err(Errno::EOPNOTSUPP));
    let without = register(1 | REMOTE_WRITE, &program);
    let (mr, ()): (RegMrAnswer, ()) = program.queues.process.ask(command::REG_MR, &without);
    assert_eq!(program.write(mr.rkey.get(), 0), 0);
    assert_eq!(program.flush(mr.rkey.get(), 0, (1, 0)).0, FLUSHED);
}

#[test]
fn t065_a_refused_binding_completes_with_a_memory_window_error() {
    let mut program = Connected::new();
    let window = program.alloc(1).unwrap().rkey.get();
    assert_eq!(program.bind(window ^ 1, window), (6, 5));
    assert_eq!(program.bind(window, window).0, FLUSHED);
}

#[test]
fn a_failed_request_names_the_check_in_vendor_err() {
    type Change = fn(&mut Connected, &mut BindArguments);

    let changes: [(Change, Cause); 6] = [
        (|_, bind| bind.mw_rkey = 1.into(), Cause::NoSuchKey),
        (|_, bind| bind.mw_rkey = bind.mr_lkey, Cause::WrongObject),
        (|_, bind| bind.mr_lkey = bind.mw_rkey, Cause::WrongObject),
        (|_, bind| bind.length = 4097.into(), Cause::OutOfBounds),
        (|_, bind| bind.length = 0.into(), Cause::BadRegistration),
        (
            |program, bind| {
                let key = bind.mw_rkey.get();
                assert_eq!(program.bind(key, key), (0, 5));
            },
            Cause::NotFree,
        ),
    ];
    for (change, cause) in changes {
        let mut program = Connected::new();
        let window = program.alloc(2).unwrap().rkey;
        let mut bind = BindArguments {
            addr: program.memory.into(),
            length: 64.into(),
            mr_lkey: program.mr.lkey,
            mw_rkey: window,
            rkey: window,
            access: REMOTE_WRITE.into(),
        };
        change(&mut program, &mut bind);
        let failed = program.complete(opcode::BIND_MW, bind.as_bytes(), 0);
        let told = (failed.status.get(), failed.vendor_err.get());
        assert_eq!(told, (6, cause as u32), "{cause:?}");
        let flushed = program.complete(opcode::BIND_MW, bind.as_bytes(), 0);
        assert_eq!(
            (flushed.status.get(), flushed.vendor_err.get()),
            (FLUSHED, 0)
        );
    }
}

#[test]
fn t068_objects_of_windows_in_use_and_windows_of_other_files_are_left_alone() {
    let mut program = Connected::new();
    assert_eq!(program.alloc(0).map(|_| ()), Err(Errno::EINVAL));
    assert_eq!(program.alloc(3).map(|_| ()), Err(Errno::EINVAL));
    let window = program.alloc(2).unwrap();
    let (handle, key) = (window.mw_handle.get(), window.rkey.get());
    assert_eq!(program.bind(key, key), (0, 5));
    let region = program.mr.mr_handle.get();
    let in_use = program.destroy(command::DEREG_MR, region);
    assert_eq!(in_use, Err(Errno::EBUSY));
    let own = program.queues.process.context;
    let process = &mut program.queues.process;
    process.context = process.device.open().unwrap();
    process.command(command::GET_CONTEXT, &0_u64, 8).unwrap();
    let foreign = program.destroy(command::DEALLOC_MW, handle);
    assert_eq!(foreign, Err(Errno::EINVAL));
    program.queues.process.context = own;
    for outcome in [Ok(Reply::default()), Err(Errno::EINVAL)] {
        assert_eq!(program.destroy(command::DEALLOC_MW, handle), outcome);
    }
    assert_eq!(
        program.destroy(command::DEREG_MR, region),
        Ok(Reply::default())
    );
}

#[test]
fn windows_of_a_closed_file_go_before_their_regions() {
    let mut program = Connected::new();
    let before = program.queues.process.budget.used();
    for mw_type in [1, 2, 1] {
        let key = program.alloc(mw_type).unwrap().rkey.get();
        assert_eq!(program.bind(key, key), (0, 5));
    }
    let process = &mut program.queues.process;
    assert_eq!(
        process.budget.used(),
        before + 3 * verbs_link::budget::cost::WINDOW
    );
    let context = process.context;
    process.with(|device, hca| device.close(hca, context));
    process.settle();
    assert_eq!(process.budget.used(), 0);
    let function = process.adapter.function(FunctionId::PF).unwrap();
    let owned = function.resources(FunctionId::PF).unwrap();
    assert_eq!(owned, ResourceCounts::default());
}
