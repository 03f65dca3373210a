//! Data of VFs on hca-linux, on bare nodes.

use std::process::Stdio;

use crate::bare::two_bare_with_verbs;
use crate::service::succeeded;

/// A PF context with a VF that has data.
const PROGRAM: &str = env!("CARGO_BIN_EXE_linux_data");

/// Queue pairs of the host, one for each of the VFs', on libibverbs as it is installed.
#[test]
fn vfs_on_two_bare_nodes_exchange_data() {
    let served = two_bare_with_verbs();
    let start = |node: &str, role: &str, own: &str, peer: &str| {
        let mut program = served.on(node, PROGRAM);
        program.args(["vhca0", "1", role]);
        program.args([own, peer].map(|file| served.dir.path().join(file)));
        program.stdout(Stdio::piped()).stderr(Stdio::piped());
        program.spawn().unwrap()
    };
    let answering = start("host-2", "answer", "two", "one");
    let asking = start("host-1", "ask", "one", "two");
    let said = [asking, answering].map(|program| program.wait_with_output().unwrap());
    let said = said.each_ref().map(succeeded);
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
