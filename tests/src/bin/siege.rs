//! What well-behaved guests wait for while others attack the service, in real time:
//! `cargo run --release -p vhca-tests --bin siege -- --seconds 4 --attackers 1,4,16`.
//!
//! `--attack NAME` chooses attacks, `--json` prints the figures for programs, `--memory-mib NUMBER` bounds the service's
//! memory by a control group. It ends with an error if a victim waits
//! longer than is promised, and again in both of two repetitions. Its own processes are this program, too.

use std::process::ExitCode;
use std::time::Duration;

use vhca_tests::siege::{
    Attack, Figures, Siege, SiegePlan, Trouble, heading, lend_a_hand, promise,
};

/// How often a setting that misses its bound is measured again. It counts if it misses each time.
const REPEATS: usize = 2;

fn main() -> Result<ExitCode, Trouble> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    lend_a_hand(&words)?;
    besiege(&words)
}

fn besiege(words: &[&str]) -> Result<ExitCode, Trouble> {
    let mut plan = SiegePlan {
        attacks: Vec::new(),
        counts: vec![1, 4, 16],
        length: Duration::from_secs(4),
        memory: None,
        program: std::env::current_exe()?,
    };
    let mut is_json = false;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        match *word {
            "--seconds" => plan.length = Duration::try_from_secs_f64(value()?.parse()?)?,
            "--attack" => plan.attacks.push(value()?.parse()?),
            "--attackers" => {
                let counts = value()?.split(',').map(str::parse);
                plan.counts = counts.collect::<Result<_, _>>()?;
            }
            "--memory-mib" => plan.memory = Some(value()?.parse::<u64>()? << 20),
            "--json" => is_json = true,
            _ => return Err(format!("{word}: there is no such option").into()),
        }
    }
    if plan.attacks.is_empty() {
        plan.attacks = Attack::ALL.to_vec();
    }
    if !is_json {
        println!("{}", heading());
    }
    let print = |figures: &Figures| {
        if !is_json {
            println!("{}", figures.line());
        }
    };
    let siege = plan.carry_out(print)?;
    if is_json {
        println!("{:#}", siege.json());
    }
    if let Some(memory) = siege.memory {
        eprintln!("the service had at most {} MiB", memory >> 20);
    }
    let Some(again) = siege.again(&plan, promise) else {
        return Ok(ExitCode::SUCCESS);
    };
    // Hosts have stalls of their own, so a setting that misses is measured twice more.
    eprintln!("again what missed, twice:");
    let repeated: [Siege; REPEATS] = [again.carry_out(print)?, again.carry_out(print)?];
    let mut code = ExitCode::SUCCESS;
    for (figures, bound) in siege.missed(promise) {
        let kept = repeated
            .iter()
            .filter(|siege| siege.keeps(figures, promise));
        let times = REPEATS - kept.count();
        let [p99, max] = [bound.p99, bound.max].map(|time| time.as_secs_f64() * 1e3);
        let stalled = bound.stalled * 100.0;
        eprintln!(
            "missed p99 {p99:.3} ms, max {max:.3} ms, {stalled:.0} % of the time beyond p99, \
             and missed again {times} of {REPEATS} times:"
        );
        eprintln!("{}", figures.line());
        if times == REPEATS {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}
