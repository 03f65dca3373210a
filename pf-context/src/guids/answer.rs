//! What the SA's answers change.

use ib_endpoint::{SaAnswer, SaError};
use ib_vtime::Instant;
use ib_wire::Guid;
use ib_wire::mad::MadStatus;

use super::api::GuidToken;
use super::entry::WaitReason;
use super::manager::{GuidManager, Support};
use super::request::{BLOCK, BlockRequest, Method, Subject, Verdict};

/// CapabilityMask2 of the SA's ClassPortInfo, bit 5: additional GUIDs are supported (IBA 15.2.1.1).
const SUPPORTS_ADDITIONAL_GUIDS: u32 = 1 << 5;

impl GuidManager {
    /// Takes what came of a request. A token that was answered before is ignored.
    pub fn answered(&mut self, now: Instant, token: GuidToken, result: &Result<SaAnswer, SaError>) {
        let Some(request) = self.in_flight.remove(&token) else {
            return;
        };
        match request.subject {
            Subject::Support if request.stale => {}
            Subject::Support => self.support_answered(now, result),
            Subject::Block(block) => self.block_answered(now, &block, request.stale, result),
        }
        self.conclude(now);
    }

    /// An SA that answers anything but that it supports additional GUIDs or not is asked for them: it
    /// is up to it to refuse.
    fn support_answered(&mut self, now: Instant, result: &Result<SaAnswer, SaError>) {
        match result {
            Ok(answer) => {
                let supports = answer
                    .class_port_info()
                    .is_none_or(|info| info.capability_mask2() & SUPPORTS_ADDITIONAL_GUIDS != 0);
                self.set_support(if supports { Support::Yes } else { Support::No });
            }
            Err(SaError::Status(_)) => self.set_support(Support::Yes),
            Err(_) => self.retry_support(now),
        }
    }

    fn block_answered(
        &mut self,
        now: Instant,
        request: &BlockRequest,
        stale: bool,
        result: &Result<SaAnswer, SaError>,
    ) {
        match request.verdict(result) {
            Verdict::Done(guids) if request.method == Method::Set => {
                self.set_answered(now, request, &guids, stale);
            }
            Verdict::Done(_) => {
                for (index, _) in request.entries() {
                    self.entries[index].deleted(stale);
                }
            }
            Verdict::Refused(status) => self.refused(now, request, stale, status),
            Verdict::Unsent => self.failed(now, request),
            Verdict::Lost => {
                for (index, _) in request.entries() {
                    self.entries[index].doubt();
                }
                self.failed(now, request);
            }
        }
        for (index, _) in request.entries() {
            self.settle(now, index);
        }
        self.mark(usize::from(request.block));
    }

    fn set_answered(
        &mut self,
        now: Instant,
        request: &BlockRequest,
        guids: &[Guid; BLOCK],
        stale: bool,
    ) {
        for (index, asked) in request.entries() {
            let entry = &mut self.entries[index];
            if entry.set_answered(asked, guids[index % BLOCK], stale) {
                self.back_off(now, index, WaitReason::Declined);
            }
            self.give_way(index);
        }
    }

    /// The SA did nothing, which may be for the sake of one entry: if it was asked for several, each
    /// is asked for alone from now on.
    fn refused(&mut self, now: Instant, request: &BlockRequest, stale: bool, status: MadStatus) {
        let by_entry = [MadStatus::SA_DENIED, MadStatus::SA_REQ_INVALID].contains(&status);
        if by_entry && request.entries().count() > 1 {
            for (index, _) in request.entries() {
                self.entries[index].alone = true;
            }
        }
        let unsupported = [
            MadStatus::UNSUPPORTED_METHOD,
            MadStatus::UNSUPPORTED_METHOD_ATTRIBUTE,
        ];
        if unsupported.contains(&status) && !stale {
            self.set_support(Support::No);
        } else if status == MadStatus::SA_DENIED && request.method == Method::Delete {
            self.in_groups(now, request);
        } else {
            self.failed(now, request);
        }
    }

    /// The SA does not delete an alias that is a member of a multicast group.
    fn in_groups(&mut self, now: Instant, request: &BlockRequest) {
        self.count_failed_release(request);
        for (index, _) in request.entries() {
            if self.entries[index].need().is_some() {
                self.entries[index].left = false;
                self.back_off(now, index, WaitReason::Leaving);
            }
        }
    }

    /// All entries of a request wait together, so that they are asked for together again.
    fn failed(&mut self, now: Instant, request: &BlockRequest) {
        if request.method == Method::Delete {
            self.count_failed_release(request);
        }
        let at = now + self.failure_wait();
        for (index, _) in request.entries() {
            if self.entries[index].need().is_some() {
                self.wait(index, at, WaitReason::Failed);
            }
        }
    }

    fn count_failed_release(&mut self, request: &BlockRequest) {
        for (index, _) in request.entries() {
            let closing = self.closing;
            let entry = &mut self.entries[index];
            entry.failed_releases += u32::from(closing);
            entry.abandoned = entry.failed_releases >= Self::RELEASE_TRIES;
        }
    }

    fn back_off(&mut self, now: Instant, index: usize, reason: WaitReason) {
        let entry = &mut self.entries[index];
        entry.refusals = entry.refusals.saturating_add(1);
        let at = now + Self::refusal_wait(entry.refusals);
        if reason == WaitReason::Leaving {
            self.leave_groups(index, at);
        } else {
            self.wait(index, at, reason);
        }
    }
}
