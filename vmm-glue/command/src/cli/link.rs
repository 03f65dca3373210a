//! Arguments of the commands that change links.

use clap::{Args, Subcommand, ValueEnum};
use thiserror::Error;
use vhca_service::serve::control::protocol::Request;
use vhca_service::serve::{FaultySpeed, FaultyWidth, LinkFaults};

use super::complete;
use super::number::parse;
use super::server::ServerArgs;

/// Words behind the ends of a link, for completion.
const WORDS: [&str; 9] = [
    "up",
    "down",
    "loss=",
    "duplicate=",
    "corrupt=",
    "delay=",
    "width=",
    "speed=",
    "symbol_errors=",
];

#[derive(Debug, Args)]
pub(crate) struct SetLinkArgs {
    /// NODE/PORT, or NODE and a second one; behind them up or down, or faults, in place of those before: loss=1%,
    /// duplicate=0.5% and corrupt=0.01% of the packets, delay=10us more for each, width=1x and speed=sdr at most,
    /// symbol_errors=100 counted at both ends, once.
    #[arg(
        required = true,
        num_args = 2..=16,
        value_name = "END... up|down|FAULT=VALUE...",
        add = complete::link(&WORDS)
    )]
    words: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// Words behind `set link` that are none of a link, a state and faults.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct WrongWords(String);

impl SetLinkArgs {
    pub(crate) fn request(mut self) -> Result<Request, WrongWords> {
        let faults = self.words.iter().position(|word| word.contains('='));
        let faults = faults.map(|first| self.words.split_off(first));
        let up = match self.words.last().map(String::as_str) {
            _ if faults.is_some() => None,
            Some("up") => Some(true),
            Some("down") => Some(false),
            _ => {
                let message = "the last word must be up, down, or a fault such as loss=1%";
                return Err(WrongWords(message.to_owned()));
            }
        };
        self.words
            .truncate(self.words.len() - usize::from(up.is_some()));
        if !matches!(self.words.len(), 1 | 2) {
            let message = "a link has one end or two: NODE/PORT, or NODE NODE";
            return Err(WrongWords(message.to_owned()));
        }
        let mut ends = self.words.into_iter();
        let (a, b) = (ends.next().unwrap_or_default(), ends.next());
        let Some(up) = up else {
            let faults = link_faults(&faults.unwrap_or_default())?;
            return Ok(Request::SetLinkFaults { a, b, faults });
        };
        Ok(Request::SetLink { a, b, up })
    }
}

/// Of several values for one fault the last counts.
fn link_faults(words: &[String]) -> Result<LinkFaults, WrongWords> {
    let mut faults = LinkFaults::default();
    for word in words {
        let set = set_fault(&mut faults, word);
        set.map_err(|why| WrongWords(format!("{word:?}: {why}")))?;
    }
    Ok(faults)
}

fn set_fault(faults: &mut LinkFaults, word: &str) -> Result<(), String> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    let parts = || {
        let parts = parts_per_million(value);
        parts.ok_or("expected a percentage from 0% to 100%, such as 0.01%")
    };
    match name {
        "loss" => faults.loss = parts()?,
        "duplicate" => faults.duplicate = parts()?,
        "corrupt" => faults.corrupt = parts()?,
        "delay" => {
            let delay = nanoseconds(value);
            faults.delay_ns =
                delay.ok_or("expected a time from 0us to 10s, such as 10us or 1ms")?;
        }
        "width" => {
            let width = FaultyWidth::from_str(value, false);
            faults.width = Some(width.map_err(|_| "expected 1x, 2x, 4x or 8x")?);
        }
        "speed" => {
            let speed = FaultySpeed::from_str(value, false);
            faults.speed = Some(speed.map_err(|_| "expected sdr, ddr, qdr, fdr, edr or hdr")?);
        }
        "symbol_errors" => faults.symbol_errors = parse(value, &(0..=u32::MAX.into()))?,
        _ => {
            let names = "loss, duplicate, corrupt, delay, width, speed or symbol_errors";
            return Err(format!("no such fault: expected {names}"));
        }
    }
    Ok(())
}

/// Reads a time in whole units, of ten seconds at most.
fn nanoseconds(text: &str) -> Option<u64> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let unit: u64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let time = number.parse::<u64>().ok()?.checked_mul(unit)?;
    Some(time).filter(|time| *time <= 10_000_000_000)
}

