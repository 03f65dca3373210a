//! Commands of the documents that boot guests, or that are for guests, as they stand there.

use std::time::Duration;

use vhca_tests::docs::{Session, blocks};

use crate::fabric::{Fabric, Manager};
use crate::ip::bring_up;

/// For the commands of one block.
const LIMIT: Duration = Duration::from_secs(300);

/// What a guest says when it is up.
const UP: &str = "vhca-guest: up";

/// The commands of the block of a document that begins with one.
pub(crate) fn block(document: &str, first: &str) -> Vec<String> {
    let blocks = blocks(document).into_iter().map(|block| block.commands);
    let mut found = blocks.filter(|commands| commands[0].starts_with(first));
    found
        .next()
        .unwrap_or_else(|| panic!("{document} has no block that begins with {first}"))
}

/// Runs a block until it has printed a text so often.
fn run(document: &str, first: &str, text: &str, times: usize) {
    let is_done = |output: &str| output.matches(text).count() == times;
    let outcome = Session::new(&[]).run_until(&block(document, first), LIMIT, is_done);
    assert!(
        outcome.failed.is_empty() && is_done(&outcome.output),
        "{document}: {outcome:#?}"
    );
}

#[test]
fn the_prepared_qemu_boots_a_guest_as_the_document_of_vmms_says() {
    run(
        "vmm-glue/vfio-user/docs/vfio-user.md",
        "tests/guest/prepare.sh",
        UP,
        1,
    );
}

#[test]
fn guests_boot_by_hand_as_the_readme_says() {
    run(
        "tests/guest/README.md",
        "tests/guest/prepare.sh",
        "vhca-guest: exit",
        1,
    );
    run("tests/guest/README.md", "cargo build --release", UP, 2);
}

#[test]
fn a_lab_starts_as_its_document_says() {
    run(
        "vmm-glue/service/docs/lab.md",
        "tests/guest/prepare.sh",
        "all guests are ready",
        1,
    );
}

#[test]
fn a_guest_has_the_commands_that_the_document_of_the_lab_names() {
    let fabric = Fabric::new(Manager::Lite, &["--topology", "two-switch", "--vfs", "1"]);
    let mut guests = fabric.guests("6.1", [("H1-1", 1), ("H2-1", 1)]);
    bring_up(&mut guests);
    let [first, _] = &mut guests;
    for command in block("vmm-glue/service/docs/lab.md", "ibstat") {
        first.told(&command);
    }
    for program in [
        "devlink dev",
        "rdma link",
        "nstat -a",
        "ethtool -i ib0",
        "dmesg --level warn",
    ] {
        assert!(!first.told(program).is_empty(), "{program}");
    }
    for program in [
        "tcpdump --version",
        "iperf3 --version",
        "perfquery --version",
    ] {
        first.told(program);
    }
}
