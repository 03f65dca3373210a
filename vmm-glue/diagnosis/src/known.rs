//! The codes of faults.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};

/// The stable word of a fault.
pub type Code = &'static str;

/// A code that a [`Diagnosis`](crate::Diagnosis) can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFault {
    /// The stable word.
    pub code: Code,
    /// State of the port that has it: `up`, `down` or `either`; `pair` for a fault between two.
    pub port: &'static str,
    /// The fault in words; code is between backquotes.
    pub meaning: &'static str,
}

const fn known(code: Code, port: &'static str, meaning: &'static str) -> KnownFault {
    KnownFault {
        code,
        port,
        meaning,
    }
}

/// All codes, in the order of `docs/serve.md`.
pub const KNOWN_FAULTS: &[KnownFault] = &[
    known("ok", "up", "none"),
    known(
        "sa_not_answering",
        "either",
        "the SA does not answer a question that the port asked it for this diagnosis, although the SM's port answers",
    ),
    known(
        "sa_unreachable",
        "either",
        "no packet gets from the port to the SM's port, or back: a link is down, a switch knows no route, the SM's port shares no \
         partition with a full member with the port, or with the VF, or a question to the SM's port is not answered",
    ),
    known(
        "foreign_m_key",
        "either",
        "a port that the subnet manager must manage has an M_Key that it does not know: another one than most \
         ports, or one for which it refused SMPs within the last minute",
    ),
    known("no_vmm", "up", "with `--vfio-user`: no VMM has the VF"),
    known(
        "socket_removed",
        "up",
        "with `--vfio-user`: no VMM has the VF, and the file of its socket was removed",
    ),
    known(
        "no_driver",
        "up",
        "a VMM has it, and no driver in its guest uses it",
    ),
    known(
        "driver_lost_track",
        "up",
        "the VF was reset, and the driver in its guest has not noticed yet",
    ),
    known(
        "guest_not_responding",
        "up",
        "for five seconds the guest has taken none of the VF's events: its VMM is stopped, or its driver is dead. \
         Of a guest for which there are no events this is not seen",
    ),
    known(
        "memory_not_shared",
        "up",
        "the VMM does not share the guest's memory",
    ),
    known("no_such_vf", "down", "there is no VF of that number"),
    known("no_such_port", "down", "there is no port of that number"),
    known("admin_down", "down", "the administrator keeps it down"),
    known(
        "no_cable",
        "down",
        "nothing is plugged into the physical port",
    ),
    known(
        "not_attached",
        "down",
        "the node of a simulator that the port stands for is not attached",
    ),
    known("link_down", "down", "the physical link is down"),
    known(
        "link_flapping",
        "either",
        "the physical link went down ten times or more within the last minute; how often is told",
    ),
    known(
        "link_faulty",
        "either",
        "by order (`vhca set link`) the service loses, repeats, damages or delays packets on the port's link, or on one \
         between it and the SM",
    ),
    known(
        "link_errors",
        "either",
        "the ends of the physical link counted ten errors or more within the last ten minutes, whatever made them",
    ),
    known(
        "duplicate_guid",
        "either",
        "another port of the subnet has the GUID of the port",
    ),
    known(
        "duplicate_lid",
        "either",
        "another port of the subnet has the LID of the port, or of its SM",
    ),
    known(
        "port_disabled",
        "down",
        "a management program (`ibportstate`) has disabled the port at one end of the link",
    ),
    known(
        "no_sm",
        "down",
        "no subnet manager has configured the physical port",
    ),
    known(
        "no_lid",
        "down",
        "the subnet has no unicast LID left for the port",
    ),
    known(
        "port_not_active",
        "down",
        "the subnet manager has not activated it",
    ),
    known(
        "no_guid_requested",
        "down",
        "nobody wants a GUID for the VF",
    ),
    known(
        "guid_refused",
        "down",
        "the GUID that was set is impossible: a sibling's, the port's own, or reserved",
    ),
    known(
        "waiting_for_sa",
        "either",
        "the SA has not granted the GUID yet, and answers other questions",
    ),
    known(
        "guid_declined",
        "down",
        "the SA gave no such GUID; when it is asked again is told",
    ),
    known(
        "waiting_for_hardware",
        "down",
        "the subnet manager has not written the GUID to the port's table",
    ),
    known(
        "guids_not_taken",
        "down",
        "the agents of a simulator's fabric refuse GUIDs, as those of the stock ibsim do: see `--local-guids`",
    ),
    known(
        "guids_not_supported",
        "down",
        "the SA cannot give out additional GUIDs",
    ),
    known(
        "guid_table_full",
        "down",
        "the port's GUID table has no entry for the VF",
    ),
    known(
        "guid_not_granted",
        "up",
        "the VF keeps the GUID that it had, and does not get the one that was set",
    ),
    known("no_pkey", "up", "the VF's P_Key table is empty"),
    known(
        "pkey_missing",
        "either",
        "the port is not in a partition that the VF is to be in, or in none at all",
    ),
    known(
        "quota_reached",
        "up",
        "the VF has all that it may have of something; of transactions only open ones count, since answered ones \
         make room",
    ),
    known("rate_limited", "up", "frames of the VF wait for their turn"),
    known(
        "link_narrow",
        "up",
        "the physical link has fewer lanes than both its ends support, or fewer and a lower speed",
    ),
    known(
        "link_slow",
        "up",
        "the physical link has a lower speed than both its ends support",
    ),
    known(
        "foreign_peer",
        "up",
        "within the last minute connections of the VF refused packets of another VF, which is not their peer",
    ),
    known(
        "no_common_partition",
        "pair",
        "the two share no partition in which one is a full member",
    ),
    known(
        "no_route",
        "pair",
        "packets from one of the two to the other do not arrive, as links and forwarding tables are",
    ),
    known(
        "no_multicast_route",
        "pair",
        "packets of the IPoIB broadcast group, of which both are members, do not arrive, as multicast forwarding tables are",
    ),
    known(
        "no_receives",
        "up",
        "within the last minute packets for the VF were lost because its guest had no receive posted",
    ),
    known(
        "program_memory_slow",
        "up",
        "for 50 ms or more, within the last ten minutes, the service waited for memory of the program that has the \
         VF, and all other VFs with it",
    ),
    known(
        "trunk_down",
        "up",
        "a trunk to another site is down; one to a host, which comes and goes, is no fault",
    ),
    known(
        "trunk_slow",
        "up",
        "the latest ping on a trunk to another site took 67 ms or more to and fro, the time for which RC queue pairs with \
         timeout 14 await an acknowledgment",
    ),
];

/// Returns `true` for a code of a fault, and for that of none.
pub(crate) fn is_known(code: &str) -> bool {
    KNOWN_FAULTS.iter().any(|known| known.code == code)
}

/// Reads a code. One of a newer service is `unknown`; its fault has a sentence.
pub(crate) fn code<'de, D: Deserializer<'de>>(from: D) -> Result<Code, D::Error> {
    let text = Cow::<'de, str>::deserialize(from)?;
    let known = KNOWN_FAULTS.iter().find(|known| known.code == text);
    Ok(known.map_or("unknown", |known| known.code))
}
