use std::sync::mpsc::Sender;

use hca_api::{Hca, QpKind, QpState, ReceiveMode};

use super::*;
use crate::hca::tests::{hca, spec, to_state};
use crate::mapped::MappedFiles;
use crate::sys::Device;
use crate::testing::{FakeFiles, occupy};
use crate::worker::Worker;

/// A port with data, whose thread waits until the sender does something.
fn rig() -> (LinuxHca<FakeFiles>, Arc<Device>, Sender<()>) {
    let device = Arc::new(Device::fake());
    let data = Data::new(device.clone(), device.attributes().unwrap(), 1);
    let mut worker = Worker::start().unwrap();
    let begin = occupy(&mut worker);
    let mut hca = hca();
    hca.set_data(data, MappedFiles::default(), worker);
    (hca, device, begin)
}

/// A queue pair that receives, with shared receives or without.
fn connected(
    hca: &mut LinuxHca<FakeFiles>,
    shares: bool,
) -> (PdHandle, CqHandle, Option<SrqHandle>, QpHandle) {
    let (pd, cq) = (hca.alloc_pd().unwrap(), hca.create_cq(8).unwrap());
    let srq = shares.then(|| {
        let spec = SrqSpec {
            pd,
            max_wr: 4,
            max_sge: 1,
            limit: 0,
            receives: ReceiveMode::Posted,
        };
        hca.create_srq(spec).unwrap()
    });
    let mut spec = spec(pd, cq, QpKind::Rc);
    spec.srq = srq;
    let (qp, _) = hca.create_qp(spec).unwrap();
    hca.modify_qp(qp, &to_state(QpState::Init)).unwrap();
    (pd, cq, srq, qp)
}

#[test]
fn a_queue_pair_that_is_destroyed_is_reset_at_once_and_ends_later_before_the_objects_that_it_used()
{
    let (mut hca, device, begin) = rig();
    let (pd, cq, srq, qp) = connected(&mut hca, true);
    let srq = srq.unwrap();
    let in_use = Err(HcaError::InUse);
    let refused = [hca.destroy_srq(srq), hca.destroy_cq(cq), hca.dealloc_pd(pd)];
    assert_eq!(refused, [in_use; 3]);
    hca.destroy_qp(qp).unwrap();
    assert_eq!(
        hca.dealloc_pd(pd),
        in_use,
        "the shared receive queue is there"
    );
    hca.destroy_srq(srq).unwrap();
    hca.destroy_cq(cq).unwrap();
    hca.dealloc_pd(pd).unwrap();
    assert_eq!(device.calls(), ["modify_qp", "reset_qp"]);
    for (kind, object) in [(0, cq.0), (1, qp.0), (16, qp.0), (15, srq.0)] {
        hca.take_event(RaisedEvent { kind, object });
    }
    assert_eq!(hca.poll_event(), None, "none has a handle");
    drop(begin);
    while device.calls().len() < 6 {
        std::thread::yield_now();
    }
    let ends = &device.calls()[2..];
    assert_eq!((ends[0], ends[3]), ("destroy_qp", "dealloc_pd"));
}

#[test]
fn a_queue_pair_that_the_host_does_not_reset_is_destroyed_at_once() {
    let (mut hca, device, _begin) = rig();
    let (.., qp) = connected(&mut hca, false);
    device.refuse_changes();
    hca.destroy_qp(qp).unwrap();
    assert_eq!(device.calls(), ["modify_qp", "destroy_qp"]);
}

#[test]
fn a_queue_pair_that_was_never_used_is_not_reset() {
    let (mut hca, device, _begin) = rig();
    let (pd, cq) = (hca.alloc_pd().unwrap(), hca.create_cq(8).unwrap());
    let (qp, _) = hca.create_qp(spec(pd, cq, QpKind::Ud)).unwrap();
    hca.destroy_qp(qp).unwrap();
    hca.dealloc_pd(pd).unwrap();
    assert_eq!(device.calls(), [""; 0]);
}
