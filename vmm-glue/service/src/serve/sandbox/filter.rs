//! The system calls that are left.
//!
//! `unsafe`: reading the number of a forbidden call where the kernel puts it.
#![expect(
    unsafe_code,
    reason = "the layout of the signal's information is the kernel's"
)]

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::ffi::{c_int, c_long, c_void};
use std::io::{self, Write};

use rustix::process::getpid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};
use vmm_sys_util::signal::register_signal_handler;

use super::{Needs, SandboxError};

/// Exit status of a service that a forbidden system call ended: as a shell tells it of one that SIGSYS killed.
const VIOLATED: c_int = 128 + libc::SIGSYS;

/// Calls that are free whatever their arguments.
const FREE: &[c_long] = &[
    // Descriptors.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_getdents64,
    libc::SYS_memfd_create,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    // Paths, as far as Landlock lets them be reached.
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_unlinkat,
    libc::SYS_symlinkat,
    libc::SYS_renameat,
    libc::SYS_linkat,
    libc::SYS_getcwd,
    // Sockets.
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    // What an event loop waits for, and how it signals.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    libc::SYS_io_cancel,
    libc::SYS_io_destroy,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    // Threads, signals to this process, and its end.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Time, randomness, and who this is.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Calls that set a mode, and where it is among their arguments: none may make a file that runs as somebody else.
const WITH_MODE: &[(c_long, u8)] = &[(libc::SYS_openat, 3), (libc::SYS_mkdirat, 2)];

/// The same for a service that opens sockets later on.
const LATER_WITH_MODE: &[(c_long, u8)] = &[(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2)];

/// Bits of a mode that have a program run as its owner or group.
const SET_ID: libc::mode_t = libc::S_ISUID | libc::S_ISGID;

/// Calls of a service that opens sockets later on and gives them to those who may connect.
const LATER: &[c_long] = &[libc::SYS_fchownat];

/// Older calls for the same, which other processors never had.
#[cfg(target_arch = "x86_64")]
const FREE_HERE: &[c_long] = &[
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_accept,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_time,
    libc::SYS_dup2,
];
#[cfg(target_arch = "x86_64")]
const WITH_MODE_HERE: &[(c_long, u8)] = &[(libc::SYS_open, 2), (libc::SYS_mkdir, 1)];
#[cfg(target_arch = "x86_64")]
const LATER_WITH_MODE_HERE: &[(c_long, u8)] = &[(libc::SYS_chmod, 1)];
#[cfg(not(target_arch = "x86_64"))]
const FREE_HERE: &[c_long] = &[];
#[cfg(not(target_arch = "x86_64"))]
const WITH_MODE_HERE: &[(c_long, u8)] = &[];
#[cfg(not(target_arch = "x86_64"))]
const LATER_WITH_MODE_HERE: &[(c_long, u8)] = &[];

/// Commands to an adapter of the host by its open file (`RDMA_VERBS_IOCTL`).
const RDMA_VERBS: u64 = 0xc018_1b01;

/// Confines all threads of this process.
pub(super) fn confine(needs: &Needs) -> Result<(), SandboxError> {
    let Ok(arch) = TargetArch::try_from(ARCH) else {
        log::warn!("sandbox: no filter of system calls for {ARCH}, so they are not confined");
        return Ok(());
    };
    register_signal_handler(libc::SIGSYS, tell_and_end)
        .map_err(|error| SandboxError::Signal(io::Error::from(error)))?;
    // The other one leaves no call that adds filters.
    apply_filter_all_threads(&without_clone3(arch)?)?;
    apply_filter_all_threads(&listed(needs, arch)?)?;
    Ok(())
}

/// Forbids all but what the service needs.
fn listed(needs: &Needs, arch: TargetArch) -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = BTreeMap::new();
    for call in FREE.iter().chain(FREE_HERE) {
        rules.insert(*call, Vec::new());
    }
    for call in later(needs, LATER) {
        rules.insert(*call, Vec::new());
    }
    if needs.attach || needs.ibsim {
        rules.insert(libc::SYS_connect, Vec::new());
    }
    let with_mode = [
        WITH_MODE,
        WITH_MODE_HERE,
        later(needs, LATER_WITH_MODE),
        later(needs, LATER_WITH_MODE_HERE),
    ];
    for (call, mode) in with_mode.into_iter().flatten() {
        let is = SeccompCmpOp::MaskedEq(SET_ID.into());
        rules.insert(*call, vec![argument(*mode, is, 0)?]);
    }
    rules.insert(libc::SYS_clone3, Vec::new());
    let equal = SeccompCmpOp::Eq;
    let unix = argument(0, equal.clone(), of(libc::AF_UNIX))?;
    let inet = argument(0, equal.clone(), of(libc::AF_INET))?;
    let domains = if needs.udp {
        vec![unix, inet]
    } else {
        vec![unix]
    };
    rules.insert(libc::SYS_socket, domains);
    // Nothing becomes executable.
    let executable = SeccompCmpOp::MaskedEq(of(libc::PROT_EXEC));
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        rules.insert(call, vec![argument(2, executable.clone(), 0)?]);
    }
    // Threads, and no processes.
    let thread = SeccompCmpOp::MaskedEq(of(libc::CLONE_THREAD));
    let clone = argument(0, thread, of(libc::CLONE_THREAD))?;
    rules.insert(libc::SYS_clone, vec![clone]);
    // Signals only to itself.
    let own = of(getpid().as_raw_nonzero().get());
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        rules.insert(call, vec![argument(0, equal.clone(), own)?]);
    }
    rules.insert(libc::SYS_prlimit64, vec![argument(0, equal.clone(), 0)?]);
    let mut requests = Vec::new();
    for request in [
        libc::FIONBIO,
        libc::FIOCLEX,
        libc::TCGETS,
        libc::TIOCGWINSZ,
        libc::TIOCOUTQ,
    ] {
        requests.push(argument(1, equal.clone(), request)?);
    }
    if needs.verbs {
        requests.push(argument(1, equal.clone(), RDMA_VERBS)?);
    }
    rules.insert(libc::SYS_ioctl, requests);
    // The names of threads, and of memory that the C library sets apart.
    let mut names = Vec::new();
    for name in [libc::PR_SET_NAME, libc::PR_SET_VMA] {
        names.push(argument(0, equal.clone(), of(name))?);
    }
    rules.insert(libc::SYS_prctl, names);
    compile(rules, SeccompAction::Trap, SeccompAction::Allow, arch)
}

