//! The bodies of the fuzz targets in `tests/fuzz`: each takes any bytes and must not panic.
//!
//! `cargo test` replays the corpora through the same functions.

mod agent;
mod cm;
mod hostile;
mod parsers;
mod replay;
mod sa;
mod sm;

/// A fuzz target: its name and its body.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets. The name is that of the file in `tests/fuzz/fuzz_targets` and of the folder in
/// `tests/fuzz/corpus`.
pub const TARGETS: &[Target] = &[
    ("capture", parsers::capture),
    ("cm", cm::cm),
    ("cm_messages", parsers::cm_messages),
    ("frame", parsers::frame),
    ("mad", parsers::mad),
    ("mad_agent", agent::mad_agent),
    ("notice", parsers::notice),
    ("replay", replay::replay),
    ("rmpp", parsers::rmpp),
    ("sa", sa::sa),
    ("sa_records", parsers::sa_records),
    ("sm", sm::sm),
    ("smi", parsers::smi),
    ("trace", parsers::trace),
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
