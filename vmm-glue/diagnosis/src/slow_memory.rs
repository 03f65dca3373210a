//! Programs whose memory makes the service wait, and with it all its clients.

use core::time::Duration;

use crate::fault::Fault;
use crate::snapshot::{OnPort, SLOW_MEMORY_REMEMBERED};

/// Returns the fault of a VF whose program has memory for which the service waited lately.
pub(crate) fn why(on: OnPort<'_>, vf: u16) -> Option<Fault> {
    let program = on.pf.vfs.get(&vf)?.program?;
    let slow = program
        .slow_memory
        .filter(|slow| slow.ago < SLOW_MEMORY_REMEMBERED)?;
    let process = match program.pid {
        Some(pid) => format!("process {pid}"),
        None => "the process that has the VF".to_owned(),
    };
    let [wait, ago] = [slow.wait, slow.ago].map(|time: Duration| time.as_secs_f64());
    let summary =
        "the service waits for memory of the VF's program, and all other VFs wait with it";
    let fault = Fault::new("program_memory_slow", summary).seen(format!(
        "{process} made the service wait {wait:.3} s for a page, {ago:.0} s ago"
    ));
    let remedy = "start it anew with its memory locked (ulimit -l, mlockall), and no buffers in files of a file server";
    Some(match program.pid {
        Some(pid) => fault.next(format!("kill {pid}")).remark(remedy),
        None => fault.next(format!("end the program; {remedy}")),
    })
}

#[cfg(test)]
mod tests {
    use ib_wire::PortNum;

    use super::*;
    use crate::snapshot::{Pf, Program, SlowMemory, Snapshot, Vf};

    fn fault_of(pid: Option<u32>, ago: Duration) -> Option<Fault> {
        let program = Program {
            pid,
            slow_memory: Some(SlowMemory {
                wait: Duration::from_millis(1250),
                ago,
            }),
            ..Program::default()
        };
        let vf = Vf {
            program: Some(program),
            ..Vf::default()
        };
        let pf = Pf {
            vfs: [(3, vf)].into(),
            ..Pf::default()
        };
        let on = OnPort {
            snapshot: &Snapshot::default(),
            pf: &pf,
            number: PortNum(1),
        };
        assert_eq!(why(on, 4), None);
        why(on, 3)
    }

    #[test]
    fn a_program_whose_memory_is_slow_is_named_for_ten_minutes() {
        let found = fault_of(Some(77), Duration::from_secs(599)).unwrap();
        assert_eq!(found.code, "program_memory_slow");
        let seen = "process 77 made the service wait 1.250 s for a page, 599 s ago";
        assert_eq!(found.seen, [seen]);
        assert!(found.next.starts_with("kill 77 # start"), "{}", found.next);
        let unnamed = fault_of(None, Duration::ZERO).unwrap();
        assert!(unnamed.next.starts_with("end the program; "));
        assert_eq!(fault_of(Some(77), SLOW_MEMORY_REMEMBERED), None);
    }
}
