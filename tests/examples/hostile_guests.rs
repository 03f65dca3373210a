//! Hostile guests beside sixteen well-behaved ones, for a while:
//! `cargo run --release -p vhca-tests --example hostile_guests -- --seconds 600 --seed 1`.
//!
//! It ends with an error as soon as a well-behaved guest notices anything, or a hostile one owns more than
//! it may. The same seed does the same things, as far as the time goes.

use std::error::Error;
use std::time::{Duration, Instant};

use vf_proxy::mlx4::{Mlx4Config, Mlx4Function};
use vhca_tests::mlx4_driver::hostile::{Siege, SiegePlan};

/// Things that each hostile guest does before the others say something.
const STEPS: usize = 20;

/// Time between two lines of output.
const REPORT: Duration = Duration::from_secs(10);

/// Numbers of the command line, by their names.
fn option(name: &str, otherwise: u64) -> Result<u64, Box<dyn Error>> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    match (arguments.next(), arguments.next()) {
        (None, _) => Ok(otherwise),
        (Some(_), Some(value)) => Ok(value.parse()?),
        (Some(_), None) => Err(format!("{name} wants a number").into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let length = Duration::from_secs(option("--seconds", 60)?);
    let seed = option("--seed", 1)?;
    let plan = SiegePlan {
        victims: 8,
        attackers: 2,
        seed,
    };
    let function = |_| {
        let function = Mlx4Function::new(&Mlx4Config::default());
        Box::new(function) as Box<dyn vf_pci::PciFunction>
    };
    let mut siege = Siege::new(&plan, function)?;
    let start = Instant::now();
    let mut reported = start;
    while start.elapsed() < length {
        siege.round(STEPS)?;
        if reported.elapsed() >= REPORT {
            reported = Instant::now();
            report(&siege, start.elapsed());
        }
    }
    report(&siege, start.elapsed());
    siege.end()?;
    println!("nobody noticed, and nothing is left");
    Ok(())
}

fn report(siege: &Siege, elapsed: Duration) {
    let resident = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = resident
        .split_whitespace()
        .nth(1)
        .and_then(|pages| pages.parse().ok())
        .unwrap_or(0);
    println!(
        "{:4} s, {} rounds, {} MiB: {:?}",
        elapsed.as_secs(),
        siege.rounds(),
        pages * 4096 / (1024 * 1024),
        siege.depth()
    );
}
