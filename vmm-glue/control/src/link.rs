//! Planned faults of links, and the words by which they are given.

use core::fmt;
use core::time::Duration;

use serde::de::IntoDeserializer;
use serde::de::value::Error;
use serde::{Deserialize, Serialize};

/// Faults of a link, each way. Shares of packets are parts in a million; a fault that is not named does not occur.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkFaults {
    /// Packets that are lost.
    pub loss: u32,
    /// Packets that arrive twice.
    pub duplicate: u32,
    /// Packets of which a bit flips on the wire: the receiver's VCRC check fails.
    pub corrupt: u32,
    /// Time by which each packet is late, in nanoseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_ns: u64,
    /// Greatest width.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<FaultyWidth>,
    /// Highest speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<FaultySpeed>,
    /// Symbol errors that both ends count now, once.
    #[serde(skip_serializing_if = "is_none_at_all")]
    pub symbol_errors: u32,
}

impl LinkFaults {
    /// Returns `true` if packets are lost, repeated, damaged or late.
    #[must_use]
    pub const fn strike_packets(&self) -> bool {
        self.loss > 0 || self.duplicate > 0 || self.corrupt > 0 || self.delay_ns > 0
    }
}

/// Writes the faults that strike packets in the words of `vhca set link`.
impl fmt::Display for LinkFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
        ];
        let parts = parts.into_iter().filter(|(_, parts)| *parts > 0);
        let mut words: Vec<String> = parts
            .map(|(name, parts)| format!("{name}={}%", f64::from(parts) / 1e4))
            .collect();
        if self.delay_ns > 0 {
            words.push(format!("delay={:?}", Duration::from_nanos(self.delay_ns)));
        }
        f.write_str(&words.join(" "))
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_none_at_all(number: &u32) -> bool {
    *number == 0
}

/// Greatest width of a link with some lanes broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultyWidth {
    /// One lane.
    #[serde(rename = "1x")]
    X1,
    /// Two lanes.
    #[serde(rename = "2x")]
    X2,
    /// Four lanes.
    #[serde(rename = "4x")]
    X4,
    /// Eight lanes.
    #[serde(rename = "8x")]
    X8,
}

/// Highest speed of a link with a bad cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultySpeed {
    /// 2.5 Gb/s a lane.
    Sdr,
    /// 5 Gb/s a lane.
    Ddr,
    /// 10 Gb/s a lane.
    Qdr,
    /// 14.0625 Gb/s a lane.
    Fdr,
    /// 25.78125 Gb/s a lane.
    Edr,
    /// 53.125 Gb/s a lane.
    Hdr,
}

impl LinkFaults {
    /// Help for words that name a link and change it.
    pub const HELP: &'static str = "NODE/PORT, or NODE and a second one; behind them up or down, or faults, in place of the \
        faults before: loss=1%, duplicate=0.5% and corrupt=0.01% of the packets, delay=10us more for each, width=1x and \
        speed=sdr at most, symbol_errors=100 counted at both ends, once";

    /// Beginnings of the words of [`Self::set`], and the states of a link.
    pub const WORDS: [&'static str; 9] = [
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

    /// Sets a fault by a word such as `loss=1%`, `delay=10us`, `width=1x` or `symbol_errors=100`.
    ///
    /// # Errors
    /// The expected form, as a sentence.
    pub fn set(&mut self, word: &str) -> Result<(), String> {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let parts = || {
            let parts = parts_per_million(value);
            parts.ok_or("expected a percentage from 0% to 100%, such as 0.01%")
        };
        match name {
            "loss" => self.loss = parts()?,
            "duplicate" => self.duplicate = parts()?,
            "corrupt" => self.corrupt = parts()?,
            "delay" => {
                let delay = nanoseconds(value);
                self.delay_ns =
                    delay.ok_or("expected a time from 0us to 10s, such as 10us or 1ms")?;
            }
            "width" => self.width = Some(named(value).ok_or("expected 1x, 2x, 4x or 8x")?),
            "speed" => {
                let speed = named(value);
                self.speed = Some(speed.ok_or("expected sdr, ddr, qdr, fdr, edr or hdr")?);
            }
            "symbol_errors" => {
                let errors = value.parse();
                self.symbol_errors = errors
                    .map_err(|_| format!("expected a whole number from 0 to {}", u32::MAX))?;
            }
            _ => {
                let names = "loss, duplicate, corrupt, delay, width, speed or symbol_errors";
                return Err(format!("no such fault: expected {names}"));
            }
        }
        Ok(())
    }
}

/// Returns the value that has this name in JSON.
fn named<T: for<'n> Deserialize<'n>>(name: &str) -> Option<T> {
    T::deserialize(IntoDeserializer::<Error>::into_deserializer(name)).ok()
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
}
