//! A trunk whose other end is not there, or is slow.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use ib_vtime::Instant;
use vhca_tests::live::far_end;
use vhca_trunk::{Carrier, Security};

use crate::bench::{Bench, Case, Cure};
use crate::report::Report;

/// Timeout of the session at the far end, which is never reached.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The other end of a trunk, which answers pings and nothing else.
struct Far {
    is_slow: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Far {
    fn listen(socket: &Path) -> Self {
        let listener = UnixListener::bind(socket).unwrap();
        let [is_slow, is_over] = [true, false].map(|value| Arc::new(AtomicBool::new(value)));
        let [slow, over] = [is_slow.clone(), is_over.clone()];
        let thread = std::thread::spawn(move || answer(&listener, &slow, &over));
        Self {
            is_slow,
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

fn answer(listener: &UnixListener, is_slow: &AtomicBool, is_over: &AtomicBool) {
    let (socket, _) = listener.accept().unwrap();
    socket.set_nonblocking(true).unwrap();
    let mut carrier = Carrier::new(socket.into(), TIMEOUT, &Security::Plain).unwrap();
    let mut session = far_end("far".parse().unwrap(), TIMEOUT);
    session.report_port(false);
    while !is_over.load(Ordering::Relaxed) {
        carrier.receive(Instant::ZERO, &mut session);
        while session.poll_event().is_some() || session.poll_crossing(|_| true).is_some() {}
        // Answers are late, as over a wire that is long or full.
        let delay = if is_slow.load(Ordering::Relaxed) {
            150
        } else {
            1
        };
        std::thread::sleep(Duration::from_millis(delay));
        carrier.transmit(&mut session);
    }
}

pub(crate) fn run(report: &Report) {
    let mut bench = Bench::new(report);
    let socket = bench.path().join("trunk");
    let trunk = format!("S1/5=unix:{}", socket.display());
    bench.restart(&[
        "--topology",
        "two-switch",
        "--vfs",
        "1",
        "--site",
        "near",
        "--trunk",
        &trunk,
    ]);
    let mut far = None;
    bench.case(Case {
        fault: "service at the other end of a trunk that does not run",
        vf: "H1-1/1",
        code: "trunk_down",
        next: "whether the service at the other end runs",
        cure: Cure::Told("trunk_slow", &mut |_| far = Some(Far::listen(&socket))),
    });
    bench.case(Case {
        fault: "trunk on which pings take 150 ms",
        vf: "H2-1/1",
        code: "trunk_slow",
        next: "see the network to far",
        cure: Cure::Words(&mut |_| {
            let far = far.as_ref().unwrap();
            far.is_slow.store(false, Ordering::Relaxed);
        }),
    });
}
