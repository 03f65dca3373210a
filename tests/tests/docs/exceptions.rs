//! Commands that the test of the documents does not run.

/// Commands of a document that are not run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exception {
    pub(crate) document: &'static str,
    /// Beginning of the commands.
    pub(crate) command: &'static str,
    #[expect(dead_code, reason = "it is for readers")]
    pub(crate) reason: &'static str,
}

const fn not_run(document: &'static str, command: &'static str, reason: &'static str) -> Exception {
    Exception {
        document,
        command,
        reason,
    }
}

const SUITE: &str = "runs the tests, of which this is one";
const LONG: &str = "measures for minutes";
const GUESTS: &str = "the guest suite runs it";

pub(crate) const EXCEPTIONS: &[Exception] = &[
    not_run("README.md", "tests/run.sh", SUITE),
    not_run(
        "README.md",
        "tests/guest/prepare.sh",
        "tests/run.sh runs it",
    ),
    not_run("README.md", "cargo run --release -- lab", GUESTS),
    not_run("README.md", "target/release/vhca console", GUESTS),
    not_run("CONTRIBUTING.md", "tests/run.sh", SUITE),
    not_run("BENCHMARKS.md", "", LONG),
    not_run("vmm-glue/exercises/docs/bench.md", "", LONG),
    not_run(
        "tests/MUTATION.md",
        "",
        "takes hours, and installs cargo-mutants",
    ),
    not_run(
        "tests/fuzz/README.md",
        "",
        "takes a minute for each target, and a nightly toolchain",
    ),
    not_run(
        "tests/guest/README.md",
        "tests/guest/prepare.sh bullseye",
        "downloads 220 MB",
    ),
    not_run("tests/guest/README.md", "tests/guest/", GUESTS),
    not_run("tests/guest/README.md", "cargo build --release", GUESTS),
    not_run("tests/guest/README.md", "target/release/vhca serve", GUESTS),
    not_run(
        "tests/guest/README.md",
        "cargo test -p vhca-tests --test guest",
        SUITE,
    ),
    not_run(
        "tests/guest/README.md",
        "VHCA_GUEST_FULL=1 cargo test",
        SUITE,
    ),
    not_run("vmm-glue/service/docs/lab.md", "", GUESTS),
    not_run(
        "vmm-glue/service/docs/serve.md",
        "vhca serve --access",
        "names users and a group of its own",
    ),
    not_run(
        "vmm-glue/service/docs/operations.md",
        "vmm-glue/service/packaging/build-deb.sh",
        "the suite of the package runs it",
    ),
    not_run("vmm-glue/vfio-user/docs/storage.md", "", GUESTS),
    not_run(
        "vmm-glue/vfio-user/docs/vfio-user.md",
        "tests/guest/prepare.sh",
        "tests/run.sh runs it",
    ),
    not_run(
        "vmm-glue/vfio-user/docs/vfio-user.md",
        "args=$(vhca qemu-args H1-1/1 --memory 512)",
        GUESTS,
    ),
    not_run(
        "vmm-glue/vfio-user/docs/vfio-user.md",
        "echo 1 > /sys/bus",
        GUESTS,
    ),
];
