//! Exchanges datagrams by RDS with a peer that runs the same program.
//!
//! ```text
//! rds-datagrams OWN PEER DATAGRAMS
//! ```
//!
//! Of each socket, so many go to the peer's socket of the same port. Their lengths and bytes follow from the port and
//! their number, so that the receiver knows them: the program ends with an error at the first that is missing, out of
//! order or wrong. It prints "bound" once it has its sockets and sends after a line of input, since RDS drops datagrams for
//! ports without a socket. When all are sent and received it prints so and waits for a signal, since a socket that is closed
//! drops unacknowledged datagrams.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::process::ExitCode;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recvfrom, sendto,
    socket_with,
};

/// `AF_RDS`.
const RDS: AddressFamily = AddressFamily::from_raw(21);
const SOCKETS: u16 = 8;
const FIRST_PORT: u16 = 4000;
const LONGEST: usize = 64 << 10;
/// The pause before a full socket is tried again.
const RETRY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// One socket, and how far both directions of it are.
struct Channel {
    socket: OwnedFd,
    peer: SocketAddrV4,
    sent: u32,
    received: u32,
    /// The next one to send.
    next: Vec<u8>,
    /// The last attempt to send found no room.
    congested: bool,
}

/// The datagram of a port with this number.
fn datagram(port: u16, number: u32) -> Vec<u8> {
    let mut random = ChaCha8Rng::seed_from_u64(u64::from(port) << 32 | u64::from(number));
    // Half of them fit into a fragment of RDS.
    let longest = if random.random() { LONGEST } else { 4096 };
    let mut bytes = vec![0; random.random_range(1..=longest)];
    random.fill_bytes(&mut bytes);
    bytes
}

impl Channel {
    fn new(own: Ipv4Addr, peer: Ipv4Addr, port: u16) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK;
        let socket = socket_with(RDS, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddr::from((own, port)))?;
        Ok(Self {
            socket,
            peer: SocketAddrV4::new(peer, port),
            sent: 0,
            received: 0,
            next: datagram(port, 0),
            congested: false,
        })
    }

    fn is_done(&self, datagrams: u32) -> bool {
        self.sent == datagrams && self.received == datagrams
    }

    /// Sends until the socket is full, and takes all datagrams that have come.
    fn go_on(&mut self, datagrams: u32, buffer: &mut [u8]) -> io::Result<()> {
        let port = self.peer.port();
        self.congested = false;
        while self.sent < datagrams {
            match sendto(&self.socket, &self.next, SendFlags::empty(), &self.peer) {
                Ok(_) => {
                    self.sent += 1;
                    self.next = datagram(port, self.sent);
                }
                // So much is unacknowledged as the socket may have, or the peer's socket is full.
                Err(Errno::AGAIN | Errno::NOBUFS) => {
                    self.congested = true;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        while self.received < datagrams {
            let length = match recvfrom(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((_, length, _)) => length,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            };
            if buffer[..length] != datagram(port, self.received) {
                let number = self.received;
                let wrong = format!("port {port}: datagram {number} is not what was sent");
                return Err(io::Error::other(wrong));
            }
            self.received += 1;
        }
        Ok(())
    }
}

fn run(own: Ipv4Addr, peer: Ipv4Addr, datagrams: u32) -> io::Result<()> {
    let ports = FIRST_PORT..FIRST_PORT + SOCKETS;
    let channels = ports.map(|port| Channel::new(own, peer, port));
    let mut channels = channels.collect::<io::Result<Vec<_>>>()?;
    println!("bound");
    io::stdin().read_line(&mut String::new())?;
    let mut buffer = vec![0; LONGEST + 1];
    while !channels.iter().all(|channel| channel.is_done(datagrams)) {
        for channel in &mut channels {
            channel.go_on(datagrams, &mut buffer)?;
        }
        let wanted = |channel: &Channel| {
            let mut flags = PollFlags::IN;
            flags.set(
                PollFlags::OUT,
                channel.sent < datagrams && !channel.congested,
            );
            flags
        };
        let mut waits: Vec<_> = channels
            .iter()
            .filter(|channel| !channel.is_done(datagrams))
            .map(|channel| PollFd::new(&channel.socket, wanted(channel)))
            .collect();
        if !waits.is_empty() {
            // A socket is writable to poll while its peer is congested, and nothing says when that ends but the next attempt.
            poll(&mut waits, Some(&RETRY))?;
        }
    }
    println!("{SOCKETS} sockets, {datagrams} datagrams each way: all in order, none lost");
    loop {
        std::thread::park();
    }
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let parsed = match &arguments[..] {
        [own, peer, datagrams] => (own.parse(), peer.parse(), datagrams.parse()),
        _ => {
            eprintln!("usage: rds-datagrams OWN PEER DATAGRAMS");
            return ExitCode::from(2);
        }
    };
    let (Ok(own), Ok(peer), Ok(datagrams)) = parsed else {
        eprintln!("rds-datagrams: two IPv4 addresses and a number of datagrams are needed");
        return ExitCode::from(2);
    };
    match run(own, peer, datagrams) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rds-datagrams: {error}");
            ExitCode::FAILURE
        }
    }
}
