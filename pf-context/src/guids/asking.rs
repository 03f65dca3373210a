//! Which request goes to the SA next.

use ib_endpoint::SaRequest;

use super::api::{GuidOutput, GuidToken};
use super::entry::Need;
use super::manager::{GuidManager, Support};
use super::request::{BLOCK, BlockRequest, InFlight, Method, Subject};

impl GuidManager {
    pub(super) fn has_work(&self) -> bool {
        self.ready.iter().any(|block| self.needs_anything(*block))
    }

    fn needs_anything(&self, block: u8) -> bool {
        let mut indices = self.indices(block);
        indices.any(|index| self.entries[index].need().is_some())
    }

    /// The entries of a block that there are.
    fn indices(&self, block: u8) -> core::ops::Range<usize> {
        let first = usize::from(block) * BLOCK;
        let end = self.entries.len().min(usize::from(self.config.table_len));
        first.max(1)..(first + BLOCK).min(end)
    }

    /// Lines a block up if there is something to ask about it.
    pub(super) fn mark(&mut self, block: usize) {
        if let Ok(block) = u8::try_from(block)
            && self.needs_anything(block)
            && !self.ready.contains(&block)
        {
            self.ready.push_back(block);
        }
    }

    pub(super) fn next_request(&mut self) -> Option<GuidOutput> {
        if !self.may_ask() || self.in_flight.len() >= Self::MAX_IN_FLIGHT {
            return None;
        }
        if self.support == Support::Unknown && !self.closing {
            return self.ask_for_support();
        }
        while let Some(block) = self.ready.pop_front() {
            if let Some(request) = self.compose(block) {
                let to_sa = request.to_sa(self.lid);
                return Some(self.send(Subject::Block(request), to_sa));
            }
        }
        None
    }

    fn ask_for_support(&mut self) -> Option<GuidOutput> {
        let asked = self.in_flight.values().any(InFlight::is_about_support);
        if asked || self.support_retry.is_some() || !self.has_work() {
            return None;
        }
        Some(self.send(Subject::Support, SaRequest::class_port_info()))
    }

    fn send(&mut self, subject: Subject, request: SaRequest) -> GuidOutput {
        let token = GuidToken(self.next_token);
        self.next_token += 1;
        let stale = false;
        self.in_flight.insert(token, InFlight { subject, stale });
        GuidOutput::Request {
            token,
            request: Box::new(request),
        }
    }

    /// The next request about a block: what is to be deleted first, since its GUIDs may be wanted in
    /// other entries. A block with a request under way has its turn after the answer.
    fn compose(&self, block: u8) -> Option<BlockRequest> {
        if self
            .in_flight
            .values()
            .any(|request| request.is_about(block))
        {
            return None;
        }
        let needs: Vec<(usize, Need)> = self
            .indices(block)
            .filter_map(|index| Some((index, self.entries[index].need()?)))
            .collect();
        let is_delete = |need: &(usize, Need)| need.1 == Need::Delete;
        let method = if needs.iter().any(is_delete) {
            Method::Delete
        } else {
            Method::Set
        };
        let of_method = |need: &&(usize, Need)| is_delete(need) == (method == Method::Delete);
        let together = |need: &&(usize, Need)| !self.entries[need.0].alone;
        let mut asked = [None; BLOCK];
        let mut ask = |&(index, need): &(usize, Need)| {
            let held = self.entries[index].granted().unwrap_or_default();
            asked[index % BLOCK] = Some(if let Need::Set(guid) = need {
                guid
            } else {
                held
            });
        };
        let candidates = || needs.iter().filter(of_method);
        if candidates().any(|need| together(&need)) {
            candidates().filter(together).for_each(&mut ask);
        } else {
            candidates().take(1).for_each(&mut ask);
        }
        asked.iter().any(Option::is_some).then_some(BlockRequest {
            block,
            method,
            asked,
        })
    }
}
