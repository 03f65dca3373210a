use std::os::fd::{AsFd, OwnedFd};

use ib_trunk::{CloseReason, Hello, Session, SessionConfig, SessionEvent};
use ib_vtime::{Duration, Instant};
use ib_wire::Guid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Carrier, Connected, Door, RingParts, Security, Signals, TrunkAddress, TrunkListener};

const TIMEOUT: Duration = Duration::from_secs(30);

fn session(site: &str) -> Session {
    let hello = Hello {
        site: site.parse().unwrap(),
        node_guid: Guid::NONE,
        port: 1,
    };
    let timeout = TIMEOUT;
    Session::new(Instant::ZERO, SessionConfig { hello, timeout })
}

#[test]
fn addresses_are_read_and_written_and_others_are_refused() {
    for text in [
        "unix:/run/x",
        "vhost:/run/x",
        "tcp:spine-0:18600",
        "tcp:[::]:1",
        "tcp:10.0.0.1:65535",
        "tls:spine-0:18600",
        "tls:[::]:1",
    ] {
        let address: TrunkAddress = text.parse().unwrap();
        assert_eq!(address.to_string(), text);
    }
    for text in [
        "",
        "unix:",
        "vhost:",
        "tcp:",
        "tcp:host",
        "tcp:host:0",
        "tcp::1",
        "tcp:::1",
        "tls:host",
        "udp:host:1",
        "host:1",
    ] {
        let error = text.parse::<TrunkAddress>().unwrap_err().to_string();
        assert!(error.contains("tcp:HOST:PORT"), "{error}");
    }
}

#[test]
fn plain_bytes_are_exposed_beyond_the_machine_alone() {
    for (text, is_exposed) in [
        ("unix:/run/x", false),
        ("vhost:/run/x", false),
        ("tls:spine:1", false),
        ("tcp:localhost:1", false),
        ("tcp:127.0.0.1:1", false),
        ("tcp:[::1]:1", false),
        ("tcp:[::]:1", true),
        ("tcp:0.0.0.0:1", true),
        ("tcp:spine:1", true),
    ] {
        let address: TrunkAddress = text.parse().unwrap();
        assert_eq!(address.is_exposed(), is_exposed, "{text}");
    }
}

/// Waits until a descriptor can be read.
fn wait_for(fd: &impl AsFd) {
    poll(&mut [PollFd::new(fd, PollFlags::IN)], None).unwrap();
}

/// Waits for the answer of a door to order 7.
fn answer(door: &Door) -> Result<Connected, String> {
    wait_for(door);
    let answer = door.answer().unwrap().unwrap();
    assert_eq!(answer.number, 7);
    answer.connected
}

/// Connects through a door in a thread.
fn connected(address: &TrunkAddress) -> Result<OwnedFd, String> {
    let door = Door::in_thread().unwrap();
    door.order(7, address).unwrap();
    match answer(&door)? {
        Connected::Socket(socket) => Ok(socket),
        Connected::Rings(parts) => panic!("{parts:?}"),
    }
}

#[test]
fn sessions_open_and_close_over_both_kinds_of_connections() {
    let dir = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let unix = format!("unix:{}", dir.path().join("trunk").display());
    for text in [unix, format!("tcp:localhost:{port}")] {
        let address: TrunkAddress = text.parse().unwrap();
        let refused = connected(&address).unwrap_err();
        assert!(!refused.is_empty(), "{text}");
        let listener = TrunkListener::bind(&address).unwrap();
        let near = connected(&address).unwrap();
        wait_for(&listener);
        let far = listener.accept().unwrap().unwrap();
        assert!(TrunkListener::bind(&address).is_err(), "{text}");
        let mut carriers =
            [near, far].map(|socket| Carrier::new(socket, TIMEOUT, &Security::Plain).unwrap());
        let mut sessions = ["a", "b"].map(session);
        for (carrier, session) in carriers.iter_mut().zip(&mut sessions) {
            assert!(carrier.transmit(session));
        }
        for (carrier, session) in carriers.iter_mut().zip(&mut sessions) {
            wait_for(carrier);
            assert!(carrier.receive(Instant::ZERO, session));
            assert!(matches!(
                session.poll_event(),
                Some(SessionEvent::Opened(_))
            ));
        }
        sessions[0].close(CloseReason::Stopping);
        assert!(carriers[0].transmit(&mut sessions[0]));
        let [near, mut far] = carriers;
        drop(near);
        let stopped = SessionEvent::Closed(CloseReason::Stopping);
        let mut events = Vec::new();
        while !sessions[1].is_closed() {
            wait_for(&far);
            far.receive(Instant::ZERO, &mut sessions[1]);
            events.extend(sessions[1].poll_event());
        }
        assert_eq!(events, [stopped], "{text}");
    }
}

#[test]
fn a_socket_that_a_service_left_behind_is_replaced_and_other_files_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name| TrunkAddress::Unix(dir.path().join(name));
    drop(TrunkListener::bind(&at("left")).unwrap());
    TrunkListener::bind(&at("left")).unwrap();
    std::fs::write(dir.path().join("file"), "mine").unwrap();
    assert!(TrunkListener::bind(&at("file")).is_err());
    assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"mine");
}

