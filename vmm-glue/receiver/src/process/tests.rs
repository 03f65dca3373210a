use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use rustix::fs::{FileType, MemfdFlags, fstat, memfd_create};
use rustix::net::sockopt::{
    set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
};

use super::*;
use crate::{ClientSocket, Received, Receiver};

/// Starts a receiver on threads of this process.
fn receiver() -> Receiver {
    start().0
}

fn start() -> (Receiver, Arc<Process>) {
    let (own, other) = pair().unwrap();
    let process = Process::new(other, |pid, _, _| pid == 1).unwrap();
    let served = process.clone();
    thread::spawn(move || served.serve());
    (Receiver::over(own), process)
}

fn client(receiver: &Receiver, kind: Kind) -> (UnixStream, ClientSocket) {
    client_of(receiver, kind, 7)
}

fn client_of(receiver: &Receiver, kind: Kind, uid: u32) -> (UnixStream, ClientSocket) {
    let (client, service) = UnixStream::pair().unwrap();
    let admitted = receiver.admit(service.into(), kind, uid);
    (client, admitted.map_err(|(_, error)| error).unwrap())
}

/// Receives the next message, waiting for the receiver.
fn receive(socket: &mut ClientSocket, space: &mut [u8]) -> Received {
    loop {
        match socket.receive(space) {
            Ok(Some(received)) => return received,
            Ok(None) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

fn pass(client: &UnixStream, bytes: &[u8], fds: &[rustix::fd::BorrowedFd<'_>]) {
    message::send(client, [bytes, &[]], fds, SendFlags::empty()).unwrap();
}

/// Returns a TCP socket whose close waits for an hour, and its peer.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // Of a size that is set the kernel does not make room for more later on, which would end the wait.
    set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    set_socket_send_buffer_size(&near, 65536).unwrap();
    let (far, _) = listener.accept().unwrap();
    set_socket_linger(&near, Some(Duration::from_secs(3600))).unwrap();
    near.set_nonblocking(true).unwrap();
    let mut near_half = &near;
    while near_half.write(&[0; 65536]).is_ok() {}
    (near, far)
}

#[test]
fn bytes_without_descriptors_are_read_at_once() {
    let receiver = receiver();
    let (client, mut socket) = client(&receiver, Kind::Nothing);
    assert!(socket.receive(&mut [0; 8]).unwrap().is_none());
    pass(&client, b"words", &[]);
    let mut space = [0; 8];
    let received = socket.receive(&mut space).unwrap().unwrap();
    assert_eq!((received.len, &space[..5]), (5, &b"words"[..]));
    drop(client);
    assert_eq!(socket.receive(&mut space).unwrap().unwrap().len, 0);
}

#[test]
fn descriptors_come_in_order_and_what_is_not_taken_is_a_pipe() {
    let receiver = receiver();
    let (client, mut socket) = client(&receiver, Kind::Vmm);
    let memory = memfd_create("m", MemfdFlags::CLOEXEC).unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    pass(&client, b"one", &[]);
    pass(&client, b"two", &[other.as_fd(), memory.as_fd()]);
    pass(&client, b"three", &[]);
    let mut space = [0; 64];
    // The stream is read up to and with the bytes that have descriptors.
    let received = receive(&mut socket, &mut space);
    assert_eq!(&space[..received.len], b"onetwo");
    let [pipe, passed] = &received.fds[..] else {
        panic!("{received:?}");
    };
    let kind = FileType::from_raw_mode(fstat(pipe).unwrap().st_mode);
    assert_eq!(kind, FileType::Fifo);
    assert_eq!(
        fstat(passed).unwrap().st_ino,
        fstat(&memory).unwrap().st_ino
    );
    let received = receive(&mut socket, &mut space);
    assert_eq!(&space[..received.len], b"three");
}

#[test]
fn a_file_stays_open_until_the_service_has_closed_its_own() {
    let receiver = receiver();
    let (client, mut socket) = client(&receiver, Kind::Answers);
    let (answer, mut far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    pass(&client, b"ask", &[answer.as_fd()]);
    drop(answer);
    let received = receive(&mut socket, &mut [0; 8]);
    let (fd, lease) = received.fds.into_iter().next().unwrap().into_parts();
    drop(fd);
    let error = far.read(&mut [0]).unwrap_err();
    assert_eq!(
        error.kind(),
        io::ErrorKind::WouldBlock,
        "the receiver has it"
    );
    drop(lease);
    far.set_nonblocking(false).unwrap();
    assert_eq!(far.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_close_that_waits_stops_neither_the_service_nor_other_clients() {
    let receiver = receiver();
    let begun = Instant::now();
    let mut peers = Vec::new();
    for kind in Kind::ALL {
        let (near, far) = lingering();
        let (bad, mut socket) = client(&receiver, kind);
        pass(&bad, b"x", &[near.as_fd()]);
        drop(near);
        // The receiver reads this message; that of the next client goes with its socket.
        socket.receive(&mut [0; 8]).unwrap();
        let (near, other_far) = lingering();
        let (unread, unheard) = client(&receiver, kind);
        pass(&unread, b"x", &[near.as_fd()]);
        peers.extend([far, other_far]);
        drop(near);
        drop(socket);
        drop(unheard);
    }
    let (client, mut socket) = client(&receiver, Kind::Answers);
    let (answer, _far) = UnixStream::pair().unwrap();
    pass(&client, b"x", &[answer.as_fd()]);
    assert_eq!(receive(&mut socket, &mut [0; 8]).fds.len(), 1);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_user_whose_threads_wait_is_turned_away_until_they_go_on() {
    let (receiver, process) = start();
    let mut stuck = Vec::new();
    for _ in 0..STUCK_MAX {
        let (near, far) = lingering();
        let (client, mut socket) = client(&receiver, Kind::Nothing);
        pass(&client, b"x", &[near.as_fd()]);
        drop(near);
        receive(&mut socket, &mut [0; 8]);
        stuck.push((far, client, socket));
    }
    let turned_away = || {
        let (client, mut socket) = client(&receiver, Kind::Nothing);
        let fds = [receiver.channel()];
        if message::send(&client, [b"x", &[]], &fds, SendFlags::empty()).is_err() {
            return true;
        }
        loop {
            match socket.receive(&mut [0; 8]) {
                Ok(None) => thread::yield_now(),
                Ok(Some(received)) => return received.len == 0,
                Err(_) => return true,
            }
        }
    };
    while process.stuck(7) < STUCK_MAX {
        thread::yield_now();
    }
    assert!(turned_away());
    drop(stuck);
    while process.stuck(7) > 0 {
        thread::yield_now();
    }
    assert!(!turned_away());
}

#[test]
fn clients_that_came_before_their_user_was_stuck_have_no_more_threads() {
    let (receiver, process) = start();
    let mut clients: Vec<_> = (0..3 * STUCK_MAX)
        .map(|_| client(&receiver, Kind::Nothing))
        .collect();
    let mut peers = Vec::new();
    for (client, socket) in &mut clients {
        let (near, far) = lingering();
        pass(client, b"x", &[near.as_fd()]);
        // The last close waits, and the queue still has a reference.
        drop(near);
        peers.push(far);
        assert!(socket.receive(&mut [0; 8]).unwrap().is_none());
    }
    let (other, mut socket) = client_of(&receiver, Kind::Answers, 8);
    let (answer, _far) = UnixStream::pair().unwrap();
    pass(&other, b"x", &[answer.as_fd()]);
    assert_eq!(receive(&mut socket, &mut [0; 8]).fds.len(), 1);
    assert!(
        lock(&process.busy)
            .values()
            .filter(|client| client.uid == 7)
            .count()
            <= STUCK_MAX
    );
    // All are served when the peers let go.
    drop(peers);
    for (_, socket) in &mut clients {
        assert_eq!(receive(socket, &mut [0; 8]).len, 1);
    }
}

#[test]
fn messages_of_a_client_with_slow_wake_ups_are_read_and_sent_by_the_receiver() {
    let receiver = receiver();
    let (mut client, mut socket) = client(&receiver, Kind::Nothing);
    let begun = Instant::now();
    socket
        .wakeups()
        .make(|| while begun.elapsed() < Duration::from_millis(50) {});
    assert!(socket.wakeups().are_slow());
    for word in [b"one", b"two"] {
        pass(&client, word, &[]);
        assert!(
            socket.receive(&mut [0; 8]).unwrap().is_none(),
            "it is asked"
        );
        let mut space = [0; 8];
        let received = receive(&mut socket, &mut space);
        assert_eq!(&space[..received.len], word);
        loop {
            match socket.send(word) {
                Ok(sent) => break assert_eq!(sent, word.len()),
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
        }
        assert!(socket.is_asking());
        let mut said = [0; 3];
        client.read_exact(&mut said).unwrap();
        assert_eq!(&said, word);
    }
    drop(socket);
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_message_with_more_descriptors_than_the_protocol_has_is_refused() {
    let receiver = receiver();
    for (kind, most) in [(Kind::Vmm, 64), (Kind::Program, 4)] {
        let (client, mut socket) = client(&receiver, kind);
        pass(&client, b"x", &vec![receiver.channel(); most]);
        assert_eq!(receive(&mut socket, &mut [0; 8]).fds.len(), most);
        pass(&client, b"x", &vec![receiver.channel(); most + 1]);
        let refused = loop {
            match socket.receive(&mut [0; 8]) {
                Ok(None) => thread::yield_now(),
                other => break other,
            }
        };
        assert_eq!(refused.unwrap_err(), Errno::MSGSIZE);
    }
}

#[test]
fn questions_about_maps_are_answered() {
    let receiver = receiver();
    assert!(receiver.is_mapped_privately(1, 2, 3));
    assert!(!receiver.is_mapped_privately(2, 2, 3));
    let (own, _) = pair().unwrap();
    assert!(!Receiver::over(own).is_mapped_privately(1, 2, 3));
}
