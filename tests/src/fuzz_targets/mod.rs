//! The bodies of the fuzz targets in `tests/fuzz`: each takes any bytes and must not panic.
//!
//! `cargo test` replays the corpora through the same functions.

mod agent;
mod arp;
mod cm;
mod cm_messages;
mod cm_paravirt;
mod guids;
mod hostile;
mod ibsim_server;
mod ibsim_uplink;
mod mcast;
mod mlx4_device;
mod mlx4_ports;
mod mlx4_rings;
mod notices;
mod parsers;
mod paths;
mod port_mux;
mod replay;
mod sa;
mod sa_side;
mod sm;
mod tids;
mod trunk;
mod trunk_rings;
mod umad_server;
mod verbs;
mod vfio_user;

/// A fuzz target: its name and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets. The name is that of the file in `tests/fuzz/fuzz_targets` and of the folder in
/// `tests/fuzz/corpus`.
pub const TARGETS: &[Target] = &[
    ("arp", arp::arp),
    ("capture", parsers::capture),
    ("cm", cm::cm),
    ("cm_messages", parsers::cm_messages),
    ("cm_paravirt", cm_paravirt::cm_paravirt),
    ("frame", parsers::frame),
    ("guids", guids::guids),
    ("ibsim_server", ibsim_server::ibsim_server),
    ("ibsim_uplink", ibsim_uplink::ibsim_uplink),
    ("mad", parsers::mad),
    ("mad_agent", agent::mad_agent),
    ("mcast", mcast::mcast),
    ("mlx4_commands", mlx4_device::mlx4_commands),
    ("mlx4_device", mlx4_device::mlx4_device),
    ("mlx4_ports", mlx4_ports::mlx4_ports),
    ("mlx4_rings", mlx4_rings::mlx4_rings),
    ("notice", parsers::notice),
    ("notices", notices::notices),
    ("path_cache", paths::path_cache),
    ("port_mux", port_mux::port_mux),
    ("rdma_cm", verbs::rdma_cm),
    ("replay", replay::replay),
    ("rmpp", parsers::rmpp),
    ("sa", sa::sa),
    ("sa_records", parsers::sa_records),
    ("sm", sm::sm),
    ("smi", parsers::smi),
    ("tids", tids::tids),
    ("topology_file", parsers::topology_file),
    ("trace", parsers::trace),
    ("trunk", trunk::trunk),
    ("trunk_rings", trunk_rings::trunk_rings),
    ("umad_server", umad_server::umad_server),
    ("uverbs_commands", verbs::uverbs_commands),
    ("uverbs_rings", verbs::uverbs_rings),
    ("verbs_questions", verbs::verbs_questions),
    ("vfio_user", vfio_user::vfio_user),
];

/// Runs the target of a name.
///
/// # Panics
/// If there is no such target, or the target finds a fault.
pub fn run(name: &str, data: &[u8]) {
    let (_, body) = TARGETS
        .iter()
        .find(|(target, _)| *target == name)
        .expect("the target is in the table");
    body(data);
}
