//! Arguments of the commands that ask a running service.

use core::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Subcommand};
use vhca_control::protocol::{Request, ShowQuery};
use vhca_control::{By, GuestAction, Right, Subject, VfChange, VfState};

use super::link::SetLinkArgs;
use super::number::{number, parse};
use super::server::ServerArgs;
use super::words::{GRAINS, RIGHTS, STATES, subjects, words};
use super::{Cli, complete};

#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// What to show.
    #[arg(value_parser = subjects())]
    pub(crate) subject: Subject,
    /// Show the rows of this host only; of ports, drops, qps and fabric, those of this node.
    #[arg(long, value_name = "NAME", add = complete::node())]
    pub(crate) host: Option<String>,
    /// Show the rows of this VF only: N, or HOST/N. Ports, fabric and sm have none.
    #[arg(long, value_name = "VF", add = complete::vf())]
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
    /// With vfs: wait until those shown are up, for so many seconds at most, 60 without a number; exit with 1 and name those
    /// that are not.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60", value_parser = number::<u32>(1..=86_400))]
    pub(crate) wait_up: Option<u32>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

impl ShowArgs {
    /// Returns the query, and for how long it is to wait for VFs. Ends the program if there are none to wait for, as any wrong
    /// argument does.
    pub(crate) fn query(&self) -> (ShowQuery, Option<Duration>) {
        if self.wait_up.is_some() && self.subject != Subject::Vfs {
            let kind = clap::error::ErrorKind::ArgumentConflict;
            let message = "--wait-up waits for VFs: use it with vhca show vfs";
            Cli::command().error(kind, message).exit();
        }
        let limit = self.wait_up.map(|limit| Duration::from_secs(limit.into()));
        let query = ShowQuery {
            subject: self.subject,
            host: self.host.clone(),
            vf: self.vf.clone(),
            problems: self.problems,
        };
        (query, limit)
    }
}

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The VF: N, or HOST/N; or HOST/all or all, to list the VFs with a fault.
    #[arg(add = complete::vfs())]
    pub(crate) vf: String,
    /// A second VF (HOST/N) or port (NODE/PORT): why can the two not talk?
    #[arg(add = complete::vf(), conflicts_with = "host")]
    pub(crate) peer: Option<String>,
    /// Its host.
    #[arg(long, value_name = "NAME", add = complete::host())]
    pub(crate) host: Option<String>,
    /// Which of its ports; by default the first with a fault, of several VFs all, of two 1.
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
    #[arg(required = true, add = complete::vf())]
    pub(crate) vf: Vec<String>,
    /// Their host.
    #[arg(long, value_name = "NAME", add = complete::host())]
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
    /// Redirect a trunk that connects: its port leaves the fabric that it is connected to, and joins another one, or another port.
    Trunk(SetTrunkArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SetVfArgs {
    /// The VF: N, HOST/N, HOST/all, or all.
    #[arg(add = complete::vfs())]
    vf: String,
    /// Its host.
    #[arg(long, value_name = "NAME", add = complete::host())]
    host: Option<String>,
    /// Which of its ports.
    #[arg(long, default_value_t = 1, value_parser = number::<u8>(1..=254))]
    port: u8,
    #[command(subcommand)]
    change: VfChangeCommand,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct SetTrunkArgs {
    /// The port of the trunk: NODE/PORT.
    #[arg(add = complete::link(&[]))]
    port: String,
    /// The address at which its new other end listens: tls:HOST:PORT, tcp:HOST:PORT, unix:PATH or vhost:PATH.
    address: String,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

impl SetTrunkArgs {
    pub(crate) fn request(&self) -> Request {
        Request::SetTrunk {
            port: self.port.clone(),
            address: self.address.clone(),
        }
    }
}

#[derive(Debug, Subcommand)]
enum VfChangeCommand {
    /// Its GUID: 0x and digits, sm, hardware, or none.
    #[command(name = "port_guid")]
    PortGuid {
        /// The GUID, or where it comes from.
        guid: String,
    },
    /// Its P_Key table: for each index a key such as 0x8001, index:N for a place of the port's table,
    /// or - for nothing.
    Pkeys {
        /// The keys, in the order of the table.
        #[arg(required = true)]
        pkeys: Vec<String>,
    },
    /// How much it may send: rate=N burst=N queue=N weight=N; what is not named stays.
    Limits {
        /// MADs per second (0: no limit), at once, and waiting; share of a busy port.
        #[arg(required = true, value_parser = limit)]
        limits: Vec<Limit>,
    },
    /// What it may do beyond the ordinary: these and nothing else; none without any.
    Rights {
        /// All that it may.
        #[arg(value_parser = words::<Right>(RIGHTS))]
        rights: Vec<Right>,
    },
    /// The addresses and services at which it gets SIDR requests that come without a GRH: IP addresses,
    /// service ids such as 0x0000000001111c06 or 0x0000000001110000/48, each with @0x8001 behind it for one
    /// partition; none without any.
    Sidr {
        /// The addresses and services.
        entries: Vec<String>,
    },
    /// The administrator's will.
    State {
        /// Up as soon as it can be, or down.
        #[arg(value_parser = words::<VfState>(STATES))]
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
pub(crate) struct GuestArgs {
    /// The VFs: N, HOST/N, HOST/all, or all.
    #[arg(add = complete::vfs())]
    vf: String,
    /// Their host.
    #[arg(long, value_name = "NAME", add = complete::host())]
    host: Option<String>,
    #[command(subcommand)]
    action: GuestCommand,
    /// Print one JSON object.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

impl GuestArgs {
    /// Returns the VFs as the user names them, and their host if that is named apart.
    pub(crate) fn vfs(&self) -> (&str, Option<&str>) {
        (&self.vf, self.host.as_deref())
    }

    pub(crate) fn request(self) -> Request {
        Request::Guest {
            vf: self.vf,
            host: self.host,
            action: self.action.into(),
        }
    }
}

#[derive(Debug, Subcommand)]
enum GuestCommand {
    /// Become full members of a multicast group. If there is none, it is made, in the partition of the VF's
    /// first P_Key.
    Join {
        /// MGID of the group.
        mgid: String,
    },
    /// Leave a group.
    Leave {
        /// MGID of the group.
        mgid: String,
    },
    /// Ask the SA for a path.
    Query {
        /// GID at the path's end.
        dgid: String,
    },
    /// Send a datagram: to a group that they joined, or to the guest that has a GID.
    Send {
        /// GID of the group or of the guest.
        to: String,
        /// The message.
        text: String,
    },
    /// Ask the SA for many paths at once, to measure it.
    Paths {
        /// Number of paths that each guest asks for.
        #[arg(long, default_value_t = 1000)]
        count: u32,
        /// Number of the fabric's adapters to which these paths lead, in turn.
        #[arg(long, default_value_t = 200)]
        destinations: usize,
    },
    /// Report their groups, queue pairs and received datagrams.
    Status,
}

impl From<GuestCommand> for GuestAction {
    fn from(command: GuestCommand) -> Self {
        match command {
            GuestCommand::Join { mgid } => Self::Join { mgid },
            GuestCommand::Leave { mgid } => Self::Leave { mgid },
            GuestCommand::Query { dgid } => Self::Query { dgid },
            GuestCommand::Send { to, text } => Self::Send { to, text },
            GuestCommand::Paths {
                count,
                destinations,
            } => Self::Paths {
                count,
                destinations,
            },
            GuestCommand::Status => Self::Status {},
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Print one sum for each metric, sums for each host, or each VF by itself.
    #[arg(long, value_parser = words::<By>(GRAINS), default_value = "host")]
    pub(crate) by: By,
    /// Print those of this host, or switch, only.
    #[arg(long, value_name = "NAME", add = complete::node())]
    pub(crate) host: Option<String>,
    /// Print those of this VF only: N, or HOST/N. They are those of --by vf.
    #[arg(long, value_name = "VF", add = complete::vf())]
    pub(crate) vf: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SmCommand {
    /// Start a heavy sweep: find all nodes, read their tables back, and write all that differs.
    Sweep(PlainArgs),
}

#[derive(Debug, Args)]
pub(crate) struct PlainArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}
