//! A client with so many epoll waiters that each reply takes long to send.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::serving::Serve;

/// Number of epoll instances, and of registrations of the socket in each.
const WATCHERS: usize = 500;

/// Adds a socket to many epoll instances, many times each.
fn watch(socket: &UnixStream) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
    let copies: Vec<OwnedFd> = (0..WATCHERS)
        .map(|_| socket.try_clone().unwrap().into())
        .collect();
    let epolls: Vec<OwnedFd> = (0..WATCHERS)
        .map(|_| epoll::create(CreateFlags::CLOEXEC).unwrap())
        .collect();
    for epoll in &epolls {
        for copy in &copies {
            epoll::add(epoll, copy, EventData::new_u64(0), EventFlags::IN).unwrap();
        }
    }
    (copies, epolls)
}

fn ask(mut socket: &UnixStream) {
    let question = "{\"v\":2,\"request\":{\"show\":{\"subject\":\"vfs\"}}}\n";
    socket.write_all(question.as_bytes()).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut answer = String::new();
    BufReader::new(socket).read_line(&mut answer).unwrap();
    assert!(answer.contains("vfs"), "{answer}");
}

/// Returns `true` if the service has logged that a client has many waiters.
fn has_noticed(serve: &Serve) -> bool {
    let log = std::fs::read_to_string(serve.folder.path().join("log")).unwrap();
    log.contains("a client has so many waiters")
}

#[test]
fn a_client_with_many_waiters_is_noticed_and_answered() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let serve = Serve::start(1);
    let connect = || UnixStream::connect(serve.folder.path().join("control.sock")).unwrap();
    let other = connect();
    ask(&other);
    assert!(!has_noticed(&serve));
    let watched = connect();
    let watchers = watch(&watched);
    let begun = Instant::now();
    // The first reply is sent by the service's thread, which cannot know.
    while !has_noticed(&serve) {
        ask(&watched);
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    ask(&other);
    drop(watchers);
    drop(watched);
    // The user is remembered, whatever connection comes next.
    ask(&connect());
}
