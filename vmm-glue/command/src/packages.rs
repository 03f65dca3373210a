//! Debian packages of the programs that users run on a fabric.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Folders of programs that are not in the search path of ordinary users.
const DAEMONS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Search path where the environment has none, as the C library has it.
const PATH: &str = "/bin:/usr/bin";

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

/// Packages, each with the whole names of its programs: other programs' names begin with these, too.
const WHOLE: [(&str, &str); 4] = [
    ("iproute2", "rdma ip"),
    ("iperf3", "iperf3"),
    ("tshark", "tshark"),
    ("wireshark-common", "dumpcap editcap mergecap capinfos"),
];

/// Returns the package that has a program, if it is one that users of a fabric know.
pub(crate) fn package_of(program: &str) -> Option<&'static str> {
    let is_whole = |programs: &str| programs.split_whitespace().any(|name| program == name);
    let whole = WHOLE.iter().find(|(_, programs)| is_whole(programs));
    let has = |programs: &str| {
        let mut names = programs.split_whitespace();
        names.any(|name| program.starts_with(name))
    };
    let found = || PACKAGES.iter().find(|(_, programs)| has(programs));
    whole.or_else(found).map(|(package, _)| *package)
}

/// Returns where a program is outside the search path of ordinary users.
pub(crate) fn daemon(program: &Path) -> Option<PathBuf> {
    let mut places = DAEMONS.iter().map(|folder| Path::new(folder).join(program));
    places.find(|place| place.is_file())
}

/// Returns whether a folder of the search path that can be read has a program.
pub(crate) fn is_in_path(program: &Path, path: Option<&OsStr>) -> bool {
    let mut folders = env::split_paths(path.unwrap_or_else(|| PATH.as_ref()));
    folders.any(|folder| folder.join(program).symlink_metadata().is_ok())
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
            ("rdma", Some("iproute2")),
            ("rdma_client", Some("rdmacm-utils")),
            ("iperf3", Some("iperf3")),
            ("tshark", Some("tshark")),
            ("ipcs", None),
            ("emacs", None),
        ] {
            assert_eq!(package_of(program), package, "{program}");
        }
    }

    #[test]
    fn a_program_is_looked_for_in_each_folder_of_the_path() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("program"), "").unwrap();
        let path = env::join_paths([Path::new("/nonexistent"), folder.path()]).unwrap();
        assert!(is_in_path(Path::new("program"), Some(&path)));
        assert!(!is_in_path(Path::new("other"), Some(&path)));
        assert!(is_in_path(Path::new("sh"), None));
    }
}
