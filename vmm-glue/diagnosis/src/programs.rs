//! Programs that have a VF.

use crate::snapshot::Program;

/// Bytes of a page of a ring.
const PAGE: u64 = 4096;

impl Program {
    /// Returns the facts of the program in a sentence.
    pub(crate) fn seen(&self) -> String {
        let Self {
            queue_pairs,
            outstanding,
            waiting,
            dropped_events,
            memory,
            memory_most,
            ..
        } = self;
        let process = match self.pid {
            Some(pid) => format!("process {pid}"),
            None => "a process".to_owned(),
        };
        let since = self.since.as_secs_f64();
        let mut seen = format!(
            "{process} has had the VF for {since:.1} s, with {queue_pairs} queue pairs and {outstanding} sends under way"
        );
        if *waiting > 0 {
            seen += &format!("; {waiting} queue pairs wait for room");
        }
        if *dropped_events > 0 {
            seen += &format!("; it has lost {dropped_events} events, since it does not read them");
        }
        if memory_most.saturating_sub(*memory) < PAGE {
            seen += &format!("; its {memory_most} bytes of memory are used up (program_memory)");
        }
        seen
    }
}
