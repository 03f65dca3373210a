//! What is done with a request.

use serde::Serialize;

use super::protocol::{Refusal, Request, VERSION};
use crate::serve::{Lab, Turn};
use crate::show::{self, Format, NamedPf, Scene, Subject};

/// How a request is answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// With this line.
    Line(Vec<u8>),
}

impl Answer {
    /// JSON that is written already.
    pub(super) fn json(json: &[u8]) -> Self {
        let mut line = format!("{{\"v\":{VERSION},\"ok\":").into_bytes();
        line.extend_from_slice(json.trim_ascii_end());
        line.extend_from_slice(b"}\n");
        Self::Line(line)
    }

    /// Something to be written as JSON.
    pub(super) fn of(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(json) => Self::json(&json),
            Err(error) => Self::refused(&Refusal::new("internal", error.to_string())),
        }
    }

    /// Text for people.
    pub(super) fn text(text: &str) -> Self {
        Self::of(&serde_json::json!({ "text": text }))
    }

    pub(super) fn refused(refusal: &Refusal) -> Self {
        let reply = serde_json::json!({ "v": VERSION, "error": refusal });
        Self::Line(format!("{reply}\n").into_bytes())
    }
}

/// Does what is asked.
pub(super) fn answer(turn: &mut Turn<'_>, request: &Request) -> Answer {
    let answer = match request {
        Request::Show {
            subject,
            host,
            format,
        } => show(turn.lab, *subject, host.as_deref(), *format),
        Request::Metrics {} => Ok(Answer::text(&metrics(turn.lab))),
        Request::Stop {} => {
            turn.stop();
            Ok(Answer::of(&serde_json::json!({ "stopping": true })))
        }
    };
    answer.unwrap_or_else(|refusal| Answer::refused(&refusal))
}

/// The PFs, or the one of a host.
fn pfs<'l>(lab: &'l Lab, host: Option<&str>) -> Result<Vec<NamedPf<'l>>, Refusal> {
    if let Some(name) = host {
        lab.pf_host(name)?;
    }
    let hosts = lab.pf_hosts();
    let wanted = hosts.filter(|pf| host.is_none_or(|name| name == pf.name));
    let pfs = wanted.map(|pf| NamedPf {
        name: &pf.name,
        rows: lab.world().context(pf.id),
    });
    Ok(pfs.collect())
}

fn show(
    lab: &Lab,
    subject: Subject,
    host: Option<&str>,
    format: Format,
) -> Result<Answer, Refusal> {
    let mut out = Vec::new();
    let scene = Scene {
        pfs: &pfs(lab, host)?,
        fabric: lab.fabric(),
        now: lab.world().now(),
    };
    let written = show::write(&mut out, format, subject, &scene);
    written.map_err(|error| Refusal::new("internal", error.to_string()))?;
    Ok(match format {
        Format::Json => Answer::json(&out),
        Format::Text => Answer::text(&String::from_utf8_lossy(&out)),
    })
}

/// The metrics of all PFs.
pub(super) fn metrics(lab: &Lab) -> String {
    let mut out = Vec::new();
    let hosts = lab.pf_hosts();
    let pfs: Vec<NamedPf<'_>> = hosts
        .map(|pf| NamedPf {
            name: &pf.name,
            rows: lab.world().context(pf.id),
        })
        .collect();
    let written = show::write_metrics(&mut out, &pfs, lab.world().now());
    debug_assert!(written.is_ok(), "a vector takes everything");
    String::from_utf8_lossy(&out).into_owned()
}
