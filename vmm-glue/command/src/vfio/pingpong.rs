//! Datagrams back and forth, with the exchange of addresses of rdma-core's `ibv_ud_pingpong`.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, bail, ensure};
use hca_api::GlobalRoute;
use ib_vtime::Duration;
use ib_wire::{Gid, GidIndex, Lid, QKey, Qpn};
use mlx4_defs::cq::ArmCommand;
use mlx4_driver::{Bus, Destination, Talker, TalkerSpec};

use super::say;
use super::session::{FOREVER, PORT, Session};
use crate::cli::PingArgs;

/// The Q_Key of `ibv_ud_pingpong`.
const QKEY: QKey = QKey::new(0x1111_1111);

/// Bytes of an address on the wire: LID, QPN, PSN and GID in hexadecimal with colons between them, and a zero.
const ADDRESS: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;

/// The last word of the client, with a zero.
const DONE: &[u8] = b"done\0";

/// Bytes of each datagram that `ibv_ud_pingpong` sends.
const FILL: u8 = 0x7b;

/// Time after which a datagram counts as lost.
const LOST: Duration = Duration::from_secs(10);

/// Datagrams of the tour, and bytes of each.
const TOUR: (u32, usize) = (1000, 2048);

/// A queue pair for datagrams, as its peer has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address {
    lid: Lid,
    qpn: Qpn,
    /// `None` for a peer that wants no GRH.
    gid: Option<Gid>,
}

impl Address {
    fn write(self, mut to: impl Write) -> anyhow::Result<()> {
        let gid = u128::from_be_bytes(self.gid.unwrap_or_default().0);
        let (lid, qpn) = (self.lid.get(), self.qpn.get());
        let text = format!("{lid:04x}:{qpn:06x}:{:06x}:{gid:032x}\0", 0);
        to.write_all(text.as_bytes())
            .context("cannot send the address")
    }

    fn read(mut from: impl Read) -> anyhow::Result<Self> {
        let mut bytes = [0; ADDRESS];
        from.read_exact(&mut bytes)
            .context("the peer sends no address")?;
        let text = String::from_utf8_lossy(&bytes);
        Self::parse(text.trim_end_matches('\0'))
            .context("the peer's address is none of ibv_ud_pingpong")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let [lid, qpn, _, gid] = [(); 4].map(|()| parts.next());
        let gid = Gid(u128::from_str_radix(gid?, 16).ok()?.to_be_bytes());
        let has_gid = gid.interface_id().get() != 0;
        Some(Self {
            lid: Lid::new(u16::from_str_radix(lid?, 16).ok()?),
            qpn: Qpn::new(u32::from_str_radix(qpn?, 16).ok()?)?,
            gid: has_gid.then_some(gid),
        })
    }
}

fn open(session: &mut Session) -> anyhow::Result<(Talker, Address)> {
    let spec = TalkerSpec {
        qkey: QKEY,
        ..TalkerSpec::default()
    };
    let talker = Talker::open(&mut session.driver, &mut session.bus, &spec)?;
    let (lid, qpn) = (session.port().info.lid, talker.qpn);
    Ok((
        talker,
        Address {
            lid,
            qpn,
            gid: None,
        },
    ))
}

/// Sends datagrams to the VF itself.
pub(super) fn tour(session: &mut Session) -> anyhow::Result<()> {
    let (mut talker, own) = open(session)?;
    let (count, size) = TOUR;
    let play = Play {
        peer: own,
        begins: true,
        count,
        size,
    };
    say(&play.play(session, &mut talker)?)?;
    Ok(talker.close(&mut session.driver, &mut session.bus)?)
}

pub(super) fn ping(session: &mut Session, args: &PingArgs) -> anyhow::Result<()> {
    let mtu = session.port().info.neighbor_mtu().bytes().unwrap_or(0);
    ensure!(
        args.size <= mtu,
        "datagrams have at most {mtu} bytes, the MTU"
    );
    let (mut talker, own) = open(session)?;
    let peer = match &args.host {
        Some(host) => {
            let address = (host.as_str(), args.port);
            let socket = TcpStream::connect(address);
            let socket = socket.with_context(|| format!("cannot reach {host}:{}", args.port))?;
            own.write(&socket)?;
            let peer = Address::read(&socket)?;
            (&socket).write_all(DONE).context("the peer hung up")?;
            peer
        }
        None => {
            let listener = TcpListener::bind(("::", args.port));
            let listener = listener.or_else(|_| TcpListener::bind(("0.0.0.0", args.port)));
            let listener = listener.with_context(|| format!("cannot listen at {}", args.port))?;
            say(&format!(
                "waiting at TCP port {} for ibv_ud_pingpong",
                args.port
            ))?;
            listener.set_nonblocking(true)?;
            let accepted = session.until(FOREVER, |_, _| {
                let accepted = listener.accept();
                let blocks = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
                Ok((!accepted.as_ref().is_err_and(blocks)).then_some(accepted))
            })?;
            let (socket, _) = accepted.context("no peer came")?.context("cannot accept")?;
            let peer = Address::read(&socket)?;
            own.write(&socket)?;
            let mut done = [0; DONE.len()];
            (&socket)
                .read_exact(&mut done)
                .context("the peer hung up")?;
            peer
        }
    };
    let play = Play {
        peer,
        begins: args.host.is_some(),
        count: args.iters,
        size: args.size,
    };
    say(&play.play(session, &mut talker)?)?;
    Ok(talker.close(&mut session.driver, &mut session.bus)?)
}

