//! Requests for paths that the SA answered lately: the mux answers from its cache.

use anyhow::ensure;
use ib_vtime::SplitMix64;
use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::sa::{PathRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, SubnetPrefix, Tid};
use mad_mux::path_cache::PathCacheConfig;
use mad_mux::tid::TidConfig;
use pf_context::Limits;
use vf_tunnel::VfId;
use zerocopy::network_endian::U16;

use super::clock::Stopwatch;
use super::cm_hit::shuffle;
use super::floors::below;
use super::rig::{BATCH, From, Place, Rig, SM_LID, tunnel_frame, vf_gid, vf_of};
use super::{Measured, Sample, Scale, nanos_per};

const FRAMES: u32 = 210_000;

/// A VF asks for the path to a port.
fn request(vf: VfId, number: u32, tid: u32) -> Mad {
    let port = Guid::new(0x0011_7500_0001_0000 + u64::from(number));
    let mut record = PathRecord {
        sgid: vf_gid(vf),
        dgid: Gid::from_parts(SubnetPrefix::DEFAULT, port),
        ..PathRecord::default()
    };
    record.set_numb_path(1);
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    let mut sa = SaMad::new(Method::GET, mask, &record);
    sa.attribute_offset = U16::new(0);
    sa.header.tid = Tid::new(u64::from(tid));
    Mad::from_layout(&sa)
}

/// The SA's answer.
fn answer(asked: &Mad) -> Mad {
    let mut sa: SaMad = *asked.view();
    sa.header.method = Method::GET_RESP;
    let mut record: PathRecord = sa.record();
    record.dlid = Lid::new(9);
    record.slid = Lid::new(5);
    record.pkey = PKey::DEFAULT_FULL;
    record.set_reversible(true);
    sa.set_record(&record);
    Mad::from_layout(&sa)
}

pub(super) fn prepare(scale: Scale) -> anyhow::Result<Measured> {
    let limits = Limits {
        paths: PathCacheConfig {
            entries: scale.live,
            per_vf: scale.live,
            ..PathCacheConfig::default()
        },
        tids: TidConfig {
            per_vf: u32::MAX,
            ..TidConfig::default()
        },
        ..Limits::default()
    };
    let mut rig = Rig::new(scale.vfs, limits)?;
    for number in 0..scale.live {
        let vf = vf_of(number, scale.vfs)?;
        let frame = tunnel_frame(SM_LID, None, &request(vf, number, number));
        rig.send_to_machine(vf, &frame);
        let answer = answer(&rig.take()?);
        rig.receive_for_machine(SM_LID, &answer);
        rig.take()?;
    }
    ensure!(
        rig.mux.sizes().path_cache == scale.live as usize,
        "paths are missing"
    );
    let mut random = SplitMix64::new(12);
    let mut frames: Vec<Place> = Vec::new();
    let mut steps = Vec::new();
    for tid in 0..FRAMES {
        let number = u32::try_from(below(&mut random, scale.live as usize))?;
        let vf = vf_of(number, scale.vfs)?;
        frames.push(tunnel_frame(SM_LID, None, &request(vf, number, tid)));
        steps.push((tid, vf));
    }
    shuffle(&mut steps, &mut random);
    Ok(Measured {
        setup: "requests for paths that the SA answered before, in random order, cold frames"
            .into(),
        ops: u64::from(FRAMES),
        mads_per_op: Some(1),
        run: Box::new(move |_| {
            let began = Stopwatch::start();
            for batch in steps.chunks(BATCH) {
                for &(frame, vf) in batch {
                    rig.load(From::Vf(vf), &frames[frame as usize]);
                }
                rig.flush()?;
                for (at, &(tid, _)) in batch.iter().enumerate() {
                    let header = rig.sent(at)?.header;
                    let answered = header.method == Method::GET_RESP
                        && header.status == MadStatus::OK
                        && header.tid == Tid::new(u64::from(tid));
                    ensure!(answered, "a request was not answered");
                }
            }
            let elapsed = began.elapsed();
            ensure!(rig.is_quiet(), "more came out than went in");
            Ok(Sample::of(nanos_per(elapsed, u64::from(FRAMES))))
        }),
    })
}
