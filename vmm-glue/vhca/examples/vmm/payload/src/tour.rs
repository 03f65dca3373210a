//! The tour: everything that a guest does with its function, on the driver that the tests have.

use alloc::vec;
use alloc::vec::Vec;

use ib_endpoint::cm::{CmEventKind, ConnId, Rendezvous};
use ib_endpoint::sa_client::Wish;
use ib_endpoint::{PortPath, SaAnswer, SaError, SaEvent, SaRequest};
use ib_vtime::Duration;
use ib_wire::cm::CmRep;
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord, NodeRecord, PathRecord};
use ib_wire::{Gid, Guid, Lid, PKey, Psn, Qpn, ServiceId};
use mlx4_defs::Cqn;
use mlx4_defs::cq::ArmCommand;
use mlx4_driver::{
    Bus, Connection, ConnectionSpec, Operation, Payload, Peer, Remote, SendWork, Talker, TalkerSpec,
};

use super::cpu::{self, step};
use super::guest::{Guest, LOOK, PORT, sure};
use super::vf::Vf;

const SERVICE: ServiceId = ServiceId::new(0x4242);

/// The group that the guests join.
const GROUP: Gid = Gid([0xff, 0x12, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);

/// Datagrams, and those after which the guests wait for each other: fewer than there are receives.
const DATAGRAMS: u32 = 2000;
const WINDOW: u32 = 50;
const RECEIVES: u32 = 64;

/// Time within which the SA has to answer a request, however often that is sent: less than the VMM waits for a guest.
const ANSWERED: Duration = Duration::from_secs(60);

/// Bytes of a NodeRecord in a table, and of a segment of it.
const RECORD: usize = 112;
const SEGMENT: usize = 200;

/// Bytes that are written and read.
const BYTES: usize = 1 << 20;
const CHUNK: usize = BYTES / 256;

/// Reports a number to the VMM, which passes it to the other guest. Returns that of the other guest.
fn exchange(number: u32) -> u32 {
    cpu::report(number);
    cpu::order()
}

/// A connection, and the peer's memory.
struct Joined {
    end: Connection,
    id: ConnId,
    remote: Remote,
}

/// Bits of the argument: the guest is the other one; the fabric has few nodes.
const OTHER: u64 = 1;
const SMALL: u64 = 2;

/// Goes on the tour twice, with a reset of the function in between. The first guest does what the other one answers.
pub(crate) fn tour(argument: u64, mut vf: Vf) {
    let (is_first, is_small) = (argument & OTHER == 0, argument & SMALL != 0);
    vf.measure();
    vf.place(super::FIRST);
    let mut guest = Guest::bind(vf);
    guest.run(is_first, is_small);
    step("the VM resets the function");
    guest.vf.reset();
    guest.driver.abandon(&mut guest.vf);
    guest.vf.place(super::FIRST);
    exchange(0);
    let mut guest = Guest::bind(guest.vf);
    guest.run(is_first, is_small);
    guest.unbind();
}

impl Guest {
    fn run(&mut self, is_first: bool, is_small: bool) {
        let own = self.driver.port(PORT).gid();
        let [high, low] =
            [own.interface_id().get() >> 32, own.interface_id().get()].map(|half| half as u32);
        let peer = u64::from(exchange(high)) << 32 | u64::from(exchange(low));
        let peer = Gid::from_parts(own.prefix(), Guid::new(peer));

        step("a path from the SA");
        let answer = self.ask(SaRequest::path_by_gids(own, peer, None));
        let record: PathRecord = answer.record().unwrap();
        let view = self.driver.port(PORT).view();
        let path = PortPath::new(PORT, &view, &record).unwrap().with_grh();

        match is_small {
            true => step("a table of all nodes"),
            false => step("a table of more than 64 segments"),
        }
        let all = SaRequest::get_table(&NodeRecord::default(), ComponentMask::NONE);
        let nodes = self.ask(all).records::<NodeRecord>().count();
        assert!(nodes > 2 && (is_small || nodes * RECORD > 64 * SEGMENT));

        step("a group joined");
        self.join();
        // The VMM looks for the members.
        exchange(0);

        step("a queue pair for datagrams");
        self.datagrams(is_first, path.record().dlid);

        if !is_first {
            self.driver.mads(PORT).cm.listen(SERVICE, u64::MAX).unwrap();
        }
        step("a connection to the other host");
        let joined = self.connect(is_first, &path);
        self.move_data(is_first, &joined);
        step("the connection ends");
        self.disconnect(is_first, joined);
        if is_first {
            self.driver.mads(PORT).cm.listen(SERVICE, u64::MAX).unwrap();
        }
        step("a connection from the other host");
        let joined = self.connect(!is_first, &path);
        self.disconnect(!is_first, joined);
    }

    /// Asks the SA, and asks again if no answer comes: on a busy machine one takes longer than a query waits.
    fn ask(&mut self, request: SaRequest) -> SaAnswer {
        let limit = self.vf.now() + ANSWERED;
        loop {
            let now = self.vf.now();
            let mads = self.driver.mads(PORT);
            let asked = mads.sa.query(now, &mut mads.agent, request.clone());
            let answer = self.until(|driver| match driver.mads(PORT).sa.poll_event()? {
                SaEvent::Answered { query, result } if query == asked => Some(result),
                _ => None,
            });
            match answer {
                Err(SaError::Transfer(_)) if self.vf.now() < limit => {}
                answer => return sure(answer),
            }
        }
    }

    fn join(&mut self) {
        let mut record = McMemberRecord {
            mgid: GROUP,
            port_gid: self.driver.port(PORT).gid(),
            pkey: PKey::DEFAULT_FULL,
            qkey: TalkerSpec::QKEY,
            ..McMemberRecord::default()
        };
        record.set_join_state(JoinState::FULL_MEMBER);
        let mask = McMemberRecord::CREATE;
        let wish = Wish::Membership { record, mask };
        let now = self.vf.now();
        let mads = self.driver.mads(PORT);
        let wished = mads.sa.wish(now, &mut mads.agent, wish);
        self.until(|driver| driver.mads(PORT).sa.is_granted(wished).then_some(()));
    }

    /// Takes datagrams of the other guest by interrupt, or sends them.
    fn datagrams(&mut self, is_first: bool, lid: Lid) {
        let spec = TalkerSpec {
            receives: RECEIVES,
            ..TalkerSpec::default()
        };
        let mut talker = sure(Talker::open(&mut self.driver, &mut self.vf, &spec));
        let qpn = Qpn::from_low_bits(exchange(talker.qpn.get()));
        let to = talker.way_to((lid, qpn, TalkerSpec::QKEY));
        step("2000 datagrams by interrupt");
        let mut room = spec.sends as usize;
        for first in (0..DATAGRAMS).step_by(WINDOW as usize) {
            if is_first {
                let mut next = first;
                while next < first + WINDOW {
                    self.arm(talker.recv_cq);
                    for heard in sure(talker.hear(&mut self.driver)) {
                        assert!(heard.bytes[..4] == next.to_be_bytes());
                        next += 1;
                    }
                    if next < first + WINDOW {
                        self.vf.wait(LOOK);
                        sure(self.driver.serve(&mut self.vf));
                    }
                }
            } else {
                for number in first..first + WINDOW {
                    // On a busy machine the device sends more slowly than the guest posts.
                    while room == 0 {
                        self.arm(talker.send_cq);
                        room += sure(talker.take_sent(&mut self.driver));
                        if room == 0 {
                            self.vf.wait(LOOK);
                            sure(self.driver.serve(&mut self.vf));
                        }
                    }
                    room -= 1;
                    let sent =
                        talker.say(&mut self.driver, &mut self.vf, &to, &number.to_be_bytes());
                    sure(sent);
                }
            }
            exchange(0);
        }
        assert!(talker.failed.is_empty());
        sure(talker.close(&mut self.driver, &mut self.vf));
    }

    fn arm(&mut self, cqn: Cqn) {
        sure(self.driver.arm_cq(&mut self.vf, cqn, ArmCommand::NEXT));
    }

    fn open(&mut self) -> Connection {
        let spec = ConnectionSpec {
            len: BYTES,
            ..ConnectionSpec::reliable()
        };
        sure(Connection::open(&mut self.driver, &mut self.vf, &spec))
    }

    /// Waits for an event of the connection manager.
    fn event<T>(&mut self, mut is_it: impl FnMut(CmEventKind) -> Option<T>) -> (ConnId, T) {
        self.until(|driver| {
            let event = driver.mads(PORT).cm.poll_event()?;
            is_it(event.kind).map(|found| (event.conn, found))
        })
    }

    /// Connects to the other guest, or is connected. The private data of both messages name the memory.
    fn connect(&mut self, is_active: bool, path: &PortPath) -> Joined {
        let end = self.open();
        let own = end.address(&self.driver);
        let mut memory = [0; 12];
        memory[..8].copy_from_slice(&end.remote(0).addr.to_be_bytes());
        memory[8..].copy_from_slice(&end.remote(0).rkey.to_be_bytes());
        exchange(0);
        let (id, qpn, psn, remote) = if is_active {
            let mut request = path.request(SERVICE, end.qpn);
            request.starting_psn = own.psn;
            request.private_data[..12].copy_from_slice(&memory);
            let (now, cm) = (self.vf.now(), &mut self.driver.mads(PORT).cm);
            let sent = cm.send_req(now, &path.gsi(), &request, Rendezvous::ClientServer);
            let id = sure(sent);
            let (_, rep) = self.event(|kind| match kind {
                CmEventKind::RepReceived(rep) => Some(rep),
                _ => None,
            });
            (
                id,
                rep.local_qpn,
                rep.starting_psn,
                remote_in(&rep.private_data),
            )
        } else {
            let (id, req) = self.event(|kind| match kind {
                CmEventKind::ReqReceived { req, .. } => Some(req),
                _ => None,
            });
            (
                id,
                req.local_qpn,
                req.starting_psn,
                remote_in(&req.private_data),
            )
        };
        self.ready(&end, path, qpn, psn);
        let now = self.vf.now();
        if is_active {
            sure(self.driver.mads(PORT).cm.send_rtu(now, id, b""));
            sure(self.driver.serve(&mut self.vf));
        } else {
            let mut reply = CmRep {
                local_qpn: end.qpn,
                starting_psn: own.psn,
                ..CmRep::default()
            };
            reply.private_data[..12].copy_from_slice(&memory);
            sure(self.driver.mads(PORT).cm.send_rep(now, id, &reply));
            self.event(|kind| matches!(kind, CmEventKind::RtuReceived(_)).then_some(()));
        }
        Joined { end, id, remote }
    }

    fn ready(&mut self, end: &Connection, path: &PortPath, qpn: Qpn, psn: Psn) {
        let peer = Peer {
            lid: path.record().dlid,
            gid: Some(path.record().dgid),
            qpn,
            psn,
        };
        sure(end.connect(&mut self.driver, &mut self.vf, &peer));
    }

    /// Writes into the other guest's memory and reads it back, or looks at what was written and changes it.
    fn move_data(&mut self, is_first: bool, joined: &Joined) {
        step("1 MiB written");
        if is_first {
            fill(joined, 1);
            self.carry_out(joined, Operation::Write(joined.remote));
        }
        exchange(0);
        if !is_first {
            check(joined, 1);
            fill(joined, 2);
        }
        exchange(0);
        step("1 MiB read");
        if is_first {
            self.carry_out(joined, Operation::Read(joined.remote));
            check(joined, 2);
        }
        exchange(0);
    }

    fn carry_out(&mut self, joined: &Joined, operation: Operation) {
        let end = &joined.end;
        let part: Payload = end.part(0, BYTES);
        let work = SendWork::to_peer(1, part, operation);
        self.arm(end.cq);
        sure(end.post(&mut self.driver, &mut self.vf, &[work]));
        let done = self.until(|driver| sure(end.completions(driver)).pop());
        assert!(done.error.is_none());
    }

    fn disconnect(&mut self, is_active: bool, joined: Joined) {
        exchange(0);
        let now = self.vf.now();
        if is_active {
            sure(self.driver.mads(PORT).cm.send_dreq(now, joined.id, b""));
            self.event(|kind| matches!(kind, CmEventKind::DrepReceived(_)).then_some(()));
        } else {
            self.event(|kind| matches!(kind, CmEventKind::DreqReceived(_)).then_some(()));
            let now = self.vf.now();
            sure(self.driver.mads(PORT).cm.send_drep(now, joined.id, b""));
            sure(self.driver.serve(&mut self.vf));
        }
        sure(joined.end.close(&mut self.driver, &mut self.vf));
        exchange(0);
    }
}

fn remote_in(data: &[u8]) -> Remote {
    let [addr, rkey] = [&data[..8], &data[8..12]].map(|bytes| {
        bytes
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    });
    Remote {
        addr,
        rkey: rkey as u32,
    }
}

/// Returns the bytes of a chunk of the region, other ones for each chunk and seed.
fn chunk(nth: usize, seed: u8) -> Vec<u8> {
    let mut bytes = vec![nth as u8; CHUNK];
    bytes[0] = seed;
    bytes
}

fn fill(joined: &Joined, seed: u8) {
    for nth in 0..BYTES / CHUNK {
        joined.end.region.write(nth * CHUNK, &chunk(nth, seed));
    }
}

fn check(joined: &Joined, seed: u8) {
    for nth in 0..BYTES / CHUNK {
        assert!(joined.end.region.read(nth * CHUNK, CHUNK) == chunk(nth, seed));
    }
}
