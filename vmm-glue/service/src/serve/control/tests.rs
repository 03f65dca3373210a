use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use ib_vtime::Duration;
use serde_json::Value;
use vhca_control::protocol::{MAX_LINE, Request, ShowQuery};
use vhca_control::table::Tables;
use vhca_control::{Remote, RemoteError, Subject};

use super::*;
use crate::serve::lab::Lab;
use crate::serve::listeners::Listener;
use crate::serve::options::Options;
use crate::serve::service::Service;
use vhca::{RunEnd, Runner, StopHandle};

const LONG: Duration = Duration::from_secs(60);

/// A service with a control socket on a thread of its own.
struct Server {
    _directory: tempfile::TempDir,
    path: PathBuf,
    stop: StopHandle,
    thread: thread::JoinHandle<RunEnd>,
}

impl Server {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control.sock");
        let (socket, ready) = (path.clone(), std::sync::mpsc::channel());
        let told = ready.0;
        let thread = thread::spawn(move || {
            let options = Options {
                vfs: 2,
                ..Options::default()
            };
            let mut service = Service::new(Lab::build(&options, 1).unwrap());
            service.add_way_in(ControlSocket::new(Listener::stream(&socket).unwrap()));
            let mut runner = Runner::new(service).unwrap();
            told.send(runner.stop_handle().unwrap()).unwrap();
            runner
                .run_until(LONG, |service| service.stopped().is_some())
                .unwrap()
        });
        Self {
            _directory: directory,
            path,
            stop: ready.1.recv().unwrap(),
            thread,
        }
    }

    fn remote(&self) -> Remote {
        Remote::connect(&self.path).unwrap()
    }

    fn raw(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }

    fn end(self) -> RunEnd {
        self.stop.stop().unwrap();
        self.thread.join().unwrap()
    }
}

/// Returns the tables of a reply as users see them in JSON.
fn tables(remote: &mut Remote, query: ShowQuery) -> Value {
    let reply = remote.ask(&Request::Show(query)).unwrap();
    serde_json::to_value(Tables::of_reply(&reply).unwrap()).unwrap()
}

fn show(subject: Subject) -> Request {
    Request::Show(ShowQuery::new(subject))
}

