//! Joins that the port's own membership covers: the mux answers in the SA's place.

use anyhow::{Context, ensure};
use ib_vtime::SplitMix64;
use ib_wire::mad::{Mad, MadStatus, Method, MgmtClass};
use ib_wire::sa::{JoinState, McMemberRecord, SaMad};
use ib_wire::{Gid, Lid, PKey, QKey, Tid};
use pf_context::Limits;
use vf_tunnel::VfId;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::clock::Stopwatch;
use super::pool::{POOL, Pool, below};
use super::rig::{BATCH, From, Rig, SM_LID, batch_mad, tunnel_frame, vf_gid, vf_of};
use super::{LEAST_OPS, Measured, Sample, Scale, nanos_per};

/// What a member record starts with.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct JoinEnds {
    mgid: Gid,
    port_gid: Gid,
}

/// A group of IPv4 over InfiniBand (RFC 4391).
const fn mgid(group: u32) -> Gid {
    let [a, b, c, d] = group.to_be_bytes();
    Gid([
        0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, a, b, c, d,
    ])
}

/// A VF asks to join a group.
fn request(vf: VfId, group: u32) -> Mad {
    let mut record = McMemberRecord {
        mgid: mgid(group),
        port_gid: vf_gid(vf),
        ..McMemberRecord::default()
    };
    record.set_join_state(JoinState::FULL_MEMBER);
    let mask = McMemberRecord::MGID | McMemberRecord::PORT_GID | McMemberRecord::JOIN_STATE;
    let mut sa = SaMad::new(Method::SET, mask, &record);
    sa.header.tid = Tid::new(u64::from(group) << 16 | u64::from(vf.get()));
    Mad::from_layout(&sa)
}

/// The SA's consent to the port's join.
fn consent(asked: &Mad, group: u32) -> anyhow::Result<Mad> {
    let mut sa: SaMad = *asked.view();
    sa.header.method = Method::GET_RESP;
    let mut record: McMemberRecord = sa.record();
    record.mlid = Lid::new(0xc000 + u16::try_from(group % 0x3000)?);
    record.qkey = QKey::new(0xb1b);
    record.pkey = PKey::DEFAULT_FULL;
    sa.set_record(&record);
    Ok(Mad::from_layout(&sa))
}

pub(super) fn prepare(scale: Scale) -> anyhow::Result<Measured> {
    let limits = Limits {
        mcast: mcast_agg::Config {
            groups_per_member: u16::MAX,
            ..mcast_agg::Config::default()
        },
        ..Limits::default()
    };
    let mut rig = Rig::new(scale.vfs, limits)?;
    for group in 0..scale.live {
        join_all(&mut rig, scale.vfs, group)?;
    }
    let mut random = SplitMix64::new(11);
    let groups = usize::try_from(scale.live)?;
    let steps = (0..LEAST_OPS)
        .map(|_| {
            let group = u32::try_from(below(&mut random, groups))?;
            Ok((vf_of(random.next_u32(), scale.vfs)?, group))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let template = tunnel_frame(SM_LID, None, &request(vf_of(0, scale.vfs)?, 0));
    let mut frames = Pool::new(11, &template, POOL);
    let ops = steps.len() as u64;
    Ok(Measured {
        setup: format!(
            "joins of groups in which all {} VFs are, random VF and group, cold frames",
            scale.vfs
        ),
        ops,
        mads_per_op: Some(1),
        run: Box::new(move |_| {
            let began = Stopwatch::start();
            for batch in steps.chunks(BATCH) {
                for &(vf, _) in batch {
                    rig.load(From::Vf(vf), frames.place());
                }
                for (at, &(vf, group)) in batch.iter().enumerate() {
                    let sa: &mut SaMad = batch_mad(rig.loaded(at)?)?.view_mut();
                    let (ends, _) = JoinEnds::mut_from_prefix(&mut sa.data)
                        .ok()
                        .context("a record fits")?;
                    *ends = JoinEnds {
                        mgid: mgid(group),
                        port_gid: vf_gid(vf),
                    };
                }
                rig.flush()?;
                for at in 0..batch.len() {
                    granted(rig.sent(at)?)?;
                }
            }
            let elapsed = began.elapsed();
            ensure!(rig.is_quiet(), "more came out than went in");
            let members = rig.mux.sizes().mcast_members;
            ensure!(members == groups * usize::from(scale.vfs), "members left");
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
            let bytes = rig.mux.state_bytes().mcast as f64 / members as f64;
            Ok(Sample {
                nanos: nanos_per(elapsed, ops),
                bytes_per_live: Some(bytes),
                figures: Vec::new(),
            })
        }),
    })
}

/// Lets all VFs join a group: the SA is asked for the first.
fn join_all(rig: &mut Rig, vfs: u16, group: u32) -> anyhow::Result<()> {
    let first = vf_of(0, vfs)?;
    rig.send_to_machine(first, &tunnel_frame(SM_LID, None, &request(first, group)));
    let consent = consent(&rig.take()?, group)?;
    rig.receive_for_machine(SM_LID, &consent);
    granted(&rig.take()?)?;
    for number in 1..u32::from(vfs) {
        let vf = vf_of(number, vfs)?;
        let frame = tunnel_frame(SM_LID, None, &request(vf, group));
        rig.load(From::Vf(vf), &frame);
        rig.flush()?;
        granted(rig.sent(0)?)?;
    }
    Ok(())
}

fn granted(answer: &Mad) -> anyhow::Result<()> {
    let status = answer.header.status;
    let shown = status.of(MgmtClass::SUBN_ADM);
    ensure!(status == MadStatus::OK, "a join was refused: {shown}");
    Ok(())
}
