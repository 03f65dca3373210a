//! The tables that OpenSM wrote, sent and received by the MAD agent: the segments and the
//! acknowledgements are those of the recorded conversations.

use ib_endpoint::{
    AgentEvent, MadAddress, MadAgent, MadAgentConfig, Message, MethodSet, Registration, RequestId,
    RetryPolicy,
};
use ib_vtime::{Duration, Instant};
use ib_wire::Lid;
use ib_wire::mad::{MAD_SIZE, Mad, Method, MgmtClass};
use ib_wire::rmpp::{RmppHeader, RmppMad};
use vhca_tests::traces::{self, Line};
use zerocopy::IntoBytes;

const NOW: Instant = Instant::ZERO;

/// A table with the segments and acknowledgements that carried it.
#[derive(Debug, Default)]
struct Recorded {
    table: Vec<u8>,
    segments: Vec<Mad>,
    acks: Vec<Mad>,
}

impl Recorded {
    /// What follows the SA header.
    fn data(&self) -> &[u8] {
        &self.table[56..]
    }

    /// The first 256 bytes of the table, as a MAD with another transaction id.
    fn head(&self, method: Method) -> Mad {
        let mut bytes = [0; MAD_SIZE];
        bytes[..56].copy_from_slice(&self.table[..56]);
        let mut mad = Mad::from_bytes(&bytes).expect("256 bytes");
        mad.header.method = method;
        mad
    }
}

fn recorded() -> Vec<Recorded> {
    let mad = |bytes: &[u8]| Mad::from_bytes(bytes).expect("256 bytes");
    let mut tables: Vec<Recorded> = Vec::new();
    for trace in traces::all().expect("readable traces") {
        for line in &trace.lines {
            match line {
                Line::Table { bytes } => tables.push(Recorded {
                    table: bytes.clone(),
                    ..Recorded::default()
                }),
                Line::Segment { bytes, .. } => {
                    tables
                        .last_mut()
                        .expect("a table first")
                        .segments
                        .push(mad(bytes));
                }
                Line::Ack { bytes, .. } => tables
                    .last_mut()
                    .expect("a table first")
                    .acks
                    .push(mad(bytes)),
                _ => {}
            }
        }
    }
    tables
}

/// What programs wrote to umad files, without the umad headers.
fn written() -> Vec<Vec<u8>> {
    let raw = traces::all().expect("readable traces");
    let umads = raw.iter().flat_map(|trace| &trace.lines);
    umads
        .filter_map(|line| match line {
            Line::Umad { bytes } => Some(bytes[64..].to_vec()),
            _ => None,
        })
        .collect()
}

fn agent() -> (MadAgent, ib_endpoint::AgentId) {
    let mut config = MadAgentConfig::gsi(1);
    // Linux leaves RRespTime at 0.
    config.rmpp.resp_time = 0;
    let mut mads = MadAgent::new(config);
    let methods = MethodSet::of(&[Method::GET_TABLE]);
    let id = mads
        .register(Registration::new(MgmtClass::SUBN_ADM, methods))
        .expect("first of its class");
    (mads, id)
}

fn ask(mads: &mut MadAgent, id: ib_endpoint::AgentId, recorded: &Recorded) -> RequestId {
    let request = Message::single(recorded.head(Method::GET_TABLE));
    let policy = RetryPolicy::new(Duration::from_secs(1), 0);
    let to = MadAddress::gsi(Lid::new(1));
    let request = mads
        .send_request(NOW, id, to, request, policy)
        .expect("there is room");
    mads.poll_transmit(NOW).expect("the request");
    request
}

/// The recorded numbers of an acknowledgement: segment and window.
fn numbers(rmpp: &RmppHeader) -> (u32, u32) {
    (rmpp.segment_number.get(), rmpp.data2.get())
}

#[test]
fn recorded_segments_become_the_recorded_table_and_are_acknowledged_as_recorded() {
    let tables = recorded();
    assert!(tables.len() >= 5);
    let written = written();
    for recorded in &tables {
        let (mut mads, id) = agent();
        let request = ask(&mut mads, id, recorded);
        let mut acks = Vec::new();
        for segment in &recorded.segments {
            let mut segment = *segment;
            segment.header.tid = request.tid();
            mads.handle_mad(NOW, &MadAddress::gsi(Lid::new(1)), &segment);
            acks.extend(std::iter::from_fn(|| mads.poll_transmit(NOW)).map(|t| t.mad));
        }
        let Some(AgentEvent::Response { message, .. }) = mads.poll_event() else {
            panic!("no response");
        };
        assert_eq!(message.data(), recorded.data());
        assert!(
            written.contains(&recorded.table),
            "OpenSM wrote the table to its umad file"
        );
        for ack in &mut acks {
            ack.header.tid = recorded.acks[0].header.tid;
        }
        if recorded.segments.len() == 1 {
            // A table of one segment is complete at once: its only ACK opens no window.
            assert_eq!(acks.len(), 1);
            let rmpp = acks[0].view::<RmppMad>().rmpp;
            assert_eq!(numbers(&rmpp), (1, 1));
        } else {
            assert_eq!(acks, recorded.acks);
        }
    }
}

#[test]
fn the_recorded_table_goes_out_in_the_recorded_segments() {
    for recorded in &recorded() {
        let (mut mads, id) = agent();
        let to = MadAddress::gsi(Lid::new(5));
        let head = recorded.head(Method::GET_TABLE_RESP);
        let table = Message::rmpp(head, recorded.data().to_vec()).unwrap();
        mads.respond(NOW, id, to, table).unwrap();
        let mut segments: Vec<Mad> = Vec::new();
        let mut acks = recorded.acks.iter();
        loop {
            while let Some(transmit) = mads.poll_transmit(NOW) {
                segments.push(transmit.mad);
            }
            match acks.next() {
                Some(ack) => mads.handle_mad(NOW, &to, ack),
                None => break,
            };
        }
        assert_eq!(segments.len(), recorded.segments.len());
        for (sent, expected) in segments.iter().zip(&recorded.segments) {
            assert_eq!(sent.as_bytes(), expected.as_bytes());
        }
        assert!(matches!(
            mads.poll_event(),
            Some(AgentEvent::TransferEnded { result: Ok(()), .. })
        ));
        assert!(mads.sizes().is_empty());
    }
}
