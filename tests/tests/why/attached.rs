//! Faults of hosts at nodes of a stock ibsim, under a stock OpenSM.

use std::fs;

use vhca_tests::live::{Process, wait_for};

use crate::bench::{Bench, Case, Cure};
use crate::report::{Report, Row};

/// A switch, a node for the subnet manager, and one for a host of ours.
const NET: &str = "\
Switch 8 \"S-1\"
[1] \"H-SM\"[1]
[2] \"H-A\"[1]

Hca 1 \"H-SM\"
[1] \"S-1\"[1]

Hca 1 \"H-A\"
[1] \"S-1\"[2]
";

/// More VFs than ibsim's ports have places for GUIDs.
const MANY: &str = "40";

const LIMIT: std::time::Duration = std::time::Duration::from_secs(40);

/// A simulator and its OpenSM, whose programs are the bench's.
struct Simulator {
    name: String,
    ibsim: Option<Process>,
}

impl Simulator {
    fn start(&mut self, bench: &Bench<'_>) {
        let mut command = bench.shell("exec ibsim -n -s net");
        command.env("IBSIM_SOCKNAME", &self.name);
        self.ibsim = Some(Process::start(bench.path(), "ibsim", &mut command));
        let entry = format!("@{}:ctl", self.name);
        let is_open = || {
            let open = fs::read_to_string("/proc/net/unix").unwrap();
            open.contains(&entry).then_some(())
        };
        wait_for(LIMIT, is_open).expect("ibsim opens its socket");
    }

    fn start_opensm(&self, bench: &mut Bench<'_>) {
        let preload = "/usr/lib/x86_64-linux-gnu/umad2sim/libumad2sim.so";
        bench.launch(&format!(
            "IBSIM_SOCKNAME={} SIM_HOST=H-SM LD_PRELOAD={preload} OSM_CACHE_DIR=. OSM_TMP_DIR=. \
             opensm -f opensm.log -s 2",
            self.name
        ));
    }
}

pub(crate) fn run(report: &Report) {
    let mut bench = Bench::new(report);
    fs::write(bench.path().join("net"), NET).unwrap();
    let name = bench
        .path()
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    let attach = format!("ibsim:{name}/H-A");
    let serve = ["--attach", &attach, "--vfs", "2"];
    let mut simulator = Simulator { name, ibsim: None };
    bench.restart(&serve);
    not_there_yet(&mut bench, &mut simulator);
    bench.case(Case {
        fault: "simulator without a subnet manager",
        vf: "H-A/1",
        code: "no_sm",
        next: "start a subnet manager on the simulator's fabric",
        cure: Cure::Untried("the next fault comes then"),
    });
    simulator.start_opensm(&mut bench);
    bench.case(Case {
        fault: "simulator whose agents refuse GUIDs",
        vf: "H-A/1",
        code: "guids_not_taken",
        next: "--local-guids",
        cure: Cure::Words(&mut |bench| {
            bench.restart(&[&serve[..], &["--local-guids"]].concat());
        }),
    });
    for (how, fault) in [
        ("STOP", "OpenSM of a simulator stopped by SIGSTOP"),
        ("KILL", "OpenSM of a simulator killed with SIGKILL"),
    ] {
        bench.programs.last().unwrap().signal(how);
        bench.case(Case {
            fault,
            vf: "H-A/2",
            code: "sa_not_answering",
            next: "the subnet manager of the simulator's fabric",
            cure: Cure::Words(&mut |bench| match how {
                "STOP" => bench.programs.last().unwrap().signal("CONT"),
                _ => simulator.start_opensm(bench),
            }),
        });
    }
    // What the service holds of the simulator goes with the simulator.
    simulator.ibsim = None;
    bench.programs.clear();
    bench.case(Case {
        fault: "simulator that went away",
        vf: "H-A/1",
        code: "not_attached",
        next: "start the simulator",
        cure: Cure::Words(&mut |bench| {
            simulator.start(bench);
            simulator.start_opensm(bench);
        }),
    });
    bench.restart(&["--attach", &attach, "--vfs", MANY, "--local-guids"]);
    bench.case(Case {
        fault: "more VFs than the port has places for GUIDs",
        vf: "H-A/40",
        code: "guid_table_full",
        next: "fewer --vfs",
        cure: Cure::Untried("with fewer VFs there is none of that number"),
    });
}

/// A simulator that is not there when the service starts.
fn not_there_yet(bench: &mut Bench<'_>, simulator: &mut Simulator) {
    let told = bench.try_run("vhca why H-A/1");
    let listed = bench.try_run("vhca why all");
    let shown = bench.run("vhca show vfs");
    let text = "not attached";
    let is_told = told.contains(text) && listed.contains(text) && shown.contains("NOT-ATTACHED");
    simulator.start(bench);
    let comes = bench.wait_for("H-A/1", "no_sm");
    bench.tell(Row {
        fault: "simulator that is not there yet".to_owned(),
        code: "not_attached",
        told: told.trim().to_owned(),
        remedy: "start the simulator".to_owned(),
        worked: match (is_told, comes) {
            (true, Ok(_)) => Ok("the VFs are there".to_owned()),
            (_, comes) => Err(format!("{told}; {listed}; {shown}; {comes:?}")),
        },
    });
}
