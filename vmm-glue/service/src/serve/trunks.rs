//! Trunks to fabrics of other services.

use emulated_hca::{Fabric, NodeId, NodeKind};
use ib_trunk::SiteName;
use ib_wire::PortNum;
use vhca_control::protocol::Refusal;
use vhca_trunk::{
    Door, Trunk, TrunkAddress, TrunkConfig, TrunkEvent, TrunkId, TrunkPeer, TrunkWay, Trunks,
};

use super::announcement::Announcement;
use super::lab::Lab;
use super::lab_error::LabError;
use super::trunk_spec::TrunkSpec;
use super::way_in::{Turn, WayIn};
use crate::show::TrunkRow;
use vhca::watch::{EventSet, Ready};

/// Makes the trunks of a service, and a door outside of its sandbox if there are some that connect.
///
/// # Errors
/// [`LabError`] for a port that does not exist or is taken, and for an address.
pub(super) fn open(
    lab: &mut Lab,
    specs: &[TrunkSpec],
    site: &SiteName,
) -> Result<TrunkNews, LabError> {
    let trunks = Trunks::new(Door::start).map_err(LabError::Door)?;
    lab.world_mut().set_trunks(trunks);
    let mut specs: Vec<_> = specs.iter().collect();
    // A node takes no port that another trunk names.
    specs.sort_by_key(|spec| !matches!(lab.inventory.end(&spec.port), Ok((_, Some(_)))));
    for spec in specs {
        let (port, id) = add(lab, spec, site)?;
        lab.trunks.insert(id, port);
    }
    Ok(TrunkNews)
}

/// Makes a trunk. Returns its port as `NODE/PORT`.
fn add(lab: &mut Lab, spec: &TrunkSpec, site: &SiteName) -> Result<(String, TrunkId), LabError> {
    let wrong = |why: &dyn ToString| LabError::Trunk(spec.port.clone(), why.to_string());
    let (node, named) = lab
        .inventory
        .end(&spec.port)
        .map_err(|refusal| wrong(&refusal.message))?;
    let fabric = lab.world().fabric();
    let port = named.or_else(|| free_port(fabric, node));
    let port = port.ok_or_else(|| wrong(&"all of its ports have links"))?;
    if fabric.link_at(node.port(port.0)).is_some() {
        return Err(wrong(
            &"it has a link already: name another port, or the node alone for its first free one",
        ));
    }
    let name = match named {
        Some(_) => spec.port.clone(),
        None => format!("{}/{}", spec.port, port.0),
    };
    // The far end of an adapter's trunk is a switch, and answers for itself there.
    let peer = match (spec.peer, fabric.node(node)) {
        (None, Some(near)) if near.kind() != NodeKind::Switch => TrunkPeer::Fabric,
        _ => spec.peer(),
    };
    let security = spec.security().map_err(|error| wrong(&error))?;
    warn_of_plain(&name, &spec.way);
    let config = TrunkConfig {
        site: site.clone(),
        way: spec.way.clone(),
        timeout: spec.timeout,
        security,
        peer,
    };
    let id = lab.world_mut().add_trunk(node.port(port.0), config);
    let id = id.map_err(|error| wrong(&error))?;
    if named.is_none()
        && let Some(trunks) = lab.world_mut().trunks_mut()
    {
        trunks.share(id);
    }
    Ok((name, id))
}

/// Warns of a trunk whose packets others can read.
fn warn_of_plain(name: &str, way: &TrunkWay) {
    if way.address().is_exposed() {
        log::warn!(
            "trunk {name} ({way}) is plain: whatever is on the way can read its packets and add others; say tls: instead of tcp: at both ends"
        );
    }
}

/// Returns the refusal of a port without a trunk.
fn no_such_trunk(lab: &Lab, port: &str) -> Refusal {
    let ports: Vec<&str> = lab.trunks.values().map(String::as_str).collect();
    let message = match &ports[..] {
        [] => "this service has no trunks: see --trunk of vhca serve".to_owned(),
        ports => format!("{port} has no trunk; there are {}", ports.join(", ")),
    };
    Refusal::new("no_such_trunk", message)
}

