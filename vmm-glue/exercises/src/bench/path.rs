//! Requests for paths that the SA answered lately: the mux answers from its cache.

use anyhow::{Context, ensure};
use ib_vtime::SplitMix64;
use ib_wire::mad::{Mad, MadStatus, Method};
use ib_wire::sa::{PathRecord, SaMad};
use ib_wire::{Gid, Guid, Lid, PKey, SubnetPrefix, Tid};
use mad_mux::path_cache::PathCacheConfig;
use mad_mux::tid::TidConfig;
use pf_context::Limits;
use vf_tunnel::VfId;
use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

use super::clock::Stopwatch;
use super::pool::{POOL, Pool, below};
use super::rig::{BATCH, From, Rig, SM_LID, batch_mad, tunnel_frame, vf_gid, vf_of};
use super::{LEAST_OPS, Measured, Sample, Scale, nanos_per};

fn port_gid(number: u32) -> Gid {
    let guid = Guid::new(0x0011_7500_0001_0000 + u64::from(number));
    Gid::from_parts(SubnetPrefix::DEFAULT, guid)
}

/// A VF asks for the path to a port.
fn request(vf: VfId, number: u32) -> Mad {
    let mut record = PathRecord {
        sgid: vf_gid(vf),
        dgid: port_gid(number),
        ..PathRecord::default()
    };
    record.set_numb_path(1);
    let mask = PathRecord::SGID | PathRecord::DGID | PathRecord::NUMB_PATH;
    let mut sa = SaMad::new(Method::GET, mask, &record);
    sa.attribute_offset = U16::new(0);
    sa.header.tid = Tid::new(u64::from(number));
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
        let frame = tunnel_frame(SM_LID, None, &request(vf, number));
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
    let steps = (0..LEAST_OPS)
        .map(|_| {
            let number = u32::try_from(below(&mut random, scale.live as usize))?;
            Ok((vf_of(number, scale.vfs)?, number))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let template = tunnel_frame(SM_LID, None, &request(vf_of(0, scale.vfs)?, 0));
    let mut frames = Pool::new(12, &template, POOL);
    Ok(Measured {
        setup: "requests for paths that the SA answered before, in random order, cold frames"
            .into(),
        ops: steps.len() as u64,
        mads_per_op: Some(1),
        run: Box::new(move |_| {
            let began = Stopwatch::start();
            for batch in steps.chunks(BATCH) {
                for &(vf, _) in batch {
                    rig.load(From::Vf(vf), frames.place());
                }
                for (at, &(vf, number)) in batch.iter().enumerate() {
                    let mad = batch_mad(rig.loaded(at)?)?;
                    mad.header.tid = Tid::new(u64::from(number));
                    let sa: &mut SaMad = mad.view_mut();
                    let (record, _) = PathRecord::mut_from_prefix(&mut sa.data)
                        .ok()
                        .context("a record fits")?;
                    record.sgid = vf_gid(vf);
                    record.dgid = port_gid(number);
                }
                rig.flush()?;
                for (at, &(_, number)) in batch.iter().enumerate() {
                    let header = rig.sent(at)?.header;
                    let answered = header.method == Method::GET_RESP
                        && header.status == MadStatus::OK
                        && header.tid == Tid::new(u64::from(number));
                    ensure!(answered, "a request was not answered");
                }
            }
            let elapsed = began.elapsed();
            ensure!(rig.is_quiet(), "more came out than went in");
            Ok(Sample::of(nanos_per(elapsed, u64::from(LEAST_OPS))))
        }),
    })
}
