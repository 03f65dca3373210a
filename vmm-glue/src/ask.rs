//! The commands that ask a running service.

use std::io::{self, Write};

use serde::Deserialize;
use vhca::serve::control::Remote;
use vhca::serve::control::protocol::Request;
use vhca::show::Format;

use crate::cli::{PlainArgs, ServerArgs, ShowArgs};

/// Prints tables.
pub(crate) fn show(args: ShowArgs) -> anyhow::Result<()> {
    let reply = connect(&args.server)?.ask(Request::Show {
        subject: args.subject,
        host: args.host,
        format: format(args.json),
    })?;
    print(&reply, args.json)
}

/// Prints the text that Prometheus reads.
pub(crate) fn metrics(args: &PlainArgs) -> anyhow::Result<()> {
    let reply = connect(&args.server)?.ask(Request::Metrics {})?;
    print(&reply, false)
}

/// Ends the service.
pub(crate) fn stop(args: &PlainArgs) -> anyhow::Result<()> {
    connect(&args.server)?.ask(Request::Stop {})?;
    Ok(())
}

const fn format(json: bool) -> Format {
    if json { Format::Json } else { Format::Text }
}

fn connect(server: &ServerArgs) -> anyhow::Result<Remote> {
    Ok(Remote::connect(&server.control()?)?)
}

/// Prints a reply: as it is, or the text that is in it.
fn print(reply: &str, json: bool) -> anyhow::Result<()> {
    #[derive(Deserialize)]
    struct Text {
        text: String,
    }

    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{reply}")?;
    } else {
        let reply: Text = serde_json::from_str(reply)?;
        write!(out, "{}", reply.text)?;
    }
    Ok(out.flush()?)
}
