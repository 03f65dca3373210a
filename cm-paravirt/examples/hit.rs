//! Times the machine and prints its bytes per id: `cargo run --release -p cm-paravirt --example hit`.
//!
//! A message is copied between random places of two pools larger than the caches, as any multiplexer
//! must, and judged in place. The floors are that copy alone and one random probe of a table of a
//! million entries. Medians of five runs; time on the CPU where Linux tells it, so that a busy
//! machine disturbs less.

use std::hint::black_box;
use std::time::Instant as Clock;

use cm_paravirt::{CmParavirt, Config, Egress, GidOwner, IdentityCheck, Ingress};
use cm_paravirt::{PeerAddress, VfIdentity};
use ib_vtime::{Instant, SplitMix64};
use ib_wire::cm::{self, CmRep, CmReq, CmRtu};
use ib_wire::mad::{AttributeId, Mad};
use ib_wire::{CommId, Gid, Guid, Lid, PKey, PortNum, Qpn, Sl, SubnetPrefix};
use vf_tunnel::VfId;

const POOL: usize = 64 << 20;
/// A MAD behind a GRH.
const FRAME: usize = 296;
const VFS: u16 = 126;
const OPERATIONS: usize = 1_000_000;
const RUNS: usize = 5;

/// Copies one frame per operation from one random place to another.
struct Pools {
    from: Vec<u8>,
    to: Vec<u8>,
    random: SplitMix64,
}

impl Pools {
    fn new() -> Self {
        Self {
            from: vec![1; POOL],
            to: vec![2; POOL],
            random: SplitMix64::new(3),
        }
    }

    fn place(&mut self) -> usize {
        usize::try_from(self.random.below((POOL / 320) as u64)).map_or(0, |n| n * 320)
    }

    /// Copies a frame and gives the MAD in it.
    fn copy(&mut self) -> &mut Mad {
        let (from, to) = (self.place(), self.place());
        self.to[to..to + FRAME].copy_from_slice(&self.from[from..from + FRAME]);
        zerocopy::FromBytes::mut_from_bytes(&mut self.to[to + 40..to + FRAME])
            .expect("256 bytes behind the GRH")
    }
}

/// Nanoseconds that this thread ran, or that passed since `start` if that is not to be had.
fn running_nanos(start: Clock) -> f64 {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or_else(|| start.elapsed().as_secs_f64() * 1e9)
}

fn median_nanos(operations: usize, mut run: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let clock = Clock::now();
            let start = running_nanos(clock);
            run();
            (running_nanos(clock) - start) / operations as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[RUNS / 2]
}

/// A live connection.
#[derive(Clone, Copy)]
struct Live {
    vf: VfId,
    guest: u32,
    remote: u32,
    wire: u32,
}

fn peer() -> PeerAddress {
    PeerAddress {
        port: PortNum(1),
        lid: Lid::new(9),
        qpn: Qpn::GSI,
        sl: Sl::default(),
        gid: None,
    }
}

fn vf_gid(vf: VfId) -> Gid {
    Gid::from_parts(
        SubnetPrefix::DEFAULT,
        Guid::new(0x100 + u64::from(vf.get())),
    )
}

fn put(mad: &mut Mad, attribute: AttributeId, local: u32, remote: u32) {
    let ids: &mut CmRtu = mad.view_mut();
    ids.header = cm::header(attribute);
    ids.local_comm_id = CommId::new(local);
    ids.remote_comm_id = CommId::new(remote);
}

struct Bench {
    machine: CmParavirt,
    now: Instant,
    live: Vec<Live>,
}

impl Bench {
    fn new() -> Self {
        let config = Config {
            ids_per_vf: 1 << 20,
            ..Config::default()
        };
        Self {
            machine: CmParavirt::new(config, 42),
            now: Instant::from_millis(1),
            live: Vec::new(),
        }
    }

    fn send(&mut self, vf: VfId, mad: &mut Mad) {
        let gids = [vf_gid(vf)];
        let who = VfIdentity {
            gids: &gids,
            ca_guid: Some(Guid::NONE),
            pkeys: &[PKey::DEFAULT_FULL],
            check: IdentityCheck::Strict,
        };
        let verdict = self.machine.egress(self.now, vf, mad, &peer(), &who);
        assert_eq!(verdict, Egress::Forward);
    }

    fn receive(&mut self, mad: &mut Mad) -> VfId {
        let owner = |gid: &Gid| {
            let number = u16::try_from(gid.interface_id().get() - 0x100).unwrap_or(0);
            VfId::new(number).map_or(GidOwner::Unknown, GidOwner::Vf)
        };
        let verdict = self.machine.find(self.now, mad, &peer(), None, owner);
        match verdict {
            Ingress::Vf(named) => {
                let accepted = self.machine.accept(named, mad, &peer());
                assert_eq!(accepted, Ok(()));
                named.vf
            }
            other => panic!("{other:?}"),
        }
    }

