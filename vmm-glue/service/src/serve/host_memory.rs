//! How much memory this process may have: what the host has, or its control group leaves it.

use std::path::Path;

use rustix::system::sysinfo;

/// Where the unified hierarchy is mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns the bytes of memory that this process may have at most.
pub(super) fn most() -> u64 {
    let host = sysinfo();
    let host = host.totalram.saturating_mul(u64::from(host.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = |group: &Path| std::fs::read_to_string(group.join("memory.max")).ok();
    least_limit(&groups, &limit).map_or(host, |limit| limit.min(host))
}

/// Returns the least limit of the group that a process is in, as `/proc/PID/cgroup` tells it, and of those around it.
fn least_limit(groups: &str, limit: &dyn Fn(&Path) -> Option<String>) -> Option<u64> {
    // The line of the unified hierarchy begins so (cgroups(7)).
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = Path::new(CGROUPS).join(path);
    let limits = group.ancestors().filter_map(limit);
    // A group without a limit says "max".
    limits
        .filter_map(|limit| limit.trim_end().parse().ok())
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_group_around_a_process_limits_it() {
        let limits = |group: &Path| {
            let limits = [
                ("/sys/fs/cgroup/system.slice/vhca.service", "max\n"),
                ("/sys/fs/cgroup/system.slice", "4294967296\n"),
                ("/sys/fs/cgroup", "8589934592\n"),
            ];
            let limit = limits.iter().find(|(path, _)| group == Path::new(path));
            limit.map(|(_, limit)| (*limit).to_owned())
        };
        let group = "1:name=systemd:/x\n0::/system.slice/vhca.service\n";
        assert_eq!(least_limit(group, &limits), Some(4 << 30));
        assert_eq!(least_limit("0::/\n", &limits), Some(8 << 30));
        assert_eq!(least_limit("0::/user.slice\n", &|_| None), None);
        assert_eq!(least_limit("4:memory:/x\n", &limits), None);
    }

    #[test]
    fn a_process_may_have_some_memory() {
        assert!(most() > 1 << 20);
    }
}
