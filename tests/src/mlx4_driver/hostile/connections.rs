//! Steps of a hostile guest with connected queue pairs: its own, and those of a sibling that it is connected to.

use ib_vtime::Duration;
use mlx4_defs::wqe::{ControlSegment, WqeOpcode};
use zerocopy::FromBytes;

use super::super::{
    Bus, Connection, ConnectionSpec, Driver, DriverError, Operation, Owner, Payload, Peer, QpUse,
    Remote, Rights, SendWork,
};
use super::{Choices, HostileGuest};

/// Connected queue pairs of a hostile guest at a time.
const CONNECTIONS: usize = 4;

/// Bytes of the region of each.
const LEN: usize = 20_000;

/// A connected queue pair of a sibling, and a key to memory there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sibling {
    peer: Peer,
    remote: Remote,
}

impl HostileGuest {
    /// Returns the connected queue pairs that siblings may connect to: of an index, the one of that index.
    #[must_use]
    pub fn siblings(&self) -> Vec<Sibling> {
        let Some(driver) = &self.driver else {
            return Vec::new();
        };
        let all = self.connections.iter().map(|own| Sibling {
            peer: own.address(driver),
            remote: own.remote(0),
        });
        all.collect()
    }

    /// Takes the queue pairs of a sibling, which may be gone by the time they are used.
    pub fn meet(&mut self, siblings: Vec<Sibling>) {
        self.met = siblings;
    }

    /// Does something with a connected queue pair.
    ///
    /// # Errors
    /// The fault that a driver finds.
    pub(super) fn connect_or_post(
        &mut self,
        bus: &mut dyn Bus,
        choices: &mut Choices<'_>,
    ) -> Result<(), DriverError> {
        let Some(driver) = self.driver.as_mut() else {
            return Ok(());
        };
        let mut at = choices.index(CONNECTIONS);
        let is_new = at >= self.connections.len();
        if is_new {
            let opened = Connection::open(driver, bus, &spec(choices))?;
            at = self.connections.len();
            self.connections.push(opened);
            self.depth.connections += 1;
        }
        let own = &self.connections[at];
        let myself = Sibling {
            peer: own.address(driver),
            remote: own.remote(0),
        };
        // A sibling of the same index has chosen this one, too.
        let other = self.met.get(at).filter(|_| !choices.seldom(3));
        let other = other.copied().unwrap_or(myself);
        match choices.byte() % 16 {
            _ if is_new => own.connect(driver, bus, &other.peer)?,
            0 => own.disconnect(driver, bus)?,
            1 if choices.seldom(4) => driver.to_error(bus, own.qpn)?,
            2 if choices.seldom(4) => {
                let own = self.connections.swap_remove(at);
                own.close(driver, bus)?;
            }
            3 => driver.set_drained(bus, own.qpn, choices.seldom(2))?,
            4 => driver.query_qp(bus, own.qpn).map(|_| ())?,
            5..8 => {
                own.disconnect(driver, bus)?;
                own.connect(driver, bus, &other.peer)?;
            }
            8 => {
                let into = own
                    .region
                    .sge(choices.index(LEN / 2), choices.index(LEN / 2));
                own.post_receive(driver, u64::from(choices.byte()), into)?;
            }
            _ => {
                let mut driver_posts =
                    |choices: &mut Choices<'_>| post(driver, own, &other, choices);
                for _ in 0..1 + choices.byte() % 4 {
                    driver_posts(choices)?;
                }
                driver.ring(bus, own.qpn)?;
                if choices.seldom(4) {
                    rewrite(driver, own, choices);
                }
            }
        }
        bus.wait(Duration::from_micros(20));
        let own = self.connections.get(at);
        let done = own.map_or(Ok(Vec::new()), |own| own.completions(driver))?;
        let well = done.iter().filter(|one| one.error.is_none()).count();
        self.depth.messages += well as u64;
        Ok(())
    }
}

