//! What is done with a request.

use emulated_hca::NodeId;
use ib_wire::PortNum;
use serde::Serialize;
use vhca_control::protocol::{MetricsQuery, Request, ShowQuery, VERSION};
use vhca_control::{By, GuestAction, Refusal, Subject, VfChange};

use super::reply::Reply;
use super::scene::{pfs, scene};
use crate::serve::capture::Capture;
use crate::serve::guests::JobId;
use crate::serve::inventory::no_such_node;
use crate::serve::lab::Lab;
use crate::serve::way_in::Turn;
use crate::serve::why::pair::named_end;
use crate::show::{self, Filter, Metrics};
use vhca::world::HostPortId;

/// How a request is answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// With this line.
    Line(Vec<u8>),
    /// When guests have done something.
    Later(JobId),
    /// When the SAs of these ports, and subnet managers, have answered, or did not: see [`answer_now`].
    Asked(Vec<HostPortId>, Box<Request>),
    /// With a reply that takes many turns.
    Reply(Box<Reply>),
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

    pub(super) fn refused(refusal: &Refusal) -> Self {
        let reply = serde_json::json!({ "v": VERSION, "error": refusal });
        Self::Line(format!("{reply}\n").into_bytes())
    }
}

/// Does what is asked, or has the SAs asked first whose silence would be a fault to be told.
pub(super) fn answer(turn: &mut Turn<'_>, request: Request) -> Answer {
    let ports = match &request {
        Request::Why {
            vf,
            port,
            peer: Some(peer),
            ..
        } => {
            let ends = [vf, peer].map(|end| named_end(turn.lab, end, port.map(PortNum)).ok());
            let vfs = ends.iter().flatten().filter_map(|end| end.vf());
            turn.lab.ports_of(vfs.map(|vf| vf.host).collect())
        }
        Request::Why { vf, host, .. } => {
            let vfs = turn
                .lab
                .inventory
                .vfs(vf, host.as_deref())
                .unwrap_or_default();
            turn.lab.ports_of(vfs.iter().map(|vf| vf.host).collect())
        }
        Request::Show(query) if query.subject == Subject::Vfs => {
            let filter = filter(turn.lab, query).unwrap_or_default();
            let lab = &turn.lab;
            let hosts = lab.inventory.pf_hosts().map(|host| host.id);
            let wanted = hosts.filter(|host| {
                let node = lab.world().host(*host).node();
                filter.node.is_none_or(|only| only == node)
            });
            lab.ports_of(wanted.collect())
        }
        _ => Vec::new(),
    };
    let states = match &request {
        Request::Why { .. } => true,
        Request::Show(query) => query.subject == Subject::Sm,
        _ => false,
    };
    let are_asked = [turn.lab.ask_sa(&ports), states && turn.lab.ask_managers()];
    if are_asked.contains(&true) {
        return Answer::Asked(ports, Box::new(request));
    }
    answer_now(turn, &request)
}

/// Does what is asked, with what is known of the SAs.
pub(super) fn answer_now(turn: &mut Turn<'_>, request: &Request) -> Answer {
    let answer = match request {
        Request::Show(query) => show(turn.lab, query),
        Request::Why {
            vf,
            host,
            port,
            peer,
        } => {
            let port = port.map(PortNum);
            match peer {
                Some(peer) => {
                    let found = turn.lab.why_pair([vf, peer], port);
                    found.map(|found| Answer::of(&found))
                }
                None => why(turn.lab, vf, host.as_deref(), port),
            }
        }
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
        Request::SetLinkFaults { a, b, faults } => {
            let set = turn.lab.set_link_faults(a, b.as_deref(), *faults);
            set.map(|links| Answer::of(&serde_json::json!({ "links": links })))
        }
        Request::SetTrunk { port, address } => {
            let set = turn.lab.set_trunk(port, address);
            set.map(|()| Answer::of(&serde_json::json!({ "trunk": port })))
        }
        Request::SweepSm {} => {
            let swept = turn.lab.sweep();
            swept.map(|()| Answer::of(&serde_json::json!({ "sweeping": true })))
        }
        Request::Guest { vf, host, action } => guests(turn.lab, vf, host.as_deref(), action),
        Request::Capture(spec) => {
            let capture = Capture::start(turn.lab, spec);
            capture.map(|capture| Answer::Capture(Box::new(capture)))
        }
        Request::Offered { vf, host } => offered(turn.lab, vf, host.as_deref()),
        Request::Sockets {} => Ok(Answer::of(&turn.lab.sockets)),
        Request::Metrics(query) => metrics(turn.lab, query),
        Request::Stop {} => {
            turn.stop();
            Ok(Answer::of(&serde_json::json!({ "stopping": true })))
        }
    };
    answer.unwrap_or_else(|refusal| Answer::refused(&refusal))
}