/// What a client reads until the server closes.
fn rest(mut stream: UnixStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn every_subject_can_be_asked_for() {
    let server = Server::start();
    let mut remote = server.remote();
    for subject in Subject::ALL {
        let json = tables(&mut remote, ShowQuery::new(subject));
        assert!(json.is_object(), "{json}");
    }
    let vfs = tables(&mut remote, ShowQuery::new(Subject::Vfs));
    assert_eq!(vfs["vfs"].as_array().unwrap().len(), 8);
    let one = ShowQuery {
        host: Some("H1-1".into()),
        ..ShowQuery::new(Subject::Vfs)
    };
    let vfs = tables(&mut remote, one);
    assert_eq!(vfs["vfs"].as_array().unwrap().len(), 2);
    assert_eq!(server.end(), RunEnd::Stopped);
}

#[test]
fn a_query_that_makes_no_sense_is_refused_with_what_does() {
    let server = Server::start();
    let of = |subject| ShowQuery::new(subject);
    let host = |subject, host: &str| ShowQuery {
        host: Some(host.into()),
        ..of(subject)
    };
    let vf = |subject, vf: &str| ShowQuery {
        vf: Some(vf.into()),
        ..of(subject)
    };
    let problems = |subject| ShowQuery {
        problems: true,
        ..of(subject)
    };
    let table = [
        (
            host(Subject::Vfs, "H9"),
            "no_such_host",
            "H1-1, H1-2, H2-1, H2-2",
        ),
        (
            host(Subject::Vfs, "S1"),
            "no_such_host",
            "H1-1, H1-2, H2-1, H2-2",
        ),
        (
            host(Subject::Ports, "H9"),
            "no_such_node",
            "vhca show fabric",
        ),
        (vf(Subject::Fabric, "H1-1/1"), "no_vf_rows", "--host"),
        (vf(Subject::Sm, "H1-1/1"), "no_vf_rows", "--host"),
        (host(Subject::Sm, "H1-1"), "no_host_rows", "--host"),
        (vf(Subject::Vfs, "1"), "ambiguous_host", "H1-1/1"),
        (vf(Subject::Tids, "H1-1/all"), "one_vf", "HOST/N"),
        (vf(Subject::Vfs, "H1-1/99"), "no_such_vf", "it has 2"),
        (problems(Subject::Tids), "no_problems", "vfs, ports"),
    ];
    for (query, code, says) in table {
        match server.remote().ask(&Request::Show(query.clone())) {
            Err(RemoteError::Refused(refusal)) => {
                assert_eq!(refusal.code, code, "{query:?}");
                assert!(refusal.message.contains(says), "{refusal:?}");
            }
            other => panic!("{query:?}: {other:?}"),
        }
    }
    let rows = |query: ShowQuery, table: &str| {
        let json = tables(&mut server.remote(), query);
        json[table].as_array().unwrap().len()
    };
    assert_eq!(rows(host(Subject::Ports, "S1"), "ports"), 9);
    assert_eq!(rows(host(Subject::Ports, "S1"), "pf_ports"), 0);
    assert_eq!(rows(host(Subject::Ports, "H1-1"), "pf_ports"), 1);
    assert_eq!(rows(vf(Subject::Vfs, "H1-1/2"), "vfs"), 1);
    server.end();
}

#[test]
fn lines_that_are_no_requests_are_refused_one_by_one() {
    let server = Server::start();
    let mut stream = server.raw();
    let lines: &[&[u8]] = &[
        b"\n",
        b"hello\n",
        b"{\"v\":2}\n",
        b"{\"v\":1,\"request\":{\"show\":{\"subject\":\"vfs\",\"format\":\"json\"}}}\n",
        b"{\"v\":3,\"request\":{\"stop\":{}}}\n",
        b"{\"v\":2,\"request\":{\"stop\":{\"now\":true}}}\n",
        b"{\"v\":2,\"request\":{\"show\":{\"subject\":\"weather\"}}}\n",
        b"\xff\xfe\x00\n",
    ];
    stream.write_all(&lines.concat()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let replies: Vec<Value> = rest(stream)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let codes: Vec<&str> = replies
        .iter()
        .filter_map(|reply| reply["error"]["code"].as_str())
        .collect();
    let bad = "bad_request";
    let (old, new) = ("old_client", "new_client");
    assert_eq!(codes, [bad, bad, bad, old, new, bad, bad, bad]);
    assert!(server.remote().ask(&show(Subject::Ports)).is_ok());
    server.end();
}

#[test]
fn an_endless_line_ends_the_connection_with_the_reason() {
    let server = Server::start();
    let mut stream = server.raw();
    // The server may close before it has read everything.
    let _ = stream.write_all(&vec![b'x'; MAX_LINE + 4096]);
    let mut line = [0; 4096];
    let length = stream.read(&mut line).unwrap();
    let reply: Value = serde_json::from_slice(&line[..length]).unwrap();
    assert_eq!(reply["error"]["code"], "too_long");
    server.end();
}

#[test]
fn clients_that_read_nothing_or_say_nothing_stall_nobody() {
    let server = Server::start();
    // Asks without end and reads nothing, until the server reads no more either.
    let mut greedy = server.raw();
    greedy.set_nonblocking(true).unwrap();
    let line = b"{\"v\":2,\"request\":{\"metrics\":{}}}\n";
    while greedy.write(line).is_ok() {}
    let silent: Vec<UnixStream> = (0..10).map(|_| server.raw()).collect();
    let mut remote = server.remote();
    for _ in 0..10 {
        remote.ask(&show(Subject::Vfs)).unwrap();
    }
    drop((greedy, silent));
    remote.ask(&show(Subject::Vfs)).unwrap();
    server.end();
}

#[test]
fn of_too_many_clients_the_longest_silent_one_goes() {
    let server = Server::start();
    let clients: Vec<UnixStream> = (0..=MAX_CLIENTS).map(|_| server.raw()).collect();
    assert!(server.remote().ask(&show(Subject::Ports)).is_ok());
    let gone = clients
        .into_iter()
        .filter(|mut client| {
            client.set_nonblocking(true).unwrap();
            matches!(client.read(&mut [0]), Ok(0))
        })
        .count();
    assert_eq!(gone, 2);
    server.end();
}

/// The body of a response in chunks.
fn unchunked(mut chunks: &str) -> String {
    let mut body = String::new();
    loop {
        let (length, rest) = chunks.split_once("\r\n").unwrap();
        let length = usize::from_str_radix(length, 16).unwrap();
        body.push_str(&rest[..length]);
        chunks = rest[length..].strip_prefix("\r\n").unwrap();
        if length == 0 {
            assert!(chunks.is_empty(), "{chunks}");
            return body;
        }
    }
}

#[test]
fn prometheus_can_ask_by_http() {
    let server = Server::start();
    let get = |path: &str| {
        let mut stream = server.raw();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: vhca\r\n\r\n").unwrap();
        rest(stream)
    };
    let metrics = |path: &str| {
        let page = get(path);
        let (head, chunks) = page.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("\r\nTransfer-Encoding: chunked\r\n"),
            "{head}"
        );
        unchunked(chunks)
    };
    // The subnet comes up meanwhile.
    let lines = [
        "\nvhca_port_state{pf=\"H1-1\",port=\"1\"} ",
        "\nvhca_link_state_id{node=\"S1\",port=\"1\"} 4\n",
        "\nvhca_sm_state_id 3\n",
    ];
    let begun = Instant::now();
    loop {
        let by_host = metrics("/metrics");
        if lines.iter().all(|line| by_host.contains(line)) {
            break;
        }
        assert!(begun.elapsed() < LONG, "{by_host}");
    }
    assert!(
        metrics("/metrics?by=vf").contains("\nvhca_port_state{pf=\"H1-1\",port=\"1\",vf=\"1\"} ")
    );
    assert!(metrics("/metrics?by=total").contains("\nvhca_port_state "));
    for path in ["/", "/metrics?by=color"] {
        let page = get(path);
        assert!(
            page.starts_with("HTTP/1.1 404 ") && page.contains("?by=vf"),
            "{page}"
        );
    }
    server.end();
}

/// A connection's requests are answered in their order, however many turns the first answer takes.
#[test]
fn what_is_asked_behind_a_large_answer_is_answered_behind_it() {
    let server = Server::start();
    let mut stream = server.raw();
    let lines: &[&[u8]] = &[
        b"{\"v\":2,\"request\":{\"metrics\":{\"by\":\"vf\"}}}\n",
        b"{\"v\":2,\"request\":{\"show\":{\"subject\":\"fabric\"}}}\n",
        b"{\"v\":2,\"request\":{\"metrics\":{\"vf\":\"H1-1/2\"}}}\n",
        b"hello\n",
    ];
    stream.write_all(&lines.concat()).unwrap();
    let mut replies = Vec::new();
    for _ in lines {
        let mut line = Vec::new();
        let mut byte = [0];
        while byte != *b"\n" {
            stream.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        replies.push(serde_json::from_slice::<Value>(&line).unwrap());
    }
    let text = |reply: &Value| reply["ok"]["text"].as_str().unwrap().to_owned();
    assert!(text(&replies[0]).contains("# TYPE vhca_quota gauge\n"));
    assert_eq!(replies[1]["ok"]["tables"][1]["name"], "links");
    let of_vf = text(&replies[2]);
    assert!(
        of_vf.contains("vf=\"2\"") && !of_vf.contains("vf=\"1\""),
        "{of_vf}"
    );
    assert_eq!(replies[3]["error"]["code"], "bad_request");
    server.end();
}

#[test]
fn a_client_can_end_the_service() {
    let server = Server::start();
    server.remote().ask(&Request::Stop {}).unwrap();
    let path = server.path.clone();
    assert_eq!(server.thread.join().unwrap(), RunEnd::Reached);
    assert!(matches!(Remote::connect(&path), Err(RemoteError::Place(_))));
}

#[test]
fn a_server_that_goes_away_is_told_as_such() {
    let server = Server::start();
    let mut remote = server.remote();
    remote.ask(&show(Subject::Ports)).unwrap();
    server.end();
    let asked = remote.ask(&show(Subject::Ports));
    assert!(matches!(asked, Err(RemoteError::Gone)), "{asked:?}");
}
