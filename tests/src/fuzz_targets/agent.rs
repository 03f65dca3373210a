//! A sequence of operations on two MAD agents that talk over a hostile wire.

use ib_endpoint::{
    AgentEvent, AgentId, MadAddress, MadAgent, MadAgentConfig, Message, MethodSet, Oui,
    Registration, RequestId, RetryPolicy, RmppConfig, Transmit,
};
use ib_vtime::{Duration, Instant};
use ib_wire::Lid;
use ib_wire::mad::{AttributeId, Mad, MadHeader, Method, MgmtClass};
use zerocopy::IntoBytes;

use super::hostile::{Input, Wire};

/// The classes of the two agents' clients: one without RMPP, and both kinds with it.
const CLASSES: [MgmtClass; 3] = [MgmtClass::PERF, MgmtClass::SUBN_ADM, MgmtClass::new(0x30)];

/// One end: an agent, its clients, and what they keep.
struct End {
    lid: Lid,
    agent: MadAgent,
    clients: Vec<AgentId>,
    requests: Vec<RequestId>,
    to_answer: Vec<(AgentId, MadAddress, Message)>,
}

impl End {
    fn new(lid: u16) -> Self {
        let config = MadAgentConfig {
            max_outstanding: 16,
            max_pending_requests: 16,
            max_pending_control: 16,
            rmpp: RmppConfig {
                max_message: 4_000,
                max_buffered: 16_000,
                max_unsolicited: 4,
                max_retained: 8,
                ..RmppConfig::default()
            },
            ..MadAgentConfig::gsi(lid.into())
        };
        let mut agent = MadAgent::new(config);
        let methods = MethodSet::of(&[Method::GET, Method::SET, Method::GET_TABLE, Method::REPORT]);
        let clients = CLASSES
            .iter()
            .map(|class| {
                let registration = Registration::new(*class, methods);
                let registration = if class.is_vendor_oui() {
                    registration.with_oui(Oui([0, 0x14, 5]))
                } else {
                    registration
                };
                agent
                    .register(registration)
                    .expect("each class is registered once")
            })
            .collect();
        Self {
            lid: Lid::new(lid),
            agent,
            clients,
            requests: Vec::new(),
            to_answer: Vec::new(),
        }
    }

    fn check(&self) {
        let sizes = self.agent.sizes();
        let config = self.agent.config();
        assert!(sizes.requests <= config.max_outstanding);
        assert!(sizes.transfers_out <= config.max_outstanding);
        assert!(sizes.transfers_in <= config.max_outstanding + config.rmpp.max_unsolicited);
        assert!(sizes.buffered <= config.rmpp.max_buffered);
        assert!(sizes.retained <= config.rmpp.max_retained);
    }

    fn take_events(&mut self) {
        while let Some(event) = self.agent.poll_event() {
            match event {
                AgentEvent::Request {
                    agent,
                    from,
                    message,
                } => {
                    self.to_answer.push((agent, from, message));
                }
                AgentEvent::Response { request, .. }
                | AgentEvent::RequestFailed { request, .. } => {
                    assert!(
                        self.requests.contains(&request),
                        "a request ends once, and was made"
                    );
                    self.requests.retain(|other| *other != request);
                }
                AgentEvent::TransferEnded { .. } => {}
            }
        }
    }
}

/// A message of a class, single or of `length` bytes under RMPP.
fn message(class: MgmtClass, method: Method, length: usize) -> Message {
    let mut mad = Mad::new(MadHeader::new(class, method, AttributeId::new(0x11)));
    if class.is_vendor_oui() {
        mad.as_mut_bytes()[37..40].copy_from_slice(&[0, 0x14, 5]);
    }
    match length {
        0 => Message::single(mad),
        length => Message::rmpp(mad, vec![0x5a; length]).unwrap_or_else(|| Message::single(mad)),
    }
}

/// The whole scene: two ends, the wire between them, and the time.
struct Scene {
    now: Instant,
    ends: [End; 2],
    wire: Wire,
}

impl Scene {
    /// What the ends want to send goes onto the wire.
    fn transmit(&mut self) {
        for (side, end) in self.ends.iter_mut().enumerate() {
            while let Some(Transmit { mad, .. }) = end.agent.poll_transmit(self.now) {
                self.wire.push(side, mad);
            }
        }
    }