fn show(lab: &Lab, query: &ShowQuery) -> Result<Answer, Refusal> {
    let filter = filter(lab, query)?;
    let (pfs, service) = (pfs(lab), lab.service_facts());
    let page = show::page(&scene(lab, &pfs, &service), query.subject, filter);
    Ok(Answer::Reply(Box::new(Reply::tables(page))))
}

fn metrics(lab: &Lab, query: &MetricsQuery) -> Result<Answer, Refusal> {
    let host = query.host.as_deref();
    let filter = match &query.vf {
        Some(vf) => of_vf(lab, vf, host)?,
        None => Filter {
            node: host.map(|name| node_with_metrics(lab, name)).transpose()?,
            ..Filter::default()
        },
    };
    if filter.vf.is_some() && query.by == By::Total {
        let message = "--by total sums over all VFs: leave it out, or leave out --vf";
        return Err(Refusal::new("one_vf_only", message));
    }
    let metrics = Metrics::new(query.by, filter);
    Ok(Answer::Reply(Box::new(Reply::metrics(metrics))))
}

/// Returns which rows a query wants.
fn filter(lab: &Lab, query: &ShowQuery) -> Result<Filter, Refusal> {
    let ShowQuery { subject, host, .. } = query;
    let mut filter = Filter {
        problems: query.problems,
        ..Filter::default()
    };
    if query.problems && !subject.has_problems() {
        let message = "--problems is for vfs, ports, guids, drops and fabric";
        return Err(Refusal::new("no_problems", message));
    }
    if let Some(vf) = &query.vf {
        if !subject.is_of_vfs() {
            let message =
                "ports, fabric and sm have no rows of VFs; ports and fabric have those of a --host";
            return Err(Refusal::new("no_vf_rows", message));
        }
        let of_vf = of_vf(lab, vf, host.as_deref())?;
        filter = Filter {
            problems: query.problems,
            ..of_vf
        };
    } else if let Some(name) = host {
        if *subject == Subject::Sm {
            let message = "sm shows the whole subnet: leave --host out";
            return Err(Refusal::new("no_host_rows", message));
        }
        filter.node = Some(if subject.is_of_nodes() {
            lab.inventory.node(name).ok_or_else(|| no_such_node(name))?
        } else {
            node_of_host(lab, name)?
        });
    }
    Ok(filter)
}

/// Returns what leaves the rows of a VF.
fn of_vf(lab: &Lab, vf: &str, host: Option<&str>) -> Result<Filter, Refusal> {
    let vf = lab.inventory.vf(vf, host)?;
    let vf = lab.inventory.existing(&vf)?;
    Ok(Filter {
        node: Some(lab.world().host(vf.host).node()),
        vf: Some(vf.vf),
        problems: false,
    })
}

fn node_of_host(lab: &Lab, name: &str) -> Result<NodeId, Refusal> {
    Ok(lab.world().host(lab.inventory.pf_host(name)?.id).node())
}

/// Returns a host's node, or a switch, which has the metrics of its ports.
fn node_with_metrics(lab: &Lab, name: &str) -> Result<NodeId, Refusal> {
    let awaited = || lab.inventory.awaited.refusal(Some(name));
    lab.inventory
        .node(name)
        .ok_or_else(|| awaited().unwrap_or_else(|| no_such_node(name)))
}

fn why(lab: &Lab, vf: &str, host: Option<&str>, port: Option<PortNum>) -> Result<Answer, Refusal> {
    let name = vf.rsplit_once('/');
    let (within, number) = name.map_or((host, vf), |(host, number)| (Some(host), number));
    if number == "all" {
        lab.inventory.vfs(vf, host)?;
        let within = within.map(|name| lab.inventory.pf_host(name)).transpose()?;
        return Ok(Answer::of(&lab.faults(within, port)));
    }
    let vf = lab.inventory.vf(vf, host)?;
    let found = match port {
        Some(port) => lab.why(&vf, port),
        None => lab.why_any_port(&vf),
    };
    Ok(Answer::of(&found))
}

/// Returns where a VF is offered to VMMs.
fn offered(lab: &Lab, vf: &str, host: Option<&str>) -> Result<Answer, Refusal> {
    let vf = lab.inventory.vf(vf, host)?;
    let seat = lab.seat(lab.inventory.existing(&vf)?).ok_or_else(|| {
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
    let vfs = lab.inventory.vfs(vf, host)?;
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
) -> Result<Answer, Refusal> {
    let vfs = lab.inventory.vfs(vf, host)?;
    let job = lab.guests_do(&vfs, action)?;
    Ok(Answer::Later(job))
}
