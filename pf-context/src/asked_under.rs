//! The LIDs under which a VF was asked, where its port has several.
//!
//! An answer leaves from the LID that the request came to (IBA 13.5.4). A guest cannot see to that: the
//! tunnel's header has the path bits, but Linux's mlx4 takes 0 for them whatever it says (`use_tunnel_data`
//! of its `cq.c`). So the mux remembers them for it.

use std::collections::VecDeque;

use ib_wire::mad::{MadHeader, MgmtClass};
use ib_wire::{Lid, Tid};

/// A request that came under another LID than the port's base LID.
#[derive(Clone, Copy, Debug)]
struct Asked {
    by: Lid,
    class: MgmtClass,
    tid: Tid,
    path_bits: u8,
}

impl Asked {
    fn is_answered_by(&self, to: Lid, answer: &MadHeader) -> bool {
        (self.by, self.class, self.tid) == (to, answer.mgmt_class, answer.tid)
    }
}

/// Such requests of one VF, the latest last.
#[derive(Clone, Debug, Default)]
pub(crate) struct AskedUnder(VecDeque<Asked>);

impl AskedUnder {
    /// Requests that are remembered; the oldest is forgotten for a new one, and answered from the base
    /// LID.
    const MOST: usize = 64;

    /// Takes note of a request, or CM message, that goes to the VF.
    pub(crate) fn note(&mut self, by: Lid, path_bits: u8, request: &MadHeader) {
        if path_bits == 0 {
            return;
        }
        self.0.retain(|asked| !asked.is_answered_by(by, request));
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back(Asked {
            by,
            class: request.mgmt_class,
            tid: request.tid,
            path_bits,
        });
    }

    /// The path bits of what the VF sends without saying any: those under which it was asked the same.
    pub(crate) fn path_bits(&self, to: Lid, answer: &MadHeader) -> u8 {
        let mut latest = self.0.iter().rev();
        let asked = latest.find(|asked| asked.is_answered_by(to, answer));
        asked.map_or(0, |asked| asked.path_bits)
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use ib_wire::mad::{AttributeId, Method};

    use super::*;

    fn header(tid: u64) -> MadHeader {
        let mut header = MadHeader::new(MgmtClass::COM_MGT, Method::SEND, AttributeId::CM_REP);
        header.tid = Tid::new(tid);
        header
    }

    #[test]
    fn the_latest_request_counts_and_a_flood_is_bounded() {
        let peer = Lid::new(9);
        let mut asked = AskedUnder::default();
        for path_bits in [1, 2] {
            asked.note(peer, path_bits, &header(7));
        }
        asked.note(peer, 0, &header(8));
        assert_eq!(asked.path_bits(peer, &header(7)), 2);
        assert_eq!(asked.path_bits(Lid::new(10), &header(7)), 0);
        assert_eq!(asked.path_bits(peer, &header(8)), 0);
        for tid in 100..200 {
            asked.note(peer, 3, &header(tid));
        }
        assert_eq!(asked.0.len(), AskedUnder::MOST);
        assert_eq!(asked.path_bits(peer, &header(7)), 0);
        assert_eq!(asked.path_bits(peer, &header(199)), 3);
    }
}
