//! The guests' VFs: they get their GUIDs, and one of them is reset.

use std::collections::BTreeMap;

use ib_endpoint::EndPortEvent;
use ib_endpoint::cm::CmEventKind;
use ib_vtime::Instant;
use pf_context::context::PfEvent;
use pf_context::inspect::Inspect;
use vf_tunnel::VfId;
use vhca_control::{Facts, milliseconds};

use super::connections::{self, Pair};
use super::datagrams;
use crate::demo::network::{NamedHost, NamedPort};
use crate::demo::stage::{Stage, StepError, StepResult, ensure, gid, is_up};
use vhca::world::World;

/// Every VF gets a GUID for each of its ports, and says why it waits until then.
pub(super) fn get_guids(stage: &mut Stage) -> StepResult {
    let guests = stage.network.guests();
    let hosts = stage.network.hosts;
    stage.wait_for("every port of every VF up", |world| {
        let rows_up = |host: NamedHost| {
            let context = world.context(host.id);
            Inspect::vfs(context, world.now()).all(|row| row.up)
        };
        let up = |guest: &NamedPort| is_up(world, *guest);
        (hosts.into_iter().all(rows_up) && guests.iter().all(up)).then_some(())
    })?;
    let world = stage.world()?;
    let mut chains = Vec::new();
    for host in hosts {
        chains.extend(reasons(world, host));
    }
    Ok(Facts::new()
        .with("vfs", guests.len())
        .list("reasons", chains)
        .list(
            "gids",
            guests
                .iter()
                .map(|guest| format!("{}:{}", guest.name, gid(world, *guest))),
        ))
}

/// For each VF of a host, why its first port was as it was, and from when on (milliseconds).
fn reasons(world: &mut World, host: NamedHost) -> Vec<String> {
    let mut chains: BTreeMap<VfId, String> = BTreeMap::new();
    while let Some((at, event)) = world.poll_vf_news(host.id) {
        if let PfEvent::VfPort { port, vf, reason } = event
            && port.0 == 1
        {
            let chain = chains.entry(vf).or_default();
            let separator = if chain.is_empty() { "" } else { ">" };
            let at_ms = milliseconds(at - Instant::ZERO);
            chain.push_str(&format!("{separator}{}@{at_ms:.3}", reason.as_str()));
        }
    }
    let chains = chains.into_iter();
    chains
        .map(|(vf, chain)| format!("{}/vf{}:{chain}", host.name, vf.get()))
        .collect()
}

/// A connected member of the group is reset: the PF forgets all it had, its peer is told, and it
/// begins anew.
pub(super) fn reset(stage: &mut Stage) -> StepResult {
    let pair = Pair::strangers(stage);
    let Pair { a, b } = pair;
    let listener = connections::listen(stage, pair)?;
    let connection = connections::establish(stage, pair)?;
    let before = held(stage, a)?;
    ensure(before.0 > 0 && before.1 > 0, || {
        format!("{} holds nothing: {before:?}", a.name)
    })?;

    let vf = VfId::new(a.at.function.0).ok_or_else(|| StepError::failed("the PF is no VF"))?;
    stage.world()?.reset_vf(a.at.host, vf)?;
    let after = held(stage, a)?;
    ensure(after == (0, 0), || {
        format!("{} still holds {after:?}", a.name)
    })?;
    stage.wait_event(a, "the news of the reset", |event| {
        (*event == EndPortEvent::Dead).then_some(())
    })?;
    let told = stage.wait_cm(b, "a DREQ or a REJ", |event| match &event.kind {
        CmEventKind::DreqReceived(_) if event.conn == connection.passive => Some("DREQ"),
        CmEventKind::RejReceived(_) if event.conn == connection.passive => Some("REJ"),
        _ => None,
    })?;
    if told == "DREQ" {
        let now = stage.now()?;
        let cm = stage.world()?.port_mut(b.at).cm();
        cm.send_drep(now, connection.passive, b"")?;
    }
    connections::wait_for_time_wait(stage, b, connection.passive)?;

    let a = stage.boot(a, None)?;
    datagrams::join(stage, a)?;
    let again = connections::establish(stage, Pair { a, b })?;
    connections::disconnect(stage, &again)?;
    connections::stop_listening(stage, pair, listener)?;
    Ok(Facts::new()
        .with("comm_ids_before", before.0)
        .with("memberships_before", before.1)
        .with("comm_ids_after", after.0)
        .with("memberships_after", after.1)
        .show("peer_was_told_by", told)
        .with("connected_again", true)
        .with("state_left", connections::nothing_left(stage, pair)?))
}

/// Communication ids and memberships that the PF keeps for a guest.
fn held(stage: &mut Stage, guest: NamedPort) -> StepResult<(usize, usize)> {
    let world = stage.world()?;
    let context = world.context(guest.at.host);
    let is_its = |vf: VfId| vf.get() == guest.at.function.0;
    let ids = context.cm(world.now());
    let ids = ids.filter(|row| is_its(row.connection.vf)).count();
    let members = context.groups().flat_map(|row| row.members);
    let memberships = members.filter(|(vf, _)| is_its(*vf)).count();
    Ok((ids, memberships))
}
