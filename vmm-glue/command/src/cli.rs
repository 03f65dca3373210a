//! The command line.

mod ask;
mod complete;
mod generate;
mod lab;
mod link;
mod number;
mod programs;
mod serve;
mod server;
mod trunk;
mod vfio;
mod words;

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use vhca_exercises::bench::{Case, Group, Options};

use number::number;

pub(crate) use ask::{
    CaptureArgs, GuestArgs, MetricsArgs, PlainArgs, QemuArgsArgs, SetArgs, SetCommand, ShowArgs,
    SmCommand, WhyArgs,
};
pub(crate) use complete::complete;
pub(crate) use generate::GenerateCommand;
pub(crate) use lab::{ConsoleArgs, LabArgs, TiedArgs};
pub(crate) use link::{ClearArgs, ClearCommand, WrongWords};
pub(crate) use programs::{EnvArgs, RunArgs};
pub(crate) use serve::ServeArgs;
pub(crate) use server::{ServerArgs, say};
pub(crate) use trunk::TrunkCommand;
pub(crate) use vfio::{ConnectArgs, Destination, PingArgs, VfioArgs, VfioCommand};

/// Virtual InfiniBand HCAs.
#[derive(Debug, Parser)]
#[command(
    name = "vhca",
    version,
    propagate_version = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Parses the arguments of the process. Ends it if they are wrong.
    pub(crate) fn of_process() -> Self {
        let command = number::take_negative_numbers(Self::command());
        let matches = without_empty_variables(command).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// Takes a variable of the environment that is empty for one that is not set.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| {
        let value = argument.get_env().and_then(std::env::var_os);
        match value {
            Some(value) if value.is_empty() => argument.env(None::<&'static str>),
            _ => argument,
        }
    });
    command.mut_subcommands(without_empty_variables)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Bring an emulated subnet up and let the guests of its hosts talk.
    Demo(DemoArgs),
    /// Measure how fast vhca is: MADs, connections, RDMA, multicast and subnet management.
    Bench(BenchArgs),
    /// Let the VFs of two hosts talk over a faulty fabric, and look for what went to somebody else or
    /// was left over.
    Drain(DrainArgs),
    /// Serve an emulated fabric whose hosts share their adapters among VFs, until SIGTERM.
    Serve(Box<ServeArgs>),
    /// Show what a running service has.
    Show(ShowArgs),
    /// Tell why a VF's port is as it is: the fault, what was seen of it, and what to do next.
    Why(WhyArgs),
    /// Change a running service.
    Set(SetArgs),
    /// End what set began.
    Clear(ClearArgs),
    /// Control vhca's own subnet manager in a running service.
    #[command(subcommand)]
    Sm(SmCommand),
    /// Capture packets of a running service for Wireshark, until ^C.
    Capture(CaptureArgs),
    /// Have the guests of a running service do something; vhca serve --guests starts them.
    Guest(GuestArgs),
    /// Print the metrics of a running service as the text that Prometheus reads.
    Metrics(MetricsArgs),
    /// Stop a running service, as SIGTERM does.
    Stop(PlainArgs),
    /// Print what QEMU is to be given so that its guest has a VF:
    /// eval "qemu-system-x86_64 $(vhca qemu-args HOST/1) ...".
    QemuArgs(QemuArgsArgs),
    /// Run a program that uses Linux' umad, such as opensm or ibnetdiscover, on a port of a running
    /// service.
    Run(RunArgs),
    /// Print what makes the programs of a shell use a port of a running service: eval "$(vhca env)".
    Env(EnvArgs),
    /// Make keys for trunks, which join the fabrics of services.
    #[command(subcommand)]
    Trunk(TrunkCommand),
    /// Drive a VF of a ConnectX-3 in this machine that is bound to vfio-pci: paths, groups, datagrams, connections.
    Vfio(VfioArgs),
    /// Start a fabric with unmodified Linux guests on its VFs, ready to type in, until ^C.
    Lab(LabArgs),
    /// Let the terminal be the console of a lab's guest, until ^].
    Console(ConsoleArgs),
    /// Generate man pages or shell completions.
    #[command(subcommand)]
    Generate(GenerateCommand),
    /// Become a program that ends with its parent.
    #[command(hide = true)]
    Tied(TiedArgs),
    /// Take the descriptors that clients pass to a service, which starts this process itself.
    #[command(hide = true, name = vhca_receiver::COMMAND)]
    Receiver,
    /// Connect for the trunks of a service, which starts this process itself.
    #[command(hide = true, name = vhca_trunk::COMMAND)]
    TrunkDoor,
    /// Run the PF's mux on a script: JSON lines from stdin to stdout, in virtual time.
    Replay,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Seed of everything random; in virtual time the same seed gives the same packets.
    #[arg(long, default_value_t = 1, value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,
    /// Print JSON lines: one object for each step, then a summary.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write every packet on every link and in every VF's tunnels to this file, for Wireshark.
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,
    /// Run by the wall clock instead of in virtual time.
    #[arg(long)]
    pub(crate) realtime: bool,
    /// Log on stderr what the PFs drop, a few lines for each VF and reason. RUST_LOG chooses more
    /// finely.
    #[arg(long, short)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Conversations: connections and service resolutions, complete, refused, abandoned, cut off.
    #[arg(long, default_value_t = 1_000_000, value_parser = number::<u64>(1..=u64::MAX))]
    pub(crate) conversations: u64,
    /// VFs of each of the two hosts.
    #[arg(long, default_value_t = 64, value_parser = number::<u16>(1..=254))]
    pub(crate) vfs: u16,
    /// Seed of everything random; the same seed gives the same packets.
    #[arg(long, default_value_t = 1, value_parser = number::<u64>(0..=u64::MAX))]
    pub(crate) seed: u64,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Only the cases of this group.
    #[arg(value_name = "GROUP", conflicts_with = "cases")]
    pub(crate) group: Option<Group>,
    /// Only these cases; can be given more than once.
    #[arg(long = "case", value_name = "CASE", value_delimiter = ',')]
    pub(crate) cases: Vec<Case>,
    /// VFs of the port, for the cases of its mux.
    #[arg(long, default_value_t = 126, value_parser = number::<u16>(1..=1024))]
    pub(crate) vfs: u16,
    /// Live connections, transactions or groups; each case has a number of its own by default.
    #[arg(long, value_parser = number::<u32>(1..=u32::MAX.into()))]
    pub(crate) live: Option<u32>,
    /// Runs of each case; the median is printed with minimum and maximum.
    #[arg(long, default_value_t = 5, value_parser = number::<u32>(1..=1000))]
    pub(crate) runs: u32,
    /// Print one JSON object for each case.
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchArgs {
    /// The cases to run and what to run them on. Ends the program if they do not go together, as any
    /// wrong argument does.
    pub(crate) fn checked(&self) -> (Vec<Case>, Options) {
        let cases = match self.group {
            Some(group) => group.cases().to_vec(),
            None if self.cases.is_empty() => Case::ALL.to_vec(),
            None => self.cases.clone(),
        };
        let options = Options {
            vfs: self.vfs,
            live: self.live,
            runs: self.runs,
        };
        for case in &cases {
            if let Err(error) = options.check(*case) {
                let kind = clap::error::ErrorKind::ValueValidation;
                Cli::command()
                    .error(kind, format!("--live: {error}"))
                    .exit();
            }
        }
        (cases, options)
    }
}
