//! Questions to the SA at intervals, so that metrics know of one that does not answer.

use ib_vtime::{Duration, Instant};

use super::way_in::{Turn, WayIn};
use vhca::watch::Ready;

/// Time between two questions of a port: less than between two looks of Prometheus.
const INTERVAL: Duration = Duration::from_secs(10);

/// Asks the SA at intervals from each port that VFs share, as `vhca why` does.
#[derive(Debug)]
pub struct SaWatch {
    next: Instant,
}

impl SaWatch {
    /// Asks for the first time when an interval has passed.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            next: now + INTERVAL,
        }
    }
}

impl WayIn for SaWatch {
    fn start(&mut self, _turn: &mut Turn<'_>) {}

    fn handle_ready(&mut self, _turn: &mut Turn<'_>, _ready: Ready) {}

    fn flush(&mut self, turn: &mut Turn<'_>) {
        if turn.now < self.next {
            return;
        }
        self.next = turn.now + INTERVAL;
        let hosts = turn.lab.inventory.pf_hosts().map(|host| host.id).collect();
        let ports = turn.lab.ports_of(hosts);
        turn.lab.ask_sa(&ports);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::control::metrics_text;
    use crate::serve::tests::pass;
    use crate::serve::{Lab, Options, Service, TopologySpec};

    #[test]
    fn metrics_know_of_an_sa_that_is_silent_and_for_how_long() {
        let options = Options {
            topology: TopologySpec::ThreeSwitch,
            vfs: 3,
            ..Options::default()
        };
        let mut service = Service::in_virtual_time(Lab::build(&options, 1).unwrap());
        service.add_way_in(SaWatch::new(Instant::ZERO));
        let ok = "vhca_vfs{pf=\"host-a\",port=\"1\",reason=\"up\",fault=\"ok\"} 3\n";
        pass(&mut service, Duration::from_secs(11));
        let text = metrics_text(service.lab());
        assert!(text.contains(ok), "{text}");
        assert!(
            text.contains("vhca_sa_answer_age_seconds{pf=\"host-a\",port=\"1\"} 1\n"),
            "{text}"
        );
        service.lab_mut().set_link("mgmt/1", None, false).unwrap();
        // The next question is due at 20 s, and has no answer within one second. From the third on it is told all the time.
        for seconds in [11, 9] {
            pass(&mut service, Duration::from_secs(seconds));
            let text = metrics_text(service.lab());
            let silent =
                "vhca_vfs{pf=\"host-a\",port=\"1\",reason=\"up\",fault=\"sa_unreachable\"} 3\n";
            assert!(text.contains(silent), "{text}");
        }
        let text = metrics_text(service.lab());
        assert!(
            text.contains("vhca_sa_answer_age_seconds{pf=\"host-a\",port=\"1\"} 21\n"),
            "{text}"
        );
        service.lab_mut().set_link("mgmt/1", None, true).unwrap();
        pass(&mut service, Duration::from_secs(20));
        assert!(metrics_text(service.lab()).contains(ok));
    }
}