/// Datagrams back and forth.
struct Play {
    peer: Address,
    /// `true` for the side that sends first.
    begins: bool,
    count: u32,
    size: usize,
}

impl Play {
    fn way(&self, talker: &Talker) -> Destination {
        let way = Destination::new(talker.pd, PORT, self.peer.lid, self.peer.qpn, QKEY);
        match self.peer.gid {
            None => way,
            Some(remote_gid) => way.routed(&GlobalRoute {
                remote_gid,
                sgid_index: GidIndex(0),
                flow_label: 0,
                hop_limit: 1,
                traffic_class: 0,
            }),
        }
    }

    /// Sends one for each that is received, until both numbers are reached. Returns a line about it.
    fn play(&self, session: &mut Session, talker: &mut Talker) -> anyhow::Result<String> {
        let to = self.way(talker);
        let message = vec![FILL; self.size];
        let begun = session.bus.now();
        let (mut sent, mut received, mut completed) = (0, 0, 0);
        if self.begins {
            talker.say(&mut session.driver, &mut session.bus, &to, &message)?;
            sent = 1;
        }
        while received < self.count || completed < self.count {
            let arrived = session.until(LOST, |driver, bus| {
                for cqn in [talker.send_cq, talker.recv_cq] {
                    driver.arm_cq(bus, cqn, ArmCommand::NEXT)?;
                }
                let done = u32::try_from(talker.take_sent(driver)?).unwrap_or(u32::MAX);
                let heard = talker.hear(driver)?;
                let is_anything = done != 0 || !heard.is_empty() || !talker.failed.is_empty();
                Ok(is_anything.then_some((done, heard)))
            })?;
            let Some((done, heard)) = arrived else {
                bail!(
                    "a datagram was lost: {sent} sent, {received} received of {}",
                    self.count
                );
            };
            if let Some((_, syndrome)) = talker.failed.first() {
                bail!("a request failed: {syndrome:?}");
            }
            completed += done;
            for heard in heard {
                // Others may send to this queue pair, too.
                if heard.source.qpn != self.peer.qpn {
                    continue;
                }
                let len = heard.bytes.len();
                ensure!(
                    len == self.size,
                    "a datagram has {len} bytes, and not {}",
                    self.size
                );
                received += 1;
                if sent < self.count {
                    talker.say(&mut session.driver, &mut session.bus, &to, &message)?;
                    sent += 1;
                }
            }
        }
        let took = session.bus.now().saturating_duration_since(begun);
        let events = [talker.send_cq, talker.recv_cq].map(|cqn| session.driver.notifications(cqn));
        Ok(format!(
            "{sent} datagrams of {} bytes sent to LID {} QPN {}, {received} received, by {} events of completion in {:.3} s",
            self.size,
            self.peer.lid,
            self.peer.qpn,
            events.iter().sum::<u64>(),
            took.as_secs_f64()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_ibv_ud_pingpong_has_them() {
        let gid = Gid::from(core::net::Ipv6Addr::new(
            0xfe80, 0, 0, 0, 2, 0xc903, 0, 0x301,
        ));
        for (gid, text) in [
            (
                None,
                "0004:000a41:000000:00000000000000000000000000000000\0",
            ),
            (
                Some(gid),
                "0004:000a41:000000:fe800000000000000002c90300000301\0",
            ),
        ] {
            let address = Address {
                lid: Lid::new(4),
                qpn: Qpn::from_low_bits(0xa41),
                gid,
            };
            let mut bytes = Vec::new();
            address.write(&mut bytes).expect("memory takes it");
            assert_eq!(bytes, text.as_bytes());
            assert_eq!(Address::read(&bytes[..]).ok(), Some(address));
        }
        for wrong in ["", "4:5", "4:5:6:x", "x:5:6:0", "4:1000000:6:0"] {
            assert_eq!(Address::parse(wrong), None, "{wrong}");
        }
    }
}
