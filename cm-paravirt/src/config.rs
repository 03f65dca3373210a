//! Limits and times.

use ib_vtime::Duration;

/// Limits and times of a [`CmParavirt`](crate::CmParavirt). The defaults suit a PF with up to 1,024
/// VFs.
///
/// No time but [`Config::silence`] is longer than [`Config::LONGEST`]; a longer one counts as that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Communication ids and SIDR request ids of a VF, those in quarantine included.
    pub ids_per_vf: u32,
    /// Requests of peers that a VF has not answered yet.
    pub pending_per_vf: u32,
    /// The least time that a handshake has. The fields of its messages can only extend it.
    pub handshake_min: Duration,
    /// The most time that a handshake has after its last message, whatever its messages say.
    pub handshake_max: Duration,
    /// How long a SIDR request waits for its answer, counted from its last retransmission.
    pub sidr: Duration,
    /// How long an id serves late messages after an exchange's end, counted from the last DREQ,
    /// DREP or REJ.
    pub quarantine: Duration,
    /// The most time that late messages can add up to, counted from the first DREQ or REJ.
    pub quarantine_max: Duration,
    /// How long a connection lives without a message that may have ended without one: see
    /// [`State::Quiet`](crate::State::Quiet). The one that is silent for the longest time makes place
    /// at the VF's quota.
    pub silence: Duration,
    /// Answers that the machine itself sends to a LID per second; 0 for none at all.
    pub answers_per_second: u32,
    /// Answers that may go to a LID at once.
    pub answer_burst: u32,
    /// Whether a REQ to a VF that cannot receive is answered by a REJ rather than dropped.
    pub reject_for_down_vf: bool,
    /// Whether the PF runs a CM of its own on the same QP1. Then whatever names no id of this
    /// machine goes to that CM, which answers strangers as any host does.
    pub pf_has_cm: bool,
    /// Messages that may wait in [`poll_transmit`](crate::CmParavirt::poll_transmit).
    pub signals: usize,
}

impl Config {
    /// The longest time that most timers can run: about 18 minutes.
    pub const LONGEST: Duration = Duration::from_secs(1_099);
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // 1,024 such VFs share the 2^24 slots without ever taking one from another.
            ids_per_vf: 16_384,
            pending_per_vf: 4_096,
            handshake_min: Duration::from_secs(60),
            handshake_max: Duration::from_secs(300),
            // Linux repeats a SIDR_REQ every 4.3 s.
            sidr: Duration::from_secs(60),
            quarantine: Duration::from_secs(30),
            quarantine_max: Duration::from_secs(240),
            silence: Duration::from_secs(7 * 24 * 3600),
            answers_per_second: 100,
            answer_burst: 100,
            reject_for_down_vf: true,
            pf_has_cm: false,
            signals: 65_536,
        }
    }
}

/// [`Config`] with its times in ticks of the wheel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticks {
    pub(crate) handshake_min: u32,
    pub(crate) handshake_max: u32,
    pub(crate) sidr: u32,
    pub(crate) quarantine: u32,
    pub(crate) quarantine_max: u32,
    pub(crate) silence: u32,
}

impl From<&Config> for Ticks {
    fn from(config: &Config) -> Self {
        // One tick more: the present tick has begun already.
        let ticks = |duration| (crate::wheel::ticks(duration) + 1).min(crate::wheel::HORIZON);
        Self {
            handshake_min: ticks(config.handshake_min),
            handshake_max: ticks(config.handshake_max),
            sidr: ticks(config.sidr),
            quarantine: ticks(config.quarantine),
            quarantine_max: ticks(config.quarantine_max),
            silence: crate::wheel::many_ticks(config.silence) + 1,
        }
    }
}
