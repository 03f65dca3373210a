//! `vhca vfio`: a VF of this machine, driven by this program.

mod connection;
mod group;
mod pingpong;
mod session;

use std::io::{self, Write};

use anyhow::Context;
use ib_wire::Gid;

use crate::cli::{Destination, VfioArgs, VfioCommand};
use session::Session;

/// The group of the tour.
const GROUP: Gid = Gid([0xff, 0x12, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);

/// Prints a line.
fn say(line: &str) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{line}").context("cannot print")
}

/// Takes the VF, does what the words say, and gives the VF back.
pub(crate) fn run(args: &VfioArgs) -> anyhow::Result<()> {
    let mut session = Session::open(&args.address)?;
    say(&session.port_line())?;
    match &args.command {
        VfioCommand::Tour => tour(&mut session)?,
        VfioCommand::Paths(paths) => {
            let of_sm = [Destination::Lid(session.port().info.master_sm_lid)];
            let to = if paths.to.is_empty() {
                &of_sm[..]
            } else {
                &paths.to
            };
            for to in to {
                say(&session.path_line(*to)?)?;
            }
        }
        VfioCommand::Join(join) => group::join(&mut session, join.group, join.hold)?,
        VfioCommand::Connect(connect) => connection::connect(&mut session, connect)?,
        VfioCommand::Ping(ping) => pingpong::ping(&mut session, ping)?,
    }
    session.close()
}

/// Does everything that needs no other VF.
fn tour(session: &mut Session) -> anyhow::Result<()> {
    let itself = Destination::Gid(session.port().gid());
    say(&session.path_line(itself)?)?;
    group::join(session, GROUP, 0)?;
    pingpong::tour(session)?;
    connection::tour(session)
}
