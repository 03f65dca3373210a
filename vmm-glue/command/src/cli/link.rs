//! Arguments of the commands that change links.

use clap::{Args, Subcommand};
use thiserror::Error;
use vhca_control::LinkFaults;
use vhca_control::protocol::Request;

use super::complete;
use super::server::ServerArgs;

#[derive(Debug, Args)]
pub(crate) struct SetLinkArgs {
    #[arg(
        help = LinkFaults::HELP,
        required = true,
        num_args = 1..=16,
        value_name = "END... up|down|FAULT=VALUE...",
        add = complete::link(&LinkFaults::WORDS)
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
    pub(crate) fn request(&self) -> Result<Request, WrongWords> {
        let mut words = self.words.clone();
        let faults = words.iter().position(|word| word.contains('='));
        let faults = faults.map(|first| words.split_off(first));
        let up = match words.last().map(String::as_str) {
            _ if faults.is_some() => None,
            Some("up") => Some(true),
            Some("down") => Some(false),
            _ => return Err(WrongWords(no_state())),
        };
        words.truncate(words.len() - usize::from(up.is_some()));
        if !matches!(words.len(), 1 | 2) {
            let message = "a link has one end or two: NODE/PORT, or NODE NODE";
            return Err(WrongWords(message.to_owned()));
        }
        let mut ends = words.into_iter();
        let (a, b) = (ends.next().unwrap_or_default(), ends.next());
        let Some(up) = up else {
            let faults = link_faults(&faults.unwrap_or_default())?;
            return Ok(Request::SetLinkFaults { a, b, faults });
        };
        Ok(Request::SetLink { a, b, up })
    }
}

/// Returns what may stand behind the ends of a link.
fn no_state() -> String {
    let [states @ .., last] = LinkFaults::WORDS.map(|word| match word {
        fault if fault.ends_with('=') => format!("{fault}VALUE"),
        state => state.to_owned(),
    });
    let states = states.join(", ");
    format!(
        "say behind the link what to do with it: {states} or {last}; vhca set link --help has examples"
    )
}

/// Of several values for one fault the last counts.
fn link_faults(words: &[String]) -> Result<LinkFaults, WrongWords> {
    let mut faults = LinkFaults::default();
    for word in words {
        let set = faults.set(word);
        set.map_err(|why| WrongWords(format!("{word:?}: {why}")))?;
    }
    Ok(faults)
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
    use vhca_control::{FaultySpeed, FaultyWidth};

    use super::*;

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

    #[test]
    fn ends_alone_are_answered_with_the_words_that_may_follow() {
        assert_eq!(
            no_state(),
            "say behind the link what to do with it: up, down, loss=VALUE, duplicate=VALUE, corrupt=VALUE, delay=VALUE, \
             width=VALUE, speed=VALUE or symbol_errors=VALUE; vhca set link --help has examples"
        );
    }
}
