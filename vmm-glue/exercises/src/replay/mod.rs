//! `vhca replay`: the PF's mux as a pure function of a script.
//!
//! JSON lines in, JSON lines out, virtual time only. `docs/replay.md` of this package is the format.

mod config;
mod lines;
mod run;
mod script;
#[cfg(test)]
mod tests;
mod text;

use std::io::{self, BufRead, BufWriter, Read, Write};

use pf_context::Cause;
use thiserror::Error;

use self::config::Config;
use self::run::Run;
use self::script::LineError;

/// Why a run ended before its input did.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// A line that cannot be understood.
    #[error("line {line}: {reason}")]
    Script {
        /// Its number, counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// The script cannot be read.
    #[error("cannot read the script")]
    Read(#[source] io::Error),
    /// The output cannot be written.
    #[error("cannot print")]
    Write(#[source] io::Error),
}

/// Runs a script to its end. What a line causes is written and flushed before the next one is read.
///
/// # Errors
/// [`ReplayError`]; the output of the lines before is written by then.
pub fn run(mut script: impl BufRead, out: impl Write) -> Result<(), ReplayError> {
    let mut out = BufWriter::new(out);
    let mut current = None;
    let mut line = Vec::new();
    for number in 1.. {
        if !read_line(&mut script, &mut line).map_err(ReplayError::Read)? {
            break;
        }
        let step = understand(&mut current, &line).map_err(|reason| ReplayError::Script {
            line: number,
            reason: printable(&reason),
        })?;
        if let Some((run, step)) = step {
            run.take(Cause(number), step, &mut out)
                .and_then(|()| out.flush())
                .map_err(ReplayError::Write)?;
        }
    }
    Ok(())
}

/// A reason in one line, whatever it quotes from the script.
fn printable(reason: &LineError) -> String {
    let text = reason.to_string();
    text.replace(char::is_control, "\u{fffd}")
}

/// Bytes of a line that are looked at. The longest MAD of any use has 512 digits.
const LONGEST_LINE: u64 = 1 << 20;

/// Reads a line with its end, or one byte more than a line can have; `false` at the end of the input.
fn read_line(script: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = script.take(LONGEST_LINE + 1).read_until(b'\n', line)?;
    Ok(read != 0)
}

/// Starts the run or checks the next step of it. `None` for a configuration, which is no step.
fn understand<'a>(
    current: &'a mut Option<Run>,
    line: &[u8],
) -> Result<Option<(&'a mut Run, script::Step)>, LineError> {
    if u64::try_from(line.len()).is_ok_and(|bytes| bytes > LONGEST_LINE) {
        return Err(LineError::TooLong);
    }
    if line.trim_ascii().is_empty() {
        return Err(LineError::Empty);
    }
    let run = match current {
        Some(run) => run,
        None if script::is_config(line)? => {
            *current = Some(Run::new(config::parse(line)?)?);
            return Ok(None);
        }
        None => current.insert(Run::new(Config::default())?),
    };
    let step = run.parse(line)?;
    Ok(Some((run, step)))
}
