//! Two VMs on two hosts, whose guests do everything that their functions are for, and once more after a reset.

use std::error::Error;
use std::time::Instant;

use vhca::emulated::{Gid, Inspect};

use crate::console::{Boot, Running};
use crate::modes::{TOUR, Verdict};
use crate::{Host, memory};

/// Memory of a guest on the tour.
pub(crate) const MEMORY: usize = 32 << 20;

/// The group that the guests join.
const GROUP: Gid = Gid([0xff, 0x12, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);

/// Times that the guests meet in a round: until both are members of the group, and after that.
const UNTIL_JOINED: usize = 3;
const AFTERWARDS: usize = 50;

/// Passes the number that each guest has reported to the other one, after which both go on.
fn meet([one, other]: &[Running; 2]) -> Result<(), Box<dyn Error>> {
    match (one.wait(), other.wait()) {
        (Ok(reported), Ok(others)) => {
            one.order(others);
            other.order(reported);
            Ok(())
        }
        // A guest that ends leaves the other one waiting, so the reason may be either's.
        (Err(one), Err(other)) => Err(format!("{one}; the other guest: {other}").into()),
        (Err(why), _) | (_, Err(why)) => Err(why),
    }
}

/// Fails unless each PF has asked the SA once to join the group, for its one member.
fn check_group(host: &Host, joins: u64) -> Result<(), Box<dyn Error>> {
    for at in host.at {
        let rows = host.backend.with(|world| {
            let rows = Inspect::groups(world.context(at)).filter(|row| row.mgid == GROUP);
            let rows = rows.map(|row| (row.sa_joins, row.members.len()));
            rows.collect::<Vec<_>>()
        })?;
        if rows != [(joins, 1)] {
            return Err(format!("joins at the SA, and members: {rows:?}").into());
        }
    }
    Ok(())
}

/// Makes guests meet as often as they do in the two rounds, and checks in each that they are members of the group.
pub(crate) fn rounds(
    mut meet: impl FnMut() -> Result<(), Box<dyn Error>>,
    mut check: impl FnMut() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    for is_last in [false, true] {
        for _ in 0..UNTIL_JOINED {
            meet()?;
        }
        check()?;
        for _ in 0..AFTERWARDS + usize::from(!is_last) {
            meet()?;
        }
    }
    Ok(())
}

/// Prints the steps of a guest with their times.
pub(crate) fn print(boot: &Boot) {
    for (name, time) in &boot.steps {
        println!("{name:40} {:>9.1} ms", time.as_secs_f64() * 1000.0);
    }
}

pub(crate) fn tour(host: &Host) -> Verdict {
    let begun = Instant::now();
    let start = |nth: usize| {
        let memory = memory(MEMORY)?;
        host.start((nth, false), memory.clone(), memory, [TOUR, nth as u64])
    };
    let guests = [start(0)?, start(1)?];
    rounds(|| meet(&guests), || check_group(host, 1))?;
    let [first, other] = guests;
    let boot = first.end()?;
    other.end()?;
    print(&boot);
    println!("two rounds of the tour: {:.1?}", begun.elapsed());
    Ok(true)
}
