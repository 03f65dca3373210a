//! Reasons for which frames are dropped.

use core::fmt;

macro_rules! drop_reasons {
    ($($(#[$meta:meta])* $variant:ident = $text:literal,)*) => {
        /// The reason for which a frame was dropped. The texts are stable: counters, `vhca replay` and
        /// logs print them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[$meta])* $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of their indices.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable text.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// A small number for tables of counters.
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

drop_reasons! {
    // Framing, VF to wire.
    /// The frame did not come from the VF's own proxy QP.
    ForeignSource = "foreign_source",
    /// The frame is not 312 bytes, or a MAD not 256.
    BadLength = "bad_length",
    /// Base or class version is not the one of the class.
    BadVersion = "bad_version",
    /// The class does not travel on this special QP.
    ClassOnWrongQp = "class_on_wrong_qp",
    /// The P_Key index is beyond the VF's table.
    PKeyIndexOutOfRange = "pkey_index_out_of_range",
    /// The P_Key index is not mapped, or what is mapped is no valid key.
    NoPKey = "no_pkey",
    /// The port is not one of the VF's.
    BadPort = "bad_port",
    /// The VF has no GUID in hardware yet.
    NoGuid = "no_guid",
    /// The service level is not permitted or leads to VL15.
    BadSl = "bad_sl",
    /// The Q_Key is not the well-known one.
    BadQKey = "bad_qkey",
    /// The remote QP is not QP1 and no redirect to it was seen.
    BadRemoteQp = "bad_remote_qp",
    /// The VF is in reset.
    VfInReset = "vf_in_reset",
    /// A queue is full.
    Backpressure = "backpressure",
    /// The VF exceeds its rate.
    RateLimited = "rate_limited",

    // Class policy.
    /// The VF has no SMI privilege.
    SmiNotPermitted = "smi_not_permitted",
    /// An SMP that nobody asked for.
    UnsolicitedSmp = "unsolicited_smp",
    /// The class is not open to VFs.
    ClassNotPermitted = "class_not_permitted",
    /// The class does not take this method from, or to, a VF.
    MethodNotPermitted = "method_not_permitted",
    /// GUIDInfoRecord may only be changed by the PF.
    GuidInfoNotPermitted = "guid_info_not_permitted",
    /// A MAD with an SM_Key, where policy refuses instead of clearing it.
    SmKeyNotPermitted = "sm_key_not_permitted",
    /// A GID or GUID inside the MAD is not the VF's own.
    ForeignIdentity = "foreign_identity",
    /// An answer from a VF that serves nothing; to the PF's own LID, also a report.
    ResponseNotPermitted = "response_not_permitted",

    // Transactions.
    /// The VF has too many transactions.
    TidQuota = "tid_quota",
    /// No transaction has this id.
    UnknownTid = "unknown_tid",
    /// The answer comes from somebody else than was asked.
    WrongPeer = "wrong_peer",
    /// The answer does not fit the question.
    AnswerMismatch = "answer_mismatch",
    /// RMPP control of a transfer that is not known.
    UnknownTransfer = "unknown_transfer",
    /// The VF has too many SA requests outstanding.
    SaQuota = "sa_quota",

    // Steering, wire to VF.
    /// The destination GID belongs to no VF.
    UnknownGid = "unknown_gid",
    /// The destination GID's prefix is not this subnet's.
    BadPrefix = "bad_prefix",
    /// Two parts of the MAD name different targets.
    TargetMismatch = "target_mismatch",
    /// The VF's tunnel is not active.
    VfDown = "vf_down",
    /// The packet's partition is not one of the VF's.
    PKeyMismatch = "pkey_mismatch",
    /// A well-formed MAD for which nobody is responsible.
    NoTarget = "no_target",

    // Connection management.
    /// No connection has this communication id.
    UnknownCommId = "unknown_comm_id",
    /// Not a CM message, or not in a state where it means anything.
    MalformedCm = "malformed_cm",
    /// The VF has too many connections.
    CmQuota = "cm_quota",
    /// The P_Key inside the message is not one of the VF's.
    ForeignPKey = "foreign_pkey",

    // Multicast and notices.
    /// A multicast or notice answer that no transaction waits for.
    NoTransaction = "no_transaction",
    /// Too many requests of the VF wait for this group.
    GroupBusy = "group_busy",
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_reason_is_displayed_as_its_text() {
        let reason = DropReason::GroupBusy;
        assert_eq!(std::format!("{reason}"), reason.as_str());
        assert_eq!(reason.as_str(), "group_busy");
    }

    #[test]
    fn reasons_have_distinct_texts_and_dense_indices() {
        let texts: BTreeSet<_> = DropReason::ALL
            .iter()
            .map(|reason| reason.as_str())
            .collect();
        assert_eq!(texts.len(), DropReason::ALL.len());
        let indices: std::vec::Vec<_> = DropReason::ALL.iter().map(|r| r.index()).collect();
        assert_eq!(
            indices,
            (0..DropReason::ALL.len()).collect::<std::vec::Vec<_>>()
        );
    }
}