    /// The other end gets a MAD.
    fn deliver(&mut self, sender: usize, mad: &Mad) {
        let from = MadAddress::gsi(self.ends[sender].lid);
        let _ = self.ends[1 - sender].agent.handle_mad(self.now, &from, mad);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let operation = input.byte();
        let side = usize::from(operation >> 7);
        match operation & 7 {
            0 => self.request(side, input),
            1 => self.answer(side, input),
            2 | 3 => self.pass(side, input),
            4 => self.inject(side, input),
            5 => {
                self.now += Duration::from_millis(1 << (input.byte() % 17));
                self.ends
                    .iter_mut()
                    .for_each(|end| end.agent.handle_timeout(self.now));
            }
            6 => {
                let end = &mut self.ends[side];
                let at = input.index(end.requests.len());
                if at < end.requests.len() {
                    let request = end.requests.swap_remove(at);
                    end.agent.cancel(request);
                    end.take_events_after_cancel(request);
                }
            }
            _ => self.wire.lose(side, input),
        }
        self.transmit();
        for end in &mut self.ends {
            end.take_events();
            end.check();
        }
    }

    fn request(&mut self, side: usize, input: &mut Input<'_>) {
        let to = MadAddress::gsi(self.ends[1 - side].lid);
        let end = &mut self.ends[side];
        let which = input.index(CLASSES.len());
        let method = [Method::GET, Method::GET_TABLE][input.index(2)];
        let length = usize::from(input.byte()) * 20;
        let policy = RetryPolicy::new(
            Duration::from_millis(1 << (input.byte() % 12)),
            input.byte() % 4,
        );
        let message = message(CLASSES[which], method, length);
        let made = end
            .agent
            .send_request(self.now, end.clients[which], to, message, policy);
        end.requests.extend(made);
    }

    fn answer(&mut self, side: usize, input: &mut Input<'_>) {
        let end = &mut self.ends[side];
        let at = input.index(end.to_answer.len());
        let length = usize::from(input.byte()) * 20;
        if at >= end.to_answer.len() {
            return;
        }
        let (agent, from, request) = end.to_answer.swap_remove(at);
        let header = request.header();
        let mut answer = message(header.mgmt_class, header.method.response(), length);
        answer.header_mut().tid = header.tid;
        answer.header_mut().attribute_id = header.attribute_id;
        let _ = end.agent.respond(self.now, agent, from, answer);
    }

    fn pass(&mut self, side: usize, input: &mut Input<'_>) {
        for mad in self.wire.pass(side, input) {
            self.deliver(side, &mad);
        }
    }

    /// A stranger's MAD, under the transaction id of a request if there is one.
    fn inject(&mut self, side: usize, input: &mut Input<'_>) {
        let mut mad = input.mad();
        let victim = &self.ends[1 - side];
        let at = input.index(victim.requests.len() + 1);
        if let Some(request) = victim.requests.get(at) {
            mad.header.tid = request.tid();
        }
        self.deliver(side, &mad);
    }

    /// Lets time pass until nothing is live. Every timer fires a bounded number of times.
    fn wind_down(&mut self) {
        for _ in 0..100_000 {
            self.wire.clear();
            let next = self
                .ends
                .iter()
                .filter_map(|end| end.agent.poll_timeout())
                .min();
            let Some(next) = next else { break };
            self.now = self.now.max(next);
            self.ends
                .iter_mut()
                .for_each(|end| end.agent.handle_timeout(self.now));
            self.transmit();
            self.ends.iter_mut().for_each(End::take_events);
        }
        for end in &self.ends {
            assert!(
                end.agent.sizes().is_empty(),
                "left: {:?}",
                end.agent.sizes()
            );
            assert_eq!(end.requests, [], "requests without an end");
        }
    }
}

impl End {
    /// A cancelled request has no event; one that ended just before may have one queued.
    fn take_events_after_cancel(&mut self, request: RequestId) {
        self.requests.push(request);
        self.take_events();
        self.requests.retain(|other| *other != request);
    }
}

/// Two agents that ask and answer each other while the input decides what the wire does. No input
/// makes one panic, exceed its bounds, end a request twice, or keep anything for ever.
pub(super) fn mad_agent(data: &[u8]) {
    play(data).wind_down();
}

fn play(data: &[u8]) -> Scene {
    let mut input = Input::new(data);
    let mut scene = Scene {
        now: Instant::from_millis(1),
        ends: [End::new(1), End::new(2)],
        wire: Wire::default(),
    };
    while input.has_operation() {
        scene.step(&mut input);
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_get_an_answer_of_one_mad_and_of_many() {
        for seed in [
            include_bytes!("../../fuzz/corpus/mad_agent/single").as_slice(),
            include_bytes!("../../fuzz/corpus/mad_agent/table"),
            include_bytes!("../../fuzz/corpus/mad_agent/dual-sided"),
        ] {
            assert_eq!(play(seed).ends[0].agent.counters().responses, 1);
        }
    }
}
