//! Debian packages of the programs that users run on a fabric.

use std::path::{Path, PathBuf};

/// Folders of programs that are not in the search path of ordinary users.
const DAEMONS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Packages, each with the beginnings of its programs' names.
const PACKAGES: [(&str, &str); 11] = [
    ("opensm", "opensm osmtest"),
    ("ibutils", "ibdiag ibdm ibtopodiff"),
    ("ibverbs-utils", "ibv_"),
    ("perftest", "ib_ raw_ethernet_"),
    ("ibsim-utils", "ibsim"),
    ("srptools", "ibsrpdm srp_daemon"),
    (
        "infiniband-diags",
        "check_lft_balance dump_fts dump_lfts dump_mfts ibaddr ibcacheedit ibcc ibfind ibhosts ibidsverify iblinkinfo \
         ibnetdiscover ibnodes ibping ibportstate ibqueryerrors ibroute ibstat ibswitches ibsysstat ibtracert perfquery \
         saquery sminfo smpdump smpquery vendstat",
    ),
    (
        "rdmacm-utils",
        "cmtime mckey rcopy rdma_client rdma_server rdma_xclient rdma_xserver riostream rping rstream ucmatose udaddy \
         udpong",
    ),
    ("libfabric-bin", "fi_"),
    ("ucx-utils", "ucx_"),
    ("openmpi-bin", "mpirun mpiexec ompi_info"),
];

/// Returns the package that has a program, if it is one that users of a fabric know.
pub(crate) fn package_of(program: &str) -> Option<&'static str> {
    let has = |programs: &str| {
        let mut names = programs.split_whitespace();
        names.any(|name| program.starts_with(name))
    };
    let found = PACKAGES.iter().find(|(_, programs)| has(programs));
    found.map(|(package, _)| *package)
}

/// Returns where a program is outside the search path of ordinary users.
pub(crate) fn daemon(program: &Path) -> Option<PathBuf> {
    let mut places = DAEMONS.iter().map(|folder| Path::new(folder).join(program));
    places.find(|place| place.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_a_fabric_have_their_packages_and_others_none() {
        for (program, package) in [
            ("opensm", Some("opensm")),
            ("ibstat", Some("infiniband-diags")),
            ("ibstatus", Some("infiniband-diags")),
            ("ibsim-run", Some("ibsim-utils")),
            ("ibv_devinfo", Some("ibverbs-utils")),
            ("ib_write_bw", Some("perftest")),
            ("rping", Some("rdmacm-utils")),
            ("ibdiagnet", Some("ibutils")),
            ("emacs", None),
        ] {
            assert_eq!(package_of(program), package, "{program}");
        }
    }
}
