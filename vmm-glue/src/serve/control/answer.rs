//! What is done with a request.

use ib_wire::PortNum;
use serde::Serialize;

use super::protocol::{Refusal, Request, VERSION};
use crate::serve::capture::Capture;
use crate::serve::{GuestAction, GuestReport, JobId, Lab, Turn, VfChange};
use crate::show::{self, Format, NamedPf, Scene, Subject};

/// How a request is answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// With this line.
    Line(Vec<u8>),
    /// When guests have done something.
    Later(JobId, Format),
    /// With an empty reply, and then a capture.
    Capture(Box<Capture>),
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
        Request::Why {
            vf,
            host,
            port,
            format,
        } => why(turn.lab, vf, host.as_deref(), PortNum(*port), *format),
        Request::SetVf {
            vf,
            host,
            port,
            change,
        } => set_vf(turn.lab, vf, host.as_deref(), PortNum(*port), change),
        Request::SetLink { a, b, up } => {
            let set = turn.lab.set_link(a, b.as_deref(), *up);
            set.map(|links| Answer::of(&serde_json::json!({ "links": links })))
        }
        Request::Guest {
            vf,
            host,
            action,
            format,
        } => guests(turn.lab, vf, host.as_deref(), action, *format),
        Request::Capture(spec) => {
            let capture = Capture::start(turn.lab, spec);
            capture.map(|capture| Answer::Capture(Box::new(capture)))
        }
        Request::Offered { vf, host } => offered(turn.lab, vf, host.as_deref()),
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
    let only = host.map(|name| lab.pf_host(name)).transpose()?;
    let hosts = lab.pf_hosts();
    let wanted = hosts.filter(|pf| only.is_none_or(|only| only == *pf));
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
        vmms: &lab.vmm_rows(host),
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

fn why(
    lab: &Lab,
    vf: &str,
    host: Option<&str>,
    port: PortNum,
    format: Format,
) -> Result<Answer, Refusal> {
    let diagnosis = lab.why(&lab.vf(vf, host)?, port);
    Ok(match format {
        Format::Json => Answer::of(&diagnosis),
        Format::Text => Answer::text(&format!("{diagnosis}\n")),
    })
}

/// Returns where a VF is offered to VMMs.
fn offered(lab: &Lab, vf: &str, host: Option<&str>) -> Result<Answer, Refusal> {
    let vf = lab.vf(vf, host)?;
    let seat = lab.seat(lab.existing(&vf)?).ok_or_else(|| {
        let name = format!("{}/{}", vf.host_name, vf.vf.get());
        let why = "is not offered to VMMs: start the service with vhca serve --vfio-user DIR";
        Refusal::new("not_offered", format!("{name} {why}"))
    })?;
    Ok(Answer::of(&seat.offered()))
}

fn set_vf(
    lab: &mut Lab,
    vf: &str,
    host: Option<&str>,
    port: PortNum,
    change: &VfChange,
) -> Result<Answer, Refusal> {
    let vfs = lab.vfs(vf, host)?;
    if vfs.len() > 1 && change.suits_one_only() {
        let message = "one GUID is for one VF: say N, or HOST/N";
        return Err(Refusal::new("one_vf", message));
    }
    for (before, vf) in vfs.iter().enumerate() {
        let set = lab.set_vf(vf, port, change);
        set.map_err(|refusal| match before {
            0 => refusal,
            _ => {
                let Refusal { code, message } = refusal;
                let name = format!("{}/{}", vf.host_name, vf.vf.get());
                let message = format!("{name}: {message}; the {before} VFs before it are changed");
                Refusal { code, message }
            }
        })?;
    }
    Ok(Answer::of(&serde_json::json!({ "vfs": vfs.len() })))
}

fn guests(
    lab: &mut Lab,
    vf: &str,
    host: Option<&str>,
    action: &GuestAction,
    format: Format,
) -> Result<Answer, Refusal> {
    let vfs = lab.vfs(vf, host)?;
    let job = lab.guests_do(&vfs, action)?;
    Ok(Answer::Later(job, format))
}

/// What guests did.
pub(super) fn reports(reports: &[GuestReport], format: Format) -> Answer {
    match format {
        Format::Json => Answer::of(&serde_json::json!({ "guests": reports })),
        Format::Text => {
            let lines: String = reports.iter().map(|report| format!("{report}\n")).collect();
            let failed = reports.iter().filter(|report| !report.ok).count();
            Answer::of(&serde_json::json!({ "text": lines, "failed": failed }))
        }
    }
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
    let scene = Scene {
        pfs: &pfs,
        vmms: &lab.vmm_rows(None),
        fabric: lab.fabric(),
        now: lab.world().now(),
    };
    let written = show::write_metrics(&mut out, &scene);
    debug_assert!(written.is_ok(), "a vector takes everything");
    String::from_utf8_lossy(&out).into_owned()
}
