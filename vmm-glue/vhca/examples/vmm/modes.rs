//! Runs of guests, and what they have to show.

use std::error::Error;

use kvm_ioctls::Kvm;

use crate::vm::PLUGGED;
use crate::{Host, bench, fabric, pause, siege, tour};

/// Programs of the payload.
const STEPS: u64 = 0;
pub(crate) const DOORBELLS: u64 = 1;
const MASKS: u64 = 2;
const PLUG: u64 = 3;
pub(crate) const TALK: u64 = 4;
pub(crate) const TOUR: u64 = 5;
pub(crate) const COMMANDS: u64 = 6;

/// Returns `true` if all was as it should be.
pub(crate) type Verdict = Result<bool, Box<dyn Error>>;

const USAGE: &str = "usage: vmm steps [--repeat N] | doorbells | masks | \
    pause [--repeat N] | plug | siege | bench [--remote SOCKET] [--json] | \
    tour [--remote SOCKET --with PATH | --trunk ADDRESS --with PATH]";

/// A mode of the command line.
type Mode<'a> = Box<dyn Fn(&Host) -> Verdict + 'a>;

/// Runs the mode that the arguments name.
pub(crate) fn run(kvm: Kvm, arguments: &[&str]) -> Verdict {
    #[cfg(all(feature = "remote", feature = "trunk"))]
    match *arguments {
        ["tour", "--remote", socket, "--with", path] => {
            return crate::apart::tour_of_remote(&kvm, socket, path);
        }
        ["bench", "--remote", socket] => {
            return crate::apart::bench_of_remote(kvm, socket, false);
        }
        ["bench", "--remote", socket, "--json"] => {
            return crate::apart::bench_of_remote(kvm, socket, true);
        }
        ["tour", "--trunk", address, "--with", path] => {
            return crate::apart::tour_by_trunk(kvm, address, path);
        }
        _ => {}
    }
    let mode = find(arguments).ok_or(USAGE)?;
    let (world, at) = fabric::of(arguments)?;
    mode(&Host::new(kvm, world, at)?)
}

/// Returns the mode that the arguments name, if any.
fn find<'a>(arguments: &[&'a str]) -> Option<Mode<'a>> {
    Some(match *arguments {
        ["steps"] => Box::new(|host| steps(host, 1)),
        ["steps", "--repeat", times] => Box::new(move |host| steps(host, times.parse()?)),
        ["doorbells"] => Box::new(doorbells),
        ["masks"] => Box::new(masks),
        ["pause"] => Box::new(|host| pause::pause(host, 1000)),
        ["pause", "--repeat", times] => Box::new(move |host| pause::pause(host, times.parse()?)),
        ["siege"] => Box::new(siege::siege),
        ["plug"] => Box::new(plug),
        ["tour"] => Box::new(tour::tour),
        ["bench"] => Box::new(|host| bench::bench(host, false)),
        ["bench", "--json"] => Box::new(|host| bench::bench(host, true)),
        _ => return None,
    })
}

/// Boots a guest so often. Each has to end well.
fn boots(host: &Host, arguments: [u64; 2], repeat: usize) -> Verdict {
    let mut boots = Vec::new();
    for nth in 1..=repeat {
        match host.boot(arguments, nth % 2 == 0) {
            Ok(boot) => boots.push(boot),
            Err(error) => println!("boot {nth} failed: {error}"),
        }
    }
    println!("{:32} {:>12} {:>12}", "step", "median", "longest");
    for nth in 0..boots.first().map_or(0, |boot| boot.steps.len()) {
        let mut times: Vec<_> = boots.iter().map(|boot| boot.steps[nth].1).collect();
        times.sort_unstable();
        let [median, longest] = [times.len() / 2, times.len() - 1].map(|at| times[at].as_micros());
        let name = &boots[0].steps[nth].0;
        println!("{name:32} {median:>9} µs {longest:>9} µs");
    }
    println!("{} of {repeat} boots", boots.len());
    Ok(boots.len() == repeat)
}

fn doorbells(host: &Host) -> Verdict {
    for (moves, registers) in [(0, "stay"), (1, "move every 100")] {
        let trapped = host.boot([DOORBELLS, moves], true)?.measured;
        let signalled = host.boot([DOORBELLS, moves], false)?.measured;
        let percent = 100 * signalled / trapped.max(1);
        println!("10000 sends, registers {registers}: a doorbell takes {trapped} ns trapped,");
        println!("    {signalled} ns by ioeventfd ({percent} %)");
    }
    Ok(true)
}

fn steps(host: &Host, repeat: usize) -> Verdict {
    boots(host, [STEPS, 0], repeat)
}

fn masks(host: &Host) -> Verdict {
    boots(host, [MASKS, 0], 1)
}

fn plug(host: &Host) -> Verdict {
    let is_well = boots(host, [PLUG, PLUGGED.0], 2)?;
    // Its provider has not panicked.
    host.backend.with(|_| ())?;
    Ok(is_well)
}