/// Returns the parts of both ends of a trunk over queues that two doors have set up.
fn set_up() -> [RingParts; 2] {
    let dir = tempfile::tempdir().unwrap();
    let address = TrunkAddress::Vhost(dir.path().join("trunk"));
    let listener = TrunkListener::bind(&address).unwrap();
    let doors = [(); 2].map(|()| Door::in_thread().unwrap());
    let [near, far] = &doors;
    near.order(7, &address).unwrap();
    wait_for(&listener);
    let front_end = listener.accept().unwrap().unwrap();
    far.order_set_up(7, &front_end).unwrap();
    drop(front_end);
    doors.each_ref().map(|door| match answer(door).unwrap() {
        Connected::Rings(parts) => parts,
        Connected::Socket(socket) => panic!("{socket:?}"),
    })
}

/// Returns the carriers of both ends of a trunk over queues, and their sessions, which are open.
fn over_rings() -> ([Carrier; 2], [Session; 2]) {
    let [driver, device] = set_up();
    let signals = Signals::new().unwrap();
    let carriers = [driver, device].map(|parts| Carrier::over_rings(parts, &signals).unwrap());
    let (mut carriers, mut sessions) = (carriers, ["a", "b"].map(session));
    for (carrier, session) in carriers.iter_mut().zip(&mut sessions) {
        assert_eq!(carrier.establish(), Ok(true));
        assert!(carrier.transmit(session));
    }
    for (carrier, session) in carriers.iter_mut().zip(&mut sessions) {
        wait_for(carrier);
        assert!(carrier.receive(Instant::ZERO, session));
        let event = session.poll_event();
        assert!(matches!(event, Some(SessionEvent::Opened(_))), "{event:?}");
    }
    (carriers, sessions)
}

#[test]
fn sessions_open_over_queues_and_close_with_the_reason_of_the_other_end() {
    for closing in [0, 1] {
        let (mut carriers, mut sessions) = over_rings();
        sessions[closing].close(CloseReason::Stopping);
        assert!(carriers[closing].transmit(&mut sessions[closing]));
        let [a, b] = carriers;
        let (closed, mut other) = if closing == 0 { (a, b) } else { (b, a) };
        drop(closed);
        let session = &mut sessions[1 - closing];
        while !session.is_closed() {
            wait_for(&other);
            other.receive(Instant::ZERO, session);
        }
        let mut events = core::iter::from_fn(|| session.poll_event());
        let stopped = SessionEvent::Closed(CloseReason::Stopping);
        assert_eq!(events.by_ref().last(), Some(stopped));
    }
}

#[test]
fn queues_with_traffic_are_looked_at_without_signals_for_a_while_and_then_awaited() {
    let is_ready = |carrier: &Carrier| {
        let mut watched = [PollFd::new(carrier, PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).unwrap() > 0
    };
    for receiving in [0, 1] {
        let (mut carriers, mut sessions) = over_rings();
        let send = |carriers: &mut [Carrier; 2], sessions: &mut [Session; 2], enabled| {
            sessions[1 - receiving].report_port(enabled);
            assert!(carriers[1 - receiving].transmit(&mut sessions[1 - receiving]));
        };
        let event = |sessions: &mut [Session; 2]| sessions[receiving].poll_event();
        let (now, forever) = (Instant::ZERO, Duration::from_secs(3600));
        assert!(!carriers[receiving].is_awake());
        assert!(carriers[receiving].look(now, &mut sessions[receiving], forever));
        assert!(!carriers[receiving].is_awake());
        send(&mut carriers, &mut sessions, false);
        wait_for(&carriers[receiving]);
        assert!(carriers[receiving].receive(now, &mut sessions[receiving]));
        assert!(event(&mut sessions).is_some());
        assert!(carriers[receiving].is_awake());
        send(&mut carriers, &mut sessions, true);
        assert!(!is_ready(&carriers[receiving]), "a signal beside a look");
        // The last look takes the remaining records, and asks the peer for signals again.
        assert!(carriers[receiving].look(now, &mut sessions[receiving], Duration::ZERO));
        assert!(event(&mut sessions).is_some());
        assert!(!carriers[receiving].is_awake());
        assert!(!is_ready(&carriers[receiving]));
        send(&mut carriers, &mut sessions, false);
        assert!(is_ready(&carriers[receiving]), "no signal");
        assert!(carriers[receiving].receive(now, &mut sessions[receiving]));
        assert!(event(&mut sessions).is_some());
    }
}

#[test]
fn an_end_over_queues_that_is_gone_ends_the_connection() {
    for gone in [0, 1] {
        let (carriers, mut sessions) = over_rings();
        let [a, b] = carriers;
        let (gone_end, mut other) = if gone == 0 { (a, b) } else { (b, a) };
        drop(gone_end);
        while other.receive(Instant::ZERO, &mut sessions[1 - gone]) {
            wait_for(&other);
        }
        assert_eq!(other.failure(), None);
    }
}