/// Reads a percentage with at most four decimals.
fn parts_per_million(text: &str) -> Option<u32> {
    let (whole, decimals) = match text.strip_suffix('%')?.split_once('.') {
        Some((whole, decimals)) => (whole, decimals),
        None => (text.strip_suffix('%')?, ""),
    };
    let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
    if whole.is_empty() || decimals.len() > 4 || !is_number(whole) || !is_number(decimals) {
        return None;
    }
    let parts: u64 = format!("{whole}{decimals:0<4}").parse().ok()?;
    u32::try_from(parts)
        .ok()
        .filter(|parts| *parts <= 1_000_000)
}

#[derive(Debug, Args)]
pub(crate) struct ClearArgs {
    #[command(subcommand)]
    pub(crate) what: ClearCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClearCommand {
    /// End the faults of links: of a port (NODE/PORT), or of all between two nodes.
    Link(ClearLinkArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ClearLinkArgs {
    /// NODE/PORT, or NODE and a second one.
    #[arg(add = complete::link(&[]))]
    a: String,
    /// The node at the other end.
    #[arg(add = complete::node())]
    b: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

impl ClearLinkArgs {
    pub(crate) fn request(&self) -> Request {
        Request::SetLinkFaults {
            a: self.a.clone(),
            b: self.b.clone(),
            faults: LinkFaults::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_has_four_decimals_at_most_and_is_no_more_than_all() {
        for (text, parts) in [
            ("1%", Some(10_000)),
            ("0.01%", Some(100)),
            ("12.3456%", Some(123_456)),
            ("100%", Some(1_000_000)),
            ("0%", Some(0)),
            ("100.0001%", None),
            ("0.00001%", None),
            ("1", None),
            ("%", None),
            (".5%", None),
            ("-1%", None),
            ("1.+1%", None),
            ("99999999999999999999999%", None),
        ] {
            assert_eq!(parts_per_million(text), parts, "{text}");
        }
    }

    #[test]
    fn a_delay_has_a_unit_and_is_ten_seconds_at_most() {
        for (text, time) in [
            ("10us", Some(10_000)),
            ("0ns", Some(0)),
            ("1ms", Some(1_000_000)),
            ("10s", Some(10_000_000_000)),
            ("10001ms", None),
            ("10", None),
            ("us", None),
            ("-1us", None),
            ("1.5ms", None),
            ("1 us", None),
            ("1h", None),
            ("99999999999999999999s", None),
            ("18446744073709551615s", None),
            ("", None),
        ] {
            assert_eq!(nanoseconds(text), time, "{text}");
        }
    }

    #[test]
    fn words_of_a_link_are_its_ends_and_then_a_state_or_faults() {
        let request = |words: &str| {
            let words = words.split(' ').map(str::to_owned).collect();
            let server = ServerArgs {
                control: None,
                wait: 0,
            };
            SetLinkArgs { words, server }.request().ok()
        };
        let faults = LinkFaults {
            loss: 10_000,
            corrupt: 5_000,
            ..LinkFaults::default()
        };
        let (a, b) = ("A/1".to_owned(), None);
        let planned = Request::SetLinkFaults { a, b, faults };
        assert_eq!(request("A/1 loss=1% corrupt=0.5%"), Some(planned));
        let faults = LinkFaults {
            delay_ns: 10_000,
            width: Some(FaultyWidth::X1),
            speed: Some(FaultySpeed::Sdr),
            symbol_errors: 5,
            ..LinkFaults::default()
        };
        let (a, b) = ("A".to_owned(), Some("B".to_owned()));
        let planned = Request::SetLinkFaults { a, b, faults };
        let words = "A B delay=10us width=4x speed=sdr symbol_errors=5 width=1x";
        assert_eq!(request(words), Some(planned));
        let (a, b, up) = ("A".to_owned(), Some("B".to_owned()), false);
        assert_eq!(request("A B down"), Some(Request::SetLink { a, b, up }));
        for wrong in [
            "A/1",
            "up",
            "A B C up",
            "A/1 loss=1% up",
            "A/1 lost=1%",
            "A/1 width=3x",
            "A/1 speed=SDR",
            "A/1 symbol_errors=-1",
            "A/1 symbol_errors=4294967296",
            "A/1 delay=11s",
            "loss=1%",
        ] {
            assert_eq!(request(wrong), None, "{wrong}");
        }
    }
}
