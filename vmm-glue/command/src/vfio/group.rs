//! Membership of a multicast group.

use anyhow::{Context, bail};
use ib_endpoint::{SaRequest, group_destination};
use ib_vtime::Duration;
use ib_wire::sa::{ComponentMask, JoinState, McMemberRecord};
use ib_wire::{Gid, PKey};
use mlx4_defs::cq::ArmCommand;
use mlx4_driver::{Destination, Talker, TalkerSpec};

use super::say;
use super::session::{LIMIT, Session};

/// The datagram to the group.
const GREETING: &[u8] = b"a datagram of vhca vfio join";

/// Joins the group, sends a datagram to it and receives that, waits, and leaves.
pub(super) fn join(session: &mut Session, mgid: Gid, hold: u64) -> anyhow::Result<()> {
    let mut wanted = McMemberRecord {
        mgid,
        port_gid: session.port().gid(),
        pkey: PKey::DEFAULT_FULL,
        qkey: TalkerSpec::QKEY,
        ..McMemberRecord::default()
    };
    wanted.set_join_state(JoinState::FULL_MEMBER);
    // A group that exists has a Q_Key of its own.
    let answer = match session.ask(SaRequest::join(&wanted, ComponentMask::NONE)) {
        Ok(answer) => answer,
        Err(_) => {
            let created = session.ask(SaRequest::join(&wanted, McMemberRecord::CREATE));
            created.with_context(|| format!("cannot join {mgid}"))?
        }
    };
    let record: McMemberRecord = answer
        .record()
        .context("the SA's answer is no membership")?;
    say(&format!(
        "joined {mgid}: LID {}, Q_Key {}, MTU {}, P_Key {}",
        record.mlid,
        record.qkey,
        record.mtu_value().bytes().unwrap_or(0),
        record.pkey
    ))?;
    greet(session, &record)?;
    say(&format!("sent a datagram to {mgid}, and received it"))?;
    let end = Duration::from_secs(hold);
    // The driver answers the SA and the CM meanwhile.
    session.until::<()>(end, |_, _| Ok(None))?;
    session
        .ask(SaRequest::leave(&wanted))
        .context("cannot leave the group")?;
    say(&format!("left {mgid}"))
}

/// Sends a datagram to the group, and waits for it.
fn greet(session: &mut Session, record: &McMemberRecord) -> anyhow::Result<()> {
    let (driver, bus) = (&mut session.driver, &mut session.bus);
    let spec = TalkerSpec {
        qkey: record.qkey,
        ..TalkerSpec::default()
    };
    let mut talker = Talker::open(driver, bus, &spec)?;
    driver.set_attached(bus, talker.qpn, record.mgid, true, false)?;
    let to = Destination::of_datagram(talker.pd, &group_destination(spec.port, record));
    let to = to.context("the group has no address")?;
    talker.say(driver, bus, &to, GREETING)?;
    let heard = session.until(LIMIT, |driver, bus| {
        driver.arm_cq(bus, talker.recv_cq, ArmCommand::NEXT)?;
        let heard = talker.hear(driver)?;
        let own = heard.iter().any(|heard| heard.bytes == GREETING);
        Ok(own.then_some(()))
    })?;
    let (driver, bus) = (&mut session.driver, &mut session.bus);
    driver.set_attached(bus, talker.qpn, record.mgid, false, false)?;
    talker.close(driver, bus)?;
    if heard.is_none() {
        bail!("the datagram to the group did not come back");
    }
    Ok(())
}