/// Returns the first port of a node without a link.
fn free_port(fabric: &Fabric, node: NodeId) -> Option<PortNum> {
    let mut ports = 1..=fabric.node(node)?.port_count();
    let free = ports.find(|port| fabric.link_at(node.port(*port)).is_none());
    free.map(PortNum)
}

impl Lab {
    /// Redirects a trunk that connects: the port at `NODE/PORT` leaves the one that it is connected to, and joins the one at which
    /// another end listens.
    ///
    /// # Errors
    /// A refusal with the reason; nothing has changed then.
    pub(super) fn set_trunk(&mut self, port: &str, address: &str) -> Result<(), Refusal> {
        let mut trunks = self.trunks.iter();
        let found = trunks.find_map(|(id, name)| (name == port).then_some(*id));
        let id = found.ok_or_else(|| no_such_trunk(self, port))?;
        let bad = |why: &dyn ToString| Refusal::new("bad_trunk", why.to_string());
        let address: TrunkAddress = address.parse().map_err(|error| bad(&error))?;
        let way = TrunkWay::Connect(address.clone());
        let redirected = self.world_mut().redirect_trunk(id, address);
        redirected.map_err(|error| bad(&error))?;
        warn_of_plain(port, &way);
        Ok(())
    }

    /// Returns the trunks whose first attempt is over, in order.
    pub(super) fn trunk_rows(&self) -> impl Iterator<Item = TrunkRow> {
        let ids = self.trunks.iter();
        ids.filter_map(|(id, port)| self.trunk_row(*id, port))
    }

    /// Names a trunk that took a further port of a node.
    fn name_trunk(&mut self, id: TrunkId) {
        let trunk = self.world().trunks().and_then(|trunks| trunks.get(id));
        if let Some(near) = trunk.map(Trunk::near)
            && !self.trunks.contains_key(&id)
        {
            let name = format!("{}/{}", self.inventory.node_name(near.node), near.port.0);
            self.trunks.insert(id, name);
        }
    }

    fn trunk_row(&self, id: TrunkId, port: &str) -> Option<TrunkRow> {
        let trunk = self.world().trunks()?.get(id)?;
        Some(TrunkRow {
            near: trunk.near(),
            port: port.to_owned(),
            way: trunk.config().way.to_string(),
            is_guarded: trunk.config().peer == TrunkPeer::Host,
            statistics: trunk.statistics(),
            peer: trunk.peer()?.clone(),
        })
    }
}

/// News of the trunks, which the world drives.
#[derive(Debug)]
pub(super) struct TrunkNews;

impl WayIn for TrunkNews {
    fn start(&mut self, turn: &mut Turn<'_>) {
        if let Some(trunks) = turn.lab.world().trunks() {
            turn.watches.add(trunks, EventSet::IN);
        }
    }

    /// Does nothing: the world looks at the descriptor when it is polled, which follows.
    fn handle_ready(&mut self, _: &mut Turn<'_>, _: Ready) {}

    fn flush(&mut self, turn: &mut Turn<'_>) {
        let next = |turn: &mut Turn<'_>| turn.lab.world_mut().trunks_mut()?.poll_event();
        while let Some(event) = next(turn) {
            match event {
                TrunkEvent::Changed(id) => {
                    turn.lab.name_trunk(id);
                    let port = turn.lab.trunks.get(&id);
                    let row = port.and_then(|port| turn.lab.trunk_row(id, port));
                    if let Some(row) = row {
                        turn.announce(announcement(row));
                    }
                }
                TrunkEvent::DoorEnded(error) => {
                    log::error!("trunks connect no longer: {error}");
                    turn.lose("the process that connects for trunks");
                }
                _ => {}
            }
        }
    }
}

/// Returns the news of a trunk that has changed.
fn announcement(row: TrunkRow) -> Announcement {
    let detail = match &row.peer {
        Ok(peer) => {
            let trust = match row.is_guarded {
                true => ", taken for a host",
                false => "",
            };
            format!(
                "up, port {} of {} at site {}{trust}",
                peer.port, peer.node_guid, peer.site
            )
        }
        Err(reason) => reason.clone(),
    };
    Announcement::Trunk {
        peer: row.site().map(str::to_owned),
        port: row.port,
        way: row.way,
        detail,
    }
}
