//! Data of VFs on hca-linux, on bare nodes.

use std::process::Stdio;

use crate::bare::two_bare_with_verbs;
use crate::service::succeeded;

/// A PF context with a VF that has data.
const PROGRAM: &str = env!("CARGO_BIN_EXE_linux_data");

/// One with two VFs, of which the second may be in the way of the first.
const NEIGHBOURS: &str = env!("CARGO_BIN_EXE_linux_neighbours");

/// Starts a program on each of two bare nodes, which find each other by files. Returns their output.
fn run_both(program: &str, roles: [&str; 2]) -> [String; 2] {
    let served = two_bare_with_verbs();
    let start = |node: &str, role: &str, own: &str, peer: &str| {
        let mut started = served.on(node, program);
        started.args(["vhca0", "1", role]);
        started.args([own, peer].map(|file| served.dir.path().join(file)));
        started.stdout(Stdio::piped()).stderr(Stdio::piped());
        started.spawn().unwrap()
    };
    let answering = start("host-2", roles[1], "two", "one");
    let asking = start("host-1", roles[0], "one", "two");
    let said = [asking, answering].map(|program| program.wait_with_output().unwrap());
    said.each_ref().map(succeeded)
}

/// Queue pairs of the host, one for each of the VFs', on libibverbs as it is installed.
#[test]
fn vfs_on_two_bare_nodes_exchange_data() {
    let said = run_both(PROGRAM, ["ask", "answer"]);
    let asked = "\
MTU 4096, SubnetTimeOut 18
6 messages, writes and reads
the number was [100, 105, 7]
UC, UD and an end
a write beyond the region is refused: true
destroyed: (true, true), true
";
    let answered = "\
MTU 4096, SubnetTimeOut 18
the limit is 2
6 messages
true, from the peer: None
true, from the peer: Some(true)
the end, 12345678
and was reached
written: true
destroyed: (true, true), true
";
    assert_eq!(said, [asked, answered]);
}

/// A VF registers 16 MiB in one piece and in 4,096, and 256 pages, has receives for keys that it does not have, and makes and destroys queue
/// pairs: none of its calls takes long.
#[test]
fn a_vf_of_a_linux_hca_is_served_beside_one_that_registers_without_end() {
    let [said, _] = run_both(NEIGHBOURS, ["attacked", "answer"]);
    println!("{said}");
    let number = |text: &str| text.trim().parse::<f64>().unwrap();
    let times = said.lines().next().unwrap();
    let (rest, longest) = times.rsplit_once("the longest ").unwrap();
    let most = rest.rsplit_once(" in ").unwrap().1.trim_end_matches(", ");
    // Round trips. At rest 3 ms and 8 ms; a machine with other work takes its own time.
    let (most, longest) = (
        2.0 * number(most),
        2.0 * number(longest.trim_end_matches(" us")),
    );
    assert!(most <= 20_000.0 && longest <= 250_000.0, "{said}");
    let counts = said.lines().last().unwrap().split(' ');
    let counts: Vec<u64> = counts.filter_map(|word| word.parse().ok()).collect();
    let [calls, receives] = counts[..] else {
        panic!("{said}");
    };
    assert!(calls >= 1000 && receives >= 1000, "{said}");
}
