//! Fault injection: breaks a running service in every way that `vhca why` knows, holds `vhca why` and `vhca show vfs` to
//! the cause, and does what they say is to be done next.
//!
//! The services, the OpenSM and the simulators are real processes. Those programs come from Debian packages, which
//! `tests/run.sh` installs: opensm, ibsim-utils, infiniband-diags.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails where its surroundings do"
)]

mod attached;
mod bench;
mod embedded;
mod opensm;
mod options;
mod report;
mod tables;
mod trunks;
mod virtual_time;
mod vmms;

use report::Report;

#[test]
fn every_fault_is_told_with_its_cause_and_a_remedy_that_works() {
    let collected = Report::default();
    let report = &collected;
    let all_ended = std::thread::scope(|scope| {
        let groups: [fn(&Report); 8] = [
            embedded::run,
            opensm::run,
            attached::run,
            vmms::run,
            options::run,
            virtual_time::run,
            tables::run,
            trunks::run,
        ];
        let groups = groups.map(|group| scope.spawn(move || group(report)));
        groups.into_iter().all(|group| group.join().is_ok())
    });
    collected.finish();
    assert!(all_ended, "a group of faults ended before its time");
}