    /// Opens a connection, by the VF or by its peer in turn.
    fn open(&mut self, vf: VfId, guest: u32, remote: u32) -> Live {
        let mut mad = Mad::default();
        let by_vf = guest.is_multiple_of(2);
        put(
            &mut mad,
            AttributeId::CM_REQ,
            if by_vf { guest } else { remote },
            0,
        );
        let req: &mut CmReq = mad.view_mut();
        req.pkey = PKey::DEFAULT_FULL;
        let wire = if by_vf {
            req.primary.local_gid = vf_gid(vf);
            self.send(vf, &mut mad);
            let wire = mad.view::<CmRtu>().local_comm_id.get();
            put(&mut mad, AttributeId::CM_REP, remote, wire);
            self.receive(&mut mad);
            put(&mut mad, AttributeId::CM_RTU, guest, remote);
            self.send(vf, &mut mad);
            wire
        } else {
            req.primary.remote_gid = vf_gid(vf);
            self.receive(&mut mad);
            put(&mut mad, AttributeId::CM_REP, guest, remote);
            mad.view_mut::<CmRep>().local_ca_guid = Guid::NONE;
            self.send(vf, &mut mad);
            let wire = mad.view::<CmRtu>().local_comm_id.get();
            put(&mut mad, AttributeId::CM_RTU, remote, wire);
            self.receive(&mut mad);
            wire
        };
        Live {
            vf,
            guest,
            remote,
            wire,
        }
    }

    fn close(&mut self, live: Live) {
        let mut mad = Mad::default();
        put(&mut mad, AttributeId::CM_DREQ, live.guest, live.remote);
        self.send(live.vf, &mut mad);
        put(&mut mad, AttributeId::CM_DREP, live.remote, live.wire);
        self.receive(&mut mad);
    }

    /// Brings the number of live connections to `count` and their order to a random one.
    fn fill(&mut self, count: usize) {
        while self.live.len() < count {
            let number = u32::try_from(self.live.len()).expect("few");
            let vf = VfId::new(u16::try_from(number % u32::from(VFS)).expect("few") + 1);
            let live = self.open(vf.expect("in range"), number, number ^ 0x5555_5555);
            self.live.push(live);
        }
        let mut random = SplitMix64::new(9);
        for i in (1..self.live.len()).rev() {
            let other = usize::try_from(random.below(i as u64 + 1)).expect("in range");
            self.live.swap(i, other);
        }
    }
}

fn main() {
    let mut pools = Pools::new();
    let copy = median_nanos(OPERATIONS, || {
        for _ in 0..OPERATIONS {
            black_box(pools.copy());
        }
    });
    let table: Vec<[u64; 4]> = (0..1 << 20).map(|n| [n; 4]).collect();
    let mut random = SplitMix64::new(5);
    let lookup = median_nanos(OPERATIONS, || {
        let mut last = 0;
        for _ in 0..OPERATIONS {
            // Each place depends on what was found in the one before.
            let place = random.next().wrapping_add(last) % (1 << 20);
            last = table[usize::try_from(place).expect("in range")][1] & 1;
        }
        black_box(last);
    });
    println!("floor-copy            {copy:8.1} ns");
    println!("floor-lookup          {lookup:8.1} ns");
    println!("2 x (copy + lookup)   {:8.1} ns", 2.0 * (copy + lookup));

    let mut bench = Bench::new();
    for count in [1_000, 10_000, 100_000, 1_000_000] {
        bench.fill(count);
        let live = bench.live.clone();
        let mut turns = live.iter().cycle().copied();
        let mut hot = Mad::default();
        let mut send = |bench: &mut Bench, mad: &mut Mad| {
            let live = turns.next().expect("a cycle");
            put(mad, AttributeId::CM_RTU, live.guest, live.remote);
            bench.send(live.vf, mad);
        };
        let egress = median_nanos(OPERATIONS, || {
            for _ in 0..OPERATIONS {
                send(&mut bench, pools.copy());
            }
        });
        let egress_alone = median_nanos(OPERATIONS, || {
            for _ in 0..OPERATIONS {
                send(&mut bench, &mut hot);
            }
        });
        let mut turns = live.iter().cycle().copied();
        let mut receive = |bench: &mut Bench, mad: &mut Mad| {
            let live = turns.next().expect("a cycle");
            put(mad, AttributeId::CM_APR, live.remote, live.wire);
            assert_eq!(bench.receive(mad), live.vf);
        };
        let ingress = median_nanos(OPERATIONS, || {
            for _ in 0..OPERATIONS {
                receive(&mut bench, pools.copy());
            }
        });
        let ingress_alone = median_nanos(OPERATIONS, || {
            for _ in 0..OPERATIONS {
                receive(&mut bench, &mut hot);
            }
        });
        let bytes = bench.machine.state_bytes() as f64 / count as f64;
        println!(
            "{count:8} live: egress {egress:6.1} ns ({egress_alone:5.1} without the copy)  \
             ingress {ingress:6.1} ns ({ingress_alone:5.1})  {bytes:5.1} bytes per id"
        );
    }

    let mut bench = Bench::new();
    bench.fill(100_000);
    let rounds = 100_000;
    let mut next = 100_000_u32;
    let message = median_nanos(rounds * 5, || {
        for _ in 0..rounds {
            let vf = VfId::new(u16::try_from(next % u32::from(VFS)).expect("few") + 1);
            let live = bench.open(vf.expect("in range"), next, next ^ 0x5555_5555);
            bench.close(live);
            next += 1;
        }
        // The quarantine ends.
        bench.now += ib_vtime::Duration::from_secs(31);
        bench.machine.handle_timeout(bench.now);
        assert_eq!(bench.machine.len(), 100_000);
    });
    println!("open and close, 100,000 live: {message:.1} ns per message, timers included");
}
