//! The `vhca` command.

mod ask;
mod capture;
mod cli;
mod elf;
mod failure;
mod lab;
mod packages;
mod program_file;
mod programs;
mod qemu;
mod vfio;
mod wait_up;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;

use anyhow::Context;
use env_logger::Env;
use serde::Serialize;
use vhca_exercises::bench::Bench;
use vhca_exercises::demo::{self, Clock, DemoError};
use vhca_exercises::replay;
use vhca_vfio_user::memory::is_mapped_privately;

use crate::cli::{
    BenchArgs, Cli, Command, ConsoleArgs, DemoArgs, DrainArgs, EnvArgs, LabArgs, QemuArgsArgs,
    RunArgs, ServeArgs, TiedArgs, TrunkCommand,
};

fn main() -> ExitCode {
    cli::complete();
    let outcome = match Cli::of_process().command {
        Command::Demo(args) => demo(&args),
        Command::Bench(args) => bench(&args).map(|()| true),
        Command::Drain(args) => drain(&args),
        Command::Serve(args) => serve(&args).map(|()| true),
        Command::Show(args) => ask::show(&args),
        Command::Why(args) => ask::why(args),
        Command::QemuArgs(args) => qemu_args(&args).map(|()| true),
        Command::Set(args) => ask::set(args).map(|()| true),
        Command::Clear(args) => ask::clear(args).map(|()| true),
        Command::Sm(what) => ask::sm(&what).map(|()| true),
        Command::Capture(args) => capture::capture(&args).map(|()| true),
        Command::Guest(args) => ask::guest(args),
        Command::Metrics(args) => ask::metrics(args).map(|()| true),
        Command::Stop(args) => ask::stop(&args).map(|()| true),
        Command::Run(args) => run(&args),
        Command::Env(args) => environment(&args),
        Command::Trunk(what) => trunk(&what).map(|()| true),
        Command::Vfio(args) => vfio::run(&args).map(|()| true),
        Command::Lab(args) => lab(&args).map(|()| true),
        Command::Console(args) => console(&args).map(|()| true),
        Command::Generate(what) => what.run().map(|()| true),
        Command::Tied(args) => tied(args),
        Command::Receiver => vhca_receiver::run(is_mapped_privately)
            .map(|()| true)
            .map_err(Into::into),
        Command::TrunkDoor => trunk_door().map(|()| true),
        Command::Replay => replay().map(|()| true),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => failure::end(&error),
    }
}

/// Logs on stderr: what RUST_LOG says, or else the default.
fn start_log(default: &str) {
    env_logger::Builder::from_env(Env::default().default_filter_or(default)).init();
}

/// Makes or reads a key of trunks, and prints its public key.
fn trunk(what: &TrunkCommand) -> anyhow::Result<()> {
    let key = what.run()?;
    writeln!(io::stdout(), "{key}").context("cannot print")
}

/// Connects for the service at the other end of stdin.
fn trunk_door() -> anyhow::Result<()> {
    let channel = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(vhca_trunk::run(channel)?)
}

/// Runs the demo. Returns `true` if every step went well.
fn demo(args: &DemoArgs) -> anyhow::Result<bool> {
    start_log(if args.verbose { "warn" } else { "off" });
    let capture: Option<Box<dyn Write>> = match &args.capture {
        None => None,
        Some(path) => {
            let file = File::create(path)
                .with_context(|| format!("cannot create the capture file {}", path.display()))?;
            Some(Box::new(BufWriter::new(file)))
        }
    };
    let options = demo::Options {
        seed: args.seed,
        clock: if args.realtime {
            Clock::Real
        } else {
            Clock::Virtual
        },
        capture,
    };
    let summary = demo::run(options, &mut |report| print(args.json, report));
    let summary = match (summary, &args.capture) {
        (Err(error @ DemoError::Capture(_)), Some(path)) => {
            Err(error).with_context(|| format!("capture file {}", path.display()))
        }
        (summary, _) => summary.context("the demo was cut short"),
    }?;
    print(args.json, &summary).context("cannot print")?;
    Ok(summary.ok)
}

fn bench(args: &BenchArgs) -> anyhow::Result<()> {
    let (cases, options) = args.checked();
    let mut bench = Bench::new(options);
    for case in cases {
        let result = bench.run(case).with_context(|| format!("case {case}"))?;
        print(args.json, &result).context("cannot print")?;
    }
    Ok(())
}

/// Runs the conversations. Returns `true` if all went well.
fn drain(args: &DrainArgs) -> anyhow::Result<bool> {
    const STEP: u64 = 100_000;

    let options = vhca_exercises::drain::Options {
        conversations: args.conversations,
        vfs: args.vfs,
        seed: args.seed,
    };
    let mut told = 0;
    let report = vhca_exercises::drain::run(options, &mut |over| {
        if over / STEP != told {
            told = over / STEP;
            // Progress that nobody reads is no failure.
            let _ = writeln!(io::stderr(), "{over} conversations are over");
        }
    })?;
    print(args.json, &report).context("cannot print")?;
    Ok(report.ok)
}

fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    // What guests and the fabric had dropped is their matter; what the service cannot do is its operator's.
    let default = if args.verbose {
        "warn"
    } else {
        "warn,vhca::drop_log=off"
    };
    start_log(default);
    vhca_service::serve::run(&args.options()?, &mut |announcement| {
        match print(args.json, announcement) {
            // A service goes on without its reader.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            printed => printed,
        }
    })?;
    Ok(())
}

/// Prints the arguments of QEMU.
fn qemu_args(args: &QemuArgsArgs) -> anyhow::Result<()> {
    print(args.json, &ask::qemu_args(args)?).context("cannot print")
}

/// Becomes the program.
fn run(args: &RunArgs) -> anyhow::Result<bool> {
    let environment = args.environment()?;
    let (program, arguments) = args.program.split_first().context("no program")?;
    Err(environment.run(program, arguments, &mut cli::say).into())
}

/// Prints the environment of programs for a shell.
fn environment(args: &EnvArgs) -> anyhow::Result<bool> {
    let lines = args.environment()?.shell_lines();
    io::stdout().write_all(&lines).context("cannot print")?;
    Ok(true)
}

fn lab(args: &LabArgs) -> anyhow::Result<()> {
    let mut say = |line: &str| writeln!(io::stdout(), "{line}");
    lab::run(&args.options()?, &mut say)?;
    Ok(())
}

/// Shows a guest's console.
fn console(args: &ConsoleArgs) -> anyhow::Result<()> {
    Ok(lab::console(&args.socket()?, cli::say)?)
}

/// Becomes the program.
fn tied(args: TiedArgs) -> anyhow::Result<bool> {
    Err(args.tie().context("no program")?.run().into())
}

/// Runs the script on stdin.
fn replay() -> anyhow::Result<()> {
    Ok(replay::run(io::stdin().lock(), io::stdout().lock())?)
}

/// Prints a report as a line of text or as a line of JSON.
fn print<T: Serialize + std::fmt::Display>(json: bool, report: &T) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{report}")?;
    }
    out.flush()
}
