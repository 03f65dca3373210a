//! What an agent tells the subnet manager unasked (IBA 14.2.5.1, 14.4.9).

use ib_wire::{Gid, Lid, PKey, PortNum, QKey, Qpn, Sl};

use crate::Node;

/// Which key of a packet was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongKey {
    /// No entry of the port's P_Key table, or not that of the QP, matches: trap 257.
    PKey(PKey),
    /// The Q_Key is not that of the QP: trap 258.
    QKey(QKey),
}

/// A packet that a port refused for its key (IBA 14.2.5.1, NoticeDataDetails for traps 257, 258).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadKey {
    /// The key.
    pub key: WrongKey,
    /// Source LID of the packet.
    pub slid: Lid,
    /// Destination LID of the packet.
    pub dlid: Lid,
    /// Its service level.
    pub sl: Sl,
    /// Source QP.
    pub src_qpn: Qpn,
    /// Destination QP.
    pub dest_qpn: Qpn,
    /// Source and destination GID, if the packet had a GRH.
    pub gids: Option<(Gid, Gid)>,
}

impl Node {
    /// Counts a packet that the transport refused for its key, and tells the SM.
    pub fn report_bad_key(&mut self, port: PortNum, bad: &BadKey) {
        let Some(port) = self.port_mut(port) else {
            return;
        };
        let violations = match bad.key {
            WrongKey::PKey(_) => &mut port.p_key_violations,
            WrongKey::QKey(_) => &mut port.q_key_violations,
        };
        *violations = violations.saturating_add(1);
    }
}
