//! The system calls that are left to the receiver: descriptors on sockets, looks at files, and threads.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::ffi::c_long;

use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter_all_threads,
};

/// Calls that are free whatever their arguments.
const FREE: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_lseek,
    libc::SYS_readlinkat,
    libc::SYS_socketpair,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_clone3,
    libc::SYS_clone,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
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
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
];

/// Older calls for the same, which other processors never had.
#[cfg(target_arch = "x86_64")]
const FREE_HERE: &[c_long] = &[libc::SYS_readlink, libc::SYS_epoll_wait, libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const FREE_HERE: &[c_long] = &[];

/// Confines all threads of this process: other calls fail with EPERM.
pub(crate) fn confine() -> Result<(), Error> {
    let Ok(arch) = TargetArch::try_from(ARCH) else {
        return Ok(());
    };
    apply_filter_all_threads(&filter(arch)?)
}

fn filter(arch: TargetArch) -> Result<BpfProgram, Error> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> = BTreeMap::new();
    for call in FREE.iter().chain(FREE_HERE) {
        rules.insert(*call, Vec::new());
    }
    // Files are read only.
    let writes = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    let writes = u64::from(writes.unsigned_abs());
    let reads = SeccompCondition::new(
        2,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(writes),
        0,
    )?;
    rules.insert(libc::SYS_openat, vec![SeccompRule::new(vec![reads])?]);
    let refused = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    Ok(SeccompFilter::new(rules, refused, SeccompAction::Allow, arch)?.try_into()?)
}
