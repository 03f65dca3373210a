//! One entry of the GUID table: what is wanted, what the SA holds, what the hardware shows.

use ib_vtime::TimerKey;
use ib_wire::Guid;

use super::api::{GuidState, GuidWish};

/// What the SA holds for an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AtSa {
    /// Nobody here has asked for anything.
    #[default]
    Unheard,
    /// Nothing, as it said.
    Nothing,
    /// This, as it said.
    Holds(Guid),
    /// An answer never came.
    Doubtful,
}

/// Why nothing is asked for an entry for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitReason {
    /// The SA declined.
    Declined,
    /// The request failed.
    Failed,
    /// The alias is leaving its multicast groups.
    Leaving,
    /// The hardware lost what the SA had granted.
    Lost,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) timer: TimerKey,
    pub(super) reason: WaitReason,
}

/// What is to be asked of the SA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// This GUID, or with zero one of the SA's choice.
    Set(Guid),
    Delete,
}

/// How an entry's GUID changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) lost: bool,
    pub(super) gained: Option<Guid>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) wish: GuidWish,
    /// What the SA chose last: asked for again, so that the VF keeps it.
    pub(super) chosen: Option<Guid>,
    pub(super) at_sa: AtSa,
    /// The present SA said so, and has not been told to have forgotten since.
    pub(super) confirmed: bool,
    pub(super) hardware: Guid,
    /// The VF's GUID: granted and in hardware.
    pub(super) current: Option<Guid>,
    pub(super) wait: Option<Wait>,
    /// How often the SA has declined, or refused to delete, in a row.
    pub(super) refusals: u32,
    /// A request with others was refused, perhaps for the sake of one of them.
    pub(super) alone: bool,
    /// The alias has left its groups, or has had the time to.
    pub(super) left: bool,
    /// The SA holds a GUID that another VF wants. It is deleted before a new one is requested.
    pub(super) surrenders: bool,
    /// Tries to delete it that failed since everything was withdrawn.
    pub(super) failed_releases: u32,
    /// Nobody tries to delete it any more.
    pub(super) abandoned: bool,
    /// The state that was last told.
    pub(super) told: GuidState,
}

impl Entry {
    /// What must be asked of the SA now.
    pub(super) fn need(&self) -> Option<Need> {
        if self.wait.is_some() {
            return None;
        }
        match self.wish {
            GuidWish::None => self.is_held().then_some(Need::Delete),
            _ if self.surrenders => Some(Need::Delete),
            _ if self.is_granted() => None,
            GuidWish::SmAssigned => Some(Need::Set(self.chosen.unwrap_or_default())),
            GuidWish::Admin(guid) => Some(Need::Set(guid)),
        }
    }

    /// Whether the next request takes a GUID away that the SA has granted.
    pub(super) fn gives_up_alias(&self) -> bool {
        let held = self.granted();
        held.is_some()
            && match self.need() {
                Some(Need::Delete) => true,
                Some(Need::Set(guid)) => !guid.is_none() && held != Some(guid),
                None => false,
            }
    }

