//! Arguments of the commands that ask a running service.

use core::ops::RangeInclusive;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use vhca_service::places::Places;
use vhca_service::serve::control::protocol::{Request, ShowQuery};
use vhca_service::serve::control::{Remote, default_places};
use vhca_service::serve::{GuestAction, LinkFaults, Right, VfChange, VfState};
use vhca_service::show::{By, Format, Subject};

use super::number::{number, parse};

/// Where the service is, and how long it may take to start.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// The control socket of the service; by default $XDG_RUNTIME_DIR/vhca/control.sock or
    /// /tmp/vhca-UID/control.sock, or else that of the packaged service, /run/vhca/control.sock.
    #[arg(long, value_name = "PATH", env = "VHCA_CONTROL", global = true)]
    control: Option<PathBuf>,
    /// Wait so many seconds for a service that starts; 0 for not at all.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = number::<u32>(0..=86_400), global = true)]
    wait: u32,
}

impl ServerArgs {
    /// Returns the places of control sockets.
    pub(crate) fn places(&self) -> anyhow::Result<Places> {
        Ok(Places {
            paths: match &self.control {
                Some(path) => vec![path.clone()],
                None => default_places()?,
            },
            wait: Duration::from_secs(self.wait.into()),
        })
    }

    /// Connects to the service.
    pub(crate) fn connect(&self) -> anyhow::Result<Remote> {
        Ok(Remote::connect_to(&self.places()?, &mut say)?)
    }
}

/// Tells the user what goes on.
pub(super) fn say(line: &str) {
    // Without stderr there is nobody to be told.
    let _ = writeln!(io::stderr(), "vhca: {line}");
}

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// What to show.
    #[arg(value_enum)]
    pub(crate) subject: Subject,
    /// Show the rows of this host only; of ports, drops, qps and fabric, those of this node.
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Show the rows of this VF only: N, or HOST/N. Ports and fabric have none.
    #[arg(long, value_name = "VF")]
    pub(crate) vf: Option<String>,
    /// Show only rows with a problem: of vfs, ports, guids, drops (of the last minute) and fabric.
    #[arg(long)]
    pub(crate) problems: bool,
    /// Print all columns, and no value cut; by default lines have at most 120 characters.
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print one JSON object, which always has all columns.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

