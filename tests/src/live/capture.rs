//! What is on the fabric for a while, as tshark reads it.

use std::path::PathBuf;
use std::process::Command;

use super::{Lab, PATIENCE, Process, binary, wait_for};

/// A capture that goes on.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    file: PathBuf,
}

impl Capture {
    /// Captures what is on the links of a service's fabric.
    pub fn start(lab: &Lab) -> Self {
        let file = lab.dir().join("capture.erf");
        let mut command = Command::new(binary());
        command.args(["capture", "--tap", "fabric", "--control"]);
        command.arg(lab.dir().join("control")).arg(&file);
        let process = Process::start(lab.dir(), "capture", &mut command);
        let begun = wait_for(PATIENCE, || file.exists().then_some(()));
        assert!(begun.is_some(), "{}", process.output());
        Self { process, file }
    }

    /// Ends it.
    pub fn end(mut self) -> Packets {
        self.process.signal("INT");
        self.process.wait(PATIENCE);
        Packets(self.file)
    }
}

/// What was captured.
#[derive(Debug)]
pub struct Packets(PathBuf);

impl Packets {
    fn read(&self, arguments: &[&str]) -> String {
        let mut tshark = Command::new("tshark");
        let output = tshark
            .arg("-r")
            .arg(&self.0)
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns how many packets there are, of which tshark knows each.
    ///
    /// # Panics
    /// If one is malformed to it.
    pub fn are_flawless(&self) -> usize {
        let flaws = self.read(&["-Y", "_ws.malformed || _ws.expert.severity == error"]);
        assert_eq!(flaws, "");
        let packets = self.read(&[]);
        assert!(!packets.contains("Malformed"));
        packets.lines().count()
    }

    /// Counts the packets of TCP, each of which has right checksums to tshark.
    ///
    /// # Panics
    /// If one is wrong.
    pub fn tcp_with_right_checksums(&self) -> usize {
        let checks = [
            "-o",
            "ip.check_checksum:TRUE",
            "-o",
            "tcp.check_checksum:TRUE",
        ];
        let read = |filter: &str| self.read(&[&checks[..], &["-Y", filter]].concat());
        let all = read("tcp").lines().count();
        let right = read("tcp.checksum.status == 1 && ip.checksum.status == 1");
        assert_eq!(
            all,
            right.lines().count(),
            "{}",
            read("tcp.checksum.status == 0")
        );
        all
    }

    /// Returns the transaction ids of the requests by which a port asked the SA to join IPoIB's broadcast group of IPv4.
    pub fn broadcast_joins(&self, lid: u64) -> Vec<String> {
        let set_of_mc_member_record = "infiniband.mad.mgmtclass == 0x03 && infiniband.mad.method == 0x02 \
             && infiniband.mad.attributeid == 0x0038";
        let filter = format!("{set_of_mc_member_record} && infiniband.lrh.slid == {lid}");
        let fields = "-T fields -e infiniband.mcmemberrecord.mgid -e infiniband.mad.transactionid";
        let fields: Vec<_> = fields.split(' ').collect();
        let told = self.read(&[&["-Y", &filter], fields.as_slice()].concat());
        let broadcast = told.lines().filter_map(|line| {
            let (mgid, tid) = line.split_once('\t')?;
            mgid.ends_with(":ffff:ffff").then(|| tid.to_owned())
        });
        // Each link of its way has it.
        let mut joins: Vec<_> = broadcast.collect();
        joins.sort();
        joins.dedup();
        joins
    }
}