fn spec(choices: &mut Choices<'_>) -> ConnectionSpec {
    ConnectionSpec {
        purpose: if choices.seldom(3) {
            QpUse::Unreliable
        } else {
            QpUse::Reliable
        },
        owner: if choices.seldom(2) {
            Owner::Kernel
        } else {
            Owner::User
        },
        sends: 1 << (choices.byte() % 6),
        receives: 1 << (choices.byte() % 6),
        len: LEN,
        rights: if choices.seldom(4) {
            Rights {
                local_write: choices.seldom(2),
                remote_read: choices.seldom(2),
                remote_write: choices.seldom(2),
                remote_atomic: choices.seldom(2),
            }
        } else {
            Rights::ALL
        },
        ..ConnectionSpec::reliable()
    }
}

/// Memory of the peer, under the right key or another one, in the region or not.
fn remote(other: &Sibling, choices: &mut Choices<'_>) -> Remote {
    let mut remote = other.remote;
    match choices.byte() % 16 {
        0 => remote.rkey = choices.number(),
        1 => remote.rkey ^= u32::from(choices.byte()),
        2 => remote.rkey = remote.rkey.wrapping_add(u32::from(choices.byte()) << 8),
        3 => remote.addr = u64::MAX - u64::from(choices.byte()),
        4 => remote.addr = u64::from(choices.number()),
        5..10 => remote.addr += choices.index(LEN) as u64,
        _ => remote.addr = (remote.addr + choices.index(LEN - 8) as u64) & !7,
    }
    remote
}

fn operation(other: &Sibling, choices: &mut Choices<'_>) -> Operation {
    let remote = remote(other, choices);
    let number = u64::from(choices.byte());
    match choices.byte() % 8 {
        0..2 => Operation::Send,
        2..4 => Operation::Write(remote),
        4..6 => Operation::Read(remote),
        6 => Operation::FetchAdd {
            remote,
            add: number,
        },
        _ => Operation::CompareSwap {
            remote,
            compare: number,
            swap: u64::from(choices.byte()),
        },
    }
}

/// Writes a request, as a driver would or not.
fn post(
    driver: &mut Driver,
    own: &Connection,
    other: &Sibling,
    choices: &mut Choices<'_>,
) -> Result<(), DriverError> {
    let operation = operation(other, choices);
    let is_atomic = matches!(
        operation,
        Operation::FetchAdd { .. } | Operation::CompareSwap { .. }
    );
    let payload = match choices.byte() % 8 {
        0 => Payload::Inline(vec![choices.byte(); choices.index(20)]),
        // Lists that an atomic cannot have, and one that others may.
        1 => Payload::Gather(Vec::new()),
        2 => Payload::Gather(vec![
            own.region.sge(choices.index(LEN / 2), 4),
            own.region.sge(choices.index(LEN / 2), 4),
        ]),
        _ if is_atomic && !choices.seldom(4) => own.part(choices.index(LEN / 8) * 8, 8),
        _ => own.part(choices.index(LEN / 2), choices.index(LEN / 2)),
    };
    let mut work = SendWork::to_peer(u64::from(choices.byte()), payload, operation);
    work.immediate = choices.seldom(4).then_some([1, 2, 3, 4]);
    work.solicited = choices.seldom(4);
    driver.write_changed(own.qpn, &work, |bytes| {
        if choices.seldom(4) {
            choices.damage(&mut bytes[16..]);
        }
        let Ok((control, _)) = ControlSegment::mut_from_prefix(bytes) else {
            return;
        };
        if choices.seldom(6) {
            control.set_opcode(WqeOpcode::new(choices.byte() % 32));
        }
        if choices.seldom(8) {
            let sizes = [0, 1, 2, 63, choices.byte() % 64];
            control.set_size(choices.pick(&sizes).unwrap_or(0));
        }
        control.set_fence(choices.seldom(4));
    })
}

/// Rewrites slots of a send queue that the device may be reading, or has read.
fn rewrite(driver: &mut Driver, own: &Connection, choices: &mut Choices<'_>) {
    for _ in 0..1 + choices.byte() % 4 {
        let bytes = [(); 16].map(|()| choices.byte());
        driver.overwrite_sends(own.qpn, choices.index(usize::MAX), &bytes);
    }
}