impl ShowArgs {
    pub(crate) fn query(self) -> ShowQuery {
        ShowQuery {
            subject: self.subject,
            host: self.host,
            vf: self.vf,
            problems: self.problems,
            wide: self.wide,
            format: if self.json {
                Format::Json
            } else {
                Format::Text
            },
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The VF: N, or HOST/N; or HOST/all or all, to list the VFs with a fault.
    pub(crate) vf: String,
    /// Its host.
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Which of its ports; by default 1, of several VFs all.
    #[arg(long, value_parser = number::<u8>(1..=254))]
    pub(crate) port: Option<u8>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct QemuArgsArgs {
    /// The VFs of the guest: N, or HOST/N.
    #[arg(required = true)]
    pub(crate) vf: Vec<String>,
    /// Their host.
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// The guest's memory in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = number::<u32>(1..=u32::MAX.into()))]
    pub(crate) memory: u32,
    /// Print one JSON object with a list of arguments.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CaptureArgs {
    /// Where: fabric for every link, tunnels for the tunnels of all VFs, NODE or NODE/PORT for links,
    /// HOST/vfN for the tunnels of a VF.
    #[arg(long, default_value = "fabric")]
    pub(crate) tap: String,
    /// Stop after so many frames.
    #[arg(long, value_parser = number::<u64>(1..=u64::MAX))]
    pub(crate) count: Option<u64>,
    /// Stop after so many seconds.
    #[arg(long, value_parser = number::<u32>(1..=u32::MAX.into()))]
    pub(crate) seconds: Option<u32>,
    /// The capture file, or - for stdout.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    #[command(subcommand)]
    pub(crate) what: SetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SetCommand {
    /// Change a VF.
    Vf(SetVfArgs),
    /// Plug cables in or out, or plan faults: of a port (NODE/PORT), or of all links between two nodes.
    Link(SetLinkArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SetVfArgs {
    /// The VF: N, HOST/N, HOST/all, or all.
    vf: String,
    /// Its host.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Which of its ports.
    #[arg(long, default_value_t = 1, value_parser = number::<u8>(1..=254))]
    port: u8,
    #[command(subcommand)]
    change: VfChangeCommand,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum VfChangeCommand {
    /// Its GUID: 0x and digits, sm, hardware, or none.
    #[command(name = "port_guid")]
    PortGuid { guid: String },
    /// Its P_Key table: for each index a key such as 0x8001, index:N for a place of the port's table,
    /// or - for nothing.
    Pkeys {
        #[arg(required = true)]
        pkeys: Vec<String>,
    },
    /// How much it may send: rate=N burst=N queue=N weight=N; what is not named stays.
    Limits {
        #[arg(required = true, value_parser = limit)]
        limits: Vec<Limit>,
    },
    /// What it may do beyond the ordinary: these and nothing else; none without any.
    Rights {
        #[arg(value_enum)]
        rights: Vec<Right>,
    },
    /// The addresses and services at which it gets SIDR requests that come without a GRH: IP addresses,
    /// service ids such as 0x0000000001111c06 or 0x0000000001110000/48, each with @0x8001 behind it for one
    /// partition; none without any.
    Sidr { entries: Vec<String> },
    /// The administrator's will.
    State {
        #[arg(value_enum)]
        state: VfState,
    },
}

/// A limit by its name.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Rate(u32),
    Burst(u32),
    Queue(usize),
    Weight(u16),
}

fn limit(text: &str) -> Result<Limit, String> {
    const U32: RangeInclusive<u64> = 0..=u32::MAX as u64;
    let (name, value) = text.split_once('=').ok_or("expected NAME=NUMBER")?;
    match name {
        "rate" => parse(value, &U32).map(Limit::Rate),
        "burst" => parse(value, &U32).map(Limit::Burst),
        "queue" => parse(value, &U32).map(Limit::Queue),
        "weight" => parse(value, &(0..=u16::MAX.into())).map(Limit::Weight),
        _ => Err("expected rate, burst, queue or weight".to_owned()),
    }
}

impl SetVfArgs {
    pub(crate) fn request(self) -> Request {
        Request::SetVf {
            vf: self.vf,
            host: self.host,
            port: self.port,
            change: match self.change {
                VfChangeCommand::PortGuid { guid } => VfChange::PortGuid(guid),
                VfChangeCommand::Pkeys { pkeys } => VfChange::Pkeys(pkeys),
                VfChangeCommand::Limits { limits } => limits_change(&limits),
                VfChangeCommand::Rights { rights } => VfChange::Rights(rights),
                VfChangeCommand::Sidr { entries } => VfChange::Sidr(entries),
                VfChangeCommand::State { state } => VfChange::State(state),
            },
        }
    }
}

/// Of several values for one limit the last counts.
fn limits_change(limits: &[Limit]) -> VfChange {
    let (mut rate, mut burst, mut queue, mut weight) = (None, None, None, None);
    for limit in limits {
        match *limit {
            Limit::Rate(value) => rate = Some(value),
            Limit::Burst(value) => burst = Some(value),
            Limit::Queue(value) => queue = Some(value),
            Limit::Weight(value) => weight = Some(value),
        }
    }
    VfChange::Limits {
        rate,
        burst,
        queue,
        weight,
    }
}

#[derive(Debug, Args)]
pub(crate) struct SetLinkArgs {
    /// NODE/PORT, or NODE and a second one; behind them up or down, or faults: loss=1% duplicate=0.5% corrupt=0.01%.
    #[arg(required = true, num_args = 2..=5, value_name = "END... up|down|FAULT=PERCENT...")]
    words: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

impl SetLinkArgs {
    pub(crate) fn request(mut self) -> anyhow::Result<Request> {
        let faults = self.words.iter().position(|word| word.contains('='));
        let faults = faults.map(|first| self.words.split_off(first));
        let up = match self.words.last().map(String::as_str) {
            _ if faults.is_some() => None,
            Some("up") => Some(true),
            Some("down") => Some(false),
            _ => anyhow::bail!("the last word must be up, down, or a fault such as loss=1%"),
        };
        self.words
            .truncate(self.words.len() - usize::from(up.is_some()));
        anyhow::ensure!(
            matches!(self.words.len(), 1 | 2),
            "a link has one end or two: NODE/PORT, or NODE NODE"
        );
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
fn link_faults(words: &[String]) -> anyhow::Result<LinkFaults> {
    let mut faults = LinkFaults::default();
    for word in words {
        let (name, percent) = word.split_once('=').unwrap_or((word, ""));
        let fault = match name {
            "loss" => &mut faults.loss,
            "duplicate" => &mut faults.duplicate,
            "corrupt" => &mut faults.corrupt,
            _ => anyhow::bail!("{word:?} is no fault: expected loss, duplicate or corrupt"),
        };
        let parts = parts_per_million(percent);
        *fault = parts.ok_or_else(|| {
            anyhow::anyhow!("{word:?}: expected a percentage from 0% to 100%, such as 0.01%")
        })?;
    }
    Ok(faults)
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
    a: String,
    /// The node at the other end.
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

#[derive(Debug, Args)]
pub(crate) struct GuestArgs {
    /// The VFs: N, HOST/N, HOST/all, or all.
    vf: String,
    /// Their host.
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    #[command(subcommand)]
    action: GuestAction,
    /// Print one JSON object.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

impl GuestArgs {
    pub(crate) fn request(self, format: Format) -> Request {
        Request::Guest {
            vf: self.vf,
            host: self.host,
            action: self.action,
            format,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Print one sum for each metric, sums for each host, or each VF by itself.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) by: By,
    /// Print those of this host only.
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
    /// Print those of this VF only: N, or HOST/N.
    #[arg(long, value_name = "VF")]
    pub(crate) vf: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PlainArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
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
        let (a, b, up) = ("A".to_owned(), Some("B".to_owned()), false);
        assert_eq!(request("A B down"), Some(Request::SetLink { a, b, up }));
        for wrong in [
            "A/1",
            "up",
            "A B C up",
            "A/1 loss=1% up",
            "A/1 lost=1%",
            "loss=1%",
        ] {
            assert_eq!(request(wrong), None, "{wrong}");
        }
    }
}