/// Returns the calls of a service that opens sockets later on, or none.
const fn later<T>(needs: &Needs, calls: &'static [T]) -> &'static [T] {
    if needs.attach { calls } else { &[] }
}

/// The arguments of this call lie in memory, where no filter sees them: C libraries that are told that the kernel has no
/// such call use the one whose arguments are seen.
fn without_clone3(arch: TargetArch) -> Result<BpfProgram, seccompiler::Error> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    compile(rules, SeccompAction::Allow, missing, arch)
}

fn compile(
    rules: BTreeMap<c_long, Vec<SeccompRule>>,
    others: SeccompAction,
    these: SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, seccompiler::Error> {
    let filter = SeccompFilter::new(rules, others, these, arch)?;
    Ok(BpfProgram::try_from(filter)?)
}

fn argument(index: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::Error> {
    let condition = SeccompCondition::new(index, SeccompCmpArgLen::Dword, is, value)?;
    Ok(SeccompRule::new(vec![condition])?)
}

/// A number of the C library, of which none here is negative.
const fn of(number: c_int) -> u64 {
    number.unsigned_abs() as u64
}

/// Tells which call was forbidden, and ends the process. It allocates nothing and takes no lock.
extern "C" fn tell_and_end(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    /// The part of the information that the kernel fills for this signal (`asm-generic/siginfo.h`).
    #[repr(C)]
    struct Violation {
        signal: c_int,
        error: c_int,
        code: c_int,
        address: *const c_void,
        call: c_int,
        arch: u32,
    }

    // SAFETY: The kernel calls this for SIGSYS with information that is as large as `siginfo_t`, which begins so.
    let call = unsafe { (*info.cast::<Violation>()).call };
    let mut line = [0; 160];
    let mut rest = &mut line[..];
    let _ = writeln!(
        rest,
        "vhca: ended by its sandbox: system call {call} of {ARCH} is not allowed; if nobody attacked it, please report \
         this (--no-sandbox goes without)"
    );
    let left = rest.len();
    // SAFETY: Descriptor 2 is only borrowed for the call.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, &line[..line.len() - left]);
    // SAFETY: It ends the process without running anything of it.
    unsafe { libc::_exit(VIOLATED) }
}