    /// Whether the SA may hold something that somebody must still delete.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.at_sa, AtSa::Holds(_) | AtSa::Doubtful) && !self.abandoned
    }

    /// Whether the SA holds what is wanted, as far as it can be known.
    fn is_granted(&self) -> bool {
        let accepts = |guid| self.wish.accepts(guid) && !self.surrenders;
        self.confirmed && self.granted().is_some_and(accepts)
    }

    /// Whether the VF has its GUID, and the present SA is yet to say that it holds it.
    pub(super) fn is_being_confirmed(&self) -> bool {
        self.current.is_some() && matches!(self.need(), Some(Need::Set(_)))
    }

    /// What the SA holds, if it said so.
    pub(super) const fn granted(&self) -> Option<Guid> {
        match self.at_sa {
            AtSa::Holds(guid) => Some(guid),
            _ => None,
        }
    }

    /// Whether another VF may not have this GUID. One that is being deleted is free: if the SA still
    /// holds it, the SA declines for a while.
    pub(super) fn claims(&self, guid: Guid) -> bool {
        match self.wish {
            GuidWish::None => false,
            GuidWish::Admin(wanted) => wanted == guid,
            GuidWish::SmAssigned => self.chosen == Some(guid) || self.granted() == Some(guid),
        }
    }

    /// Takes a wish. What was waited for on behalf of the last one is no longer.
    pub(super) fn take_wish(&mut self, wish: GuidWish) {
        let in_hardware = !self.hardware.is_none();
        if wish == GuidWish::None && self.at_sa == AtSa::Unheard && in_hardware {
            self.at_sa = AtSa::Doubtful;
        }
        if wish != GuidWish::None {
            self.left = false;
        }
        self.wish = wish;
        self.refusals = 0;
        self.alone = false;
        self.surrenders = false;
        self.failed_releases = 0;
        self.abandoned = false;
    }

    /// Deletes the GUID at the SA, because another VF wants it.
    pub(super) const fn surrender(&mut self) {
        self.surrenders = true;
        self.chosen = None;
    }

    /// Takes the SA's answer to a Set of this entry: whether that declines what is wanted. `stale` is
    /// an answer that another SA may have given, or the same one before it forgot.
    pub(super) fn set_answered(&mut self, asked: Guid, got: Guid, stale: bool) -> bool {
        self.at_sa = if got.is_none() {
            AtSa::Nothing
        } else {
            AtSa::Holds(got)
        };
        self.confirmed = !stale;
        self.alone = false;
        let accepted = self.wish.accepts(got);
        if accepted {
            self.refusals = 0;
        }
        match self.wish {
            GuidWish::None => false,
            GuidWish::Admin(wanted) => !accepted && !stale && asked == wanted,
            GuidWish::SmAssigned => {
                self.chosen = accepted.then_some(got);
                !accepted && !stale
            }
        }
    }

    /// Takes the SA's answer to a Delete of this entry.
    pub(super) fn deleted(&mut self, stale: bool) {
        self.at_sa = if stale { AtSa::Doubtful } else { AtSa::Nothing };
        self.confirmed = false;
        self.refusals = 0;
        self.alone = false;
        self.surrenders = false;
        self.left = false;
    }

    /// The SA may or may not have done what it was asked.
    pub(super) const fn doubt(&mut self) {
        self.at_sa = AtSa::Doubtful;
        self.confirmed = false;
    }

    /// Takes what the hardware shows: whether it lost what the SA had granted.
    pub(super) fn take_hardware(&mut self, guid: Guid) -> bool {
        let before = core::mem::replace(&mut self.hardware, guid);
        let granted = self.granted();
        granted == Some(before) && before != guid && self.is_granted()
    }

    /// Brings the VF's GUID in step with the SA and the hardware. It goes when the hardware shows
    /// another one, or the SA says that it holds another one; it comes when both have what is wanted.
    pub(super) fn refresh(&mut self) -> Change {
        let stays = self.current.is_none_or(|guid| {
            let contradicted = match self.at_sa {
                AtSa::Nothing => true,
                AtSa::Holds(held) => held != guid,
                AtSa::Unheard | AtSa::Doubtful => false,
            };
            guid == self.hardware && !contradicted
        });
        if !stays {
            self.current = None;
        }
        let accepts = |guid| self.wish.accepts(guid) && !self.surrenders;
        let comes = |guid: &Guid| *guid == self.hardware && accepts(*guid);
        let gained = if self.current.is_none() {
            self.granted().filter(comes)
        } else {
            None
        };
        self.current = self.current.or(gained);
        Change {
            lost: !stays,
            gained,
        }
    }

    /// How far it is, if the table has the entry and the SA can do it.
    pub(super) fn state(&self) -> GuidState {
        if let Some(guid) = self.current {
            return GuidState::InHardware(guid);
        }
        match (self.wish, self.wait) {
            (GuidWish::None, _) => GuidState::NotRequested,
            (_, Some(wait)) if wait.reason == WaitReason::Declined => GuidState::Declined {
                retry_at: wait.timer.deadline(),
            },
            _ if self.is_granted() => GuidState::WaitingForHardware,
            _ => GuidState::WaitingForSa,
        }
    }
}
