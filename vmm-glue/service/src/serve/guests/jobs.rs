//! What guests were asked to do, and what came of it.

use std::collections::BTreeMap;

use ib_vtime::{Duration, Instant};
use vhca_control::{Facts, GuestReport};

use crate::serve::inventory::NamedVf;
use vhca::world::HostFunction;

/// How long the SA is waited for.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Names a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(u64);

#[derive(Debug)]
struct Job {
    deadline: Instant,
    vfs: Vec<NamedVf>,
    outcomes: BTreeMap<HostFunction, Result<Facts, String>>,
}

impl Job {
    fn is_over(&self) -> bool {
        let mut vfs = self.vfs.iter();
        vfs.all(|vf| self.outcomes.contains_key(&vf.host.vf(vf.vf)))
    }
}

/// The jobs that are under way, or of which nobody was told yet.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    jobs: BTreeMap<JobId, Job>,
    next: u64,
}

impl Jobs {
    /// Begins a job that ends at `deadline` at the latest.
    pub(super) fn begin(&mut self, deadline: Instant, vfs: &[NamedVf]) -> JobId {
        let id = JobId(self.next);
        self.next += 1;
        let job = Job {
            deadline,
            vfs: vfs.to_vec(),
            outcomes: BTreeMap::new(),
        };
        self.jobs.insert(id, job);
        id
    }

    pub(super) fn finish(&mut self, id: JobId, on: HostFunction, outcome: Result<Facts, String>) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.outcomes.entry(on).or_insert(outcome);
        }
    }

    /// Ends what nobody will answer any more.
    pub(super) fn expire(&mut self, now: Instant) {
        let late = self.jobs.values_mut().filter(|job| job.deadline <= now);
        for job in late {
            for vf in &job.vfs {
                let error = || Err("the SA did not answer in time".to_owned());
                let on = vf.host.vf(vf.vf);
                job.outcomes.entry(on).or_insert_with(error);
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let open = self.jobs.values().filter(|job| !job.is_over());
        open.map(|job| job.deadline).min()
    }

    /// Whether somebody still waits for what comes of a job.
    pub(super) fn is_open(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|job| !job.is_over())
    }

    /// What came of a job that is over.
    pub(super) fn take(&mut self, id: JobId) -> Option<Vec<GuestReport>> {
        if !self.jobs.get(&id)?.is_over() {
            return None;
        }
        let mut job = self.jobs.remove(&id)?;
        let reports = job.vfs.into_iter().filter_map(|vf| {
            let outcome = job.outcomes.remove(&vf.host.vf(vf.vf))?;
            let (facts, error) = match outcome {
                Ok(facts) => (facts, None),
                Err(error) => (Facts::new(), Some(error)),
            };
            Some(GuestReport {
                host: vf.host_name,
                vf: vf.vf.get(),
                ok: error.is_none(),
                facts,
                error,
            })
        });
        Some(reports.collect())
    }

    pub(super) fn forget(&mut self, id: JobId) {
        self.jobs.remove(&id);
    }
}
