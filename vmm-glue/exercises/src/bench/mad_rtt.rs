//! Requests and responses between two hosts behind two switches.
//!
//! A request passes the sender's MAD agent, its QP1, two switches and the receiver's QP1 and agent, which
//! answers; the response takes the same way back.

use std::time::Instant as WallInstant;

use anyhow::ensure;
use emulated_hca::Topology;
use ib_endpoint::{
    AgentEvent, EndPortEvent, MadAddress, Message, MethodSet, Registration, RetryPolicy,
};
use ib_vtime::Duration;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};

use super::subnet::bring_up;
use super::{Measured, Sample, nanos_per};
use vhca::Driven;

const REQUESTS: u64 = 20_000;
const WINDOW: u64 = 64;

pub(super) fn prepare() -> Measured {
    Measured {
        setup: format!(
            "{REQUESTS} requests for ClassPortInfo, 1 and {WINDOW} under way at a time, 2 switches"
        ),
        ops: REQUESTS,
        mads_per_op: Some(2),
        run: Box::new(run),
    }
}

fn run(seed: u32) -> anyhow::Result<Sample> {
    let single = round_trip(1, seed)?;
    let windowed = round_trip(WINDOW, seed)?;
    Ok(Sample {
        nanos: windowed,
        bytes_per_live: None,
        figures: vec![("ns/round trip, 1 under way", single)],
    })
}

/// Nanoseconds for each request with its response.
fn round_trip(window: u64, seed: u32) -> anyhow::Result<f64> {
    let (mut world, hosts) = bring_up(&Topology::two_switches(1), 2, seed)?;
    let (asking, asked) = (hosts[0].port(1), hosts[1].port(1));
    let to = MadAddress::gsi(world.port(asked).view().lid);
    let registration = Registration::new(MgmtClass::COM_MGT, MethodSet::NONE);
    let agent = world.port_mut(asking).gsi().register(registration)?;
    let header = MadHeader::new(
        MgmtClass::COM_MGT,
        Method::GET,
        AttributeId::CLASS_PORT_INFO,
    );
    let request = Message::single(Mad::new(header));
    let policy = RetryPolicy::new(Duration::from_secs(1), 0);

    let began = WallInstant::now();
    let mut answered = 0;
    while answered < REQUESTS {
        let now = world.now();
        for _ in 0..window {
            let mads = world.port_mut(asking).gsi();
            mads.send_request(now, agent, to, request.clone(), policy)?;
        }
        world.poll(now);
        let mut arrived = 0;
        while let Some(event) = world.poll_event(asking) {
            let is_answer = matches!(event, EndPortEvent::Gsi(AgentEvent::Response { .. }));
            arrived += u64::from(is_answer);
        }
        ensure!(
            arrived == window,
            "{arrived} of {window} requests were answered"
        );
        answered += window;
    }
    Ok(nanos_per(began.elapsed(), answered))
}
