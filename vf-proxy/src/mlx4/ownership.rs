//! Numbers of objects: which the driver was given, and which name an object of the device.

use std::collections::BTreeMap;

use mlx4_defs::Status;

/// What a number stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Set aside.
    Reserved,
    /// It has a context, which is the driver's.
    Software,
    /// The context was handed over to the device: an object exists.
    Hardware,
}

/// The numbers of one kind of object that the driver was given.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    states: BTreeMap<u32, State>,
}

impl Ownership {
    /// Sets numbers aside.
    pub(super) fn reserve(&mut self, first: u32, count: u32) {
        for number in (first..).zip(0..count).map(|(number, _)| number) {
            self.states.insert(number, State::Reserved);
        }
    }

    /// Checks that numbers are set aside, and nothing more.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for one that is not, [`Status::RESOURCE_BUSY`] for one with a context.
    pub(super) fn check_reserved(&self, first: u32, count: u32) -> Result<(), Status> {
        let end = first.checked_add(count).ok_or(Status::BAD_PARAM)?;
        let mut expected = first;
        for (number, state) in self.states.range(first..end) {
            if *number != expected {
                return Err(Status::BAD_PARAM);
            }
            if *state != State::Reserved {
                return Err(Status::RESOURCE_BUSY);
            }
            expected += 1;
        }
        if expected == end {
            Ok(())
        } else {
            Err(Status::BAD_PARAM)
        }
    }

    /// Forgets numbers that are set aside.
    ///
    /// # Errors
    /// As [`Ownership::check_reserved`]; then all of them stay.
    pub(super) fn release(&mut self, first: u32, count: u32) -> Result<(), Status> {
        self.check_reserved(first, count)?;
        for number in first..first + count {
            self.states.remove(&number);
        }
        Ok(())
    }

    /// Gives a number a context.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] unless it is set aside and has none.
    pub(super) fn map(&mut self, number: u32) -> Result<(), Status> {
        self.change(number, State::Reserved, State::Software, Status::BAD_PARAM)
    }

    /// Takes a number's context.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] if it has none, [`Status::RESOURCE_BUSY`] while the device has it.
    pub(super) fn unmap(&mut self, number: u32) -> Result<(), Status> {
        if self.is_hardware(number) {
            return Err(Status::RESOURCE_BUSY);
        }
        self.change(number, State::Software, State::Reserved, Status::BAD_PARAM)
    }

    /// Whether there is a context, whoever has it.
    ///
    /// # Errors
    /// [`Status::BAD_RESOURCE`].
    pub(super) fn check_mapped(&self, number: u32) -> Result<(), Status> {
        match self.states.get(&number) {
            Some(State::Software | State::Hardware) => Ok(()),
            Some(State::Reserved) | None => Err(Status::BAD_RESOURCE),
        }
    }

    /// Whether the driver may hand the context over.
    ///
    /// # Errors
    /// [`Status::BAD_RESOURCE`] if there is none, [`Status::BAD_RES_STATE`] if the device has it.
    pub(super) fn check_software(&self, number: u32) -> Result<(), Status> {
        match self.states.get(&number) {
            Some(State::Software) => Ok(()),
            Some(State::Hardware) => Err(Status::BAD_RES_STATE),
            Some(State::Reserved) | None => Err(Status::BAD_RESOURCE),
        }
    }

    /// Whether the device has the context.
    ///
    /// # Errors
    /// [`Status::BAD_RESOURCE`] if there is none, [`Status::BAD_RES_STATE`] if the driver has it.
    pub(super) fn check_hardware(&self, number: u32) -> Result<(), Status> {
        match self.states.get(&number) {
            Some(State::Hardware) => Ok(()),
            Some(State::Software) => Err(Status::BAD_RES_STATE),
            Some(State::Reserved) | None => Err(Status::BAD_RESOURCE),
        }
    }

    /// Notes that the context was handed over to the device, or back.
    pub(super) fn set_hardware(&mut self, number: u32, hardware: bool) {
        if let Some(state @ (State::Software | State::Hardware)) = self.states.get_mut(&number) {
            *state = if hardware {
                State::Hardware
            } else {
                State::Software
            };
        }
    }

    fn is_hardware(&self, number: u32) -> bool {
        self.states.get(&number) == Some(&State::Hardware)
    }

    fn change(
        &mut self,
        number: u32,
        from: State,
        to: State,
        otherwise: Status,
    ) -> Result<(), Status> {
        let state = self.states.get_mut(&number).filter(|state| **state == from);
        *state.ok_or(otherwise)? = to;
        Ok(())
    }

    /// How many there are.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.states.len()).unwrap_or(u32::MAX)
    }

    fn contains(&self, number: u32) -> bool {
        self.states.contains_key(&number)
    }
}

/// Numbers that the device chooses, one at a time and in turn: one that was given back comes up again
/// when all others had theirs, so that a late event hardly reaches a stranger.
#[derive(Debug)]
pub(super) struct Numbers {
    first: u32,
    end: u32,
    next: u32,
    pub(super) owned: Ownership,
}

impl Numbers {
    /// Numbers from the first to just before the second.
    pub(super) fn new((first, end): (u32, u32)) -> Self {
        Self {
            first,
            end,
            next: first,
            owned: Ownership::default(),
        }
    }

    /// Sets a number aside, if fewer than `quota` are.
    ///
    /// # Errors
    /// [`Status::EXCEED_LIM`].
    pub(super) fn reserve(&mut self, quota: u32) -> Result<u32, Status> {
        if self.owned.len() >= quota {
            return Err(Status::EXCEED_LIM);
        }
        let mut ahead = (self.next..self.end).chain(self.first..self.next);
        let number = ahead.find(|number| !self.owned.contains(*number));
        let number = number.ok_or(Status::EXCEED_LIM)?;
        self.next = if number + 1 == self.end {
            self.first
        } else {
            number + 1
        };
        self.owned.reserve(number, 1);
        Ok(number)
    }

    /// Sets a number aside and gives it a context.
    ///
    /// # Errors
    /// As [`Numbers::reserve`].
    pub(super) fn reserve_and_map(&mut self, quota: u32) -> Result<u32, Status> {
        let number = self.reserve(quota)?;
        self.owned.map(number)?;
        Ok(number)
    }

    /// Takes a number and its context back.
    ///
    /// # Errors
    /// As [`Ownership::unmap`].
    pub(super) fn unmap_and_release(&mut self, number: u32) -> Result<(), Status> {
        self.owned.unmap(number)?;
        self.owned.release(number, 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_passes_through_its_states_and_no_other_way() {
        let mut numbers = Numbers::new((4, 8));
        let number = numbers.reserve(2).unwrap();
        let owned = &mut numbers.owned;
        assert_eq!(number, 4);
        assert_eq!(owned.check_software(number), Err(Status::BAD_RESOURCE));
        assert_eq!(owned.unmap(number), Err(Status::BAD_PARAM));
        assert_eq!(owned.map(number), Ok(()));
        assert_eq!(owned.map(number), Err(Status::BAD_PARAM));
        assert_eq!(owned.release(number, 1), Err(Status::RESOURCE_BUSY));
        assert_eq!(owned.check_software(number), Ok(()));
        assert_eq!(owned.check_hardware(number), Err(Status::BAD_RES_STATE));
        owned.set_hardware(number, true);
        assert_eq!(owned.check_hardware(number), Ok(()));
        assert_eq!(owned.check_software(number), Err(Status::BAD_RES_STATE));
        assert_eq!(owned.unmap(number), Err(Status::RESOURCE_BUSY));
        owned.set_hardware(number, false);
        assert_eq!(numbers.unmap_and_release(number), Ok(()));
        assert_eq!(numbers.owned.len(), 0);
    }

    #[test]
    fn a_range_is_released_in_parts_but_not_with_numbers_that_are_not_owned() {
        let mut owned = Ownership::default();
        owned.reserve(64, 8);
        assert_eq!(owned.release(63, 2), Err(Status::BAD_PARAM));
        assert_eq!(owned.release(70, 3), Err(Status::BAD_PARAM));
        assert_eq!(owned.release(u32::MAX, 2), Err(Status::BAD_PARAM));
        assert_eq!(owned.release(66, 2), Ok(()));
        assert_eq!(owned.release(64, 8), Err(Status::BAD_PARAM));
        assert_eq!(owned.release(64, 2), Ok(()));
        assert_eq!(owned.release(68, 4), Ok(()));
        assert_eq!(owned.len(), 0);
    }

    #[test]
    fn a_quota_and_the_end_of_the_numbers_are_limits() {
        let mut numbers = Numbers::new((4, 6));
        assert!(numbers.reserve_and_map(1).is_ok());
        assert_eq!(numbers.reserve(1), Err(Status::EXCEED_LIM));
        assert!(numbers.reserve(9).is_ok());
        assert_eq!(numbers.reserve(9), Err(Status::EXCEED_LIM));
    }

    #[test]
    fn numbers_come_in_turn() {
        let mut numbers = Numbers::new((4, 7));
        let given = [(); 5].map(|()| {
            let number = numbers.reserve_and_map(1).unwrap();
            numbers.unmap_and_release(number).unwrap();
            number
        });
        assert_eq!(given, [4, 5, 6, 4, 5]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// The model is the set of numbers that are out.
        #[test]
        fn numbers_are_unique_and_within_bounds(
            steps in proptest::collection::vec(proptest::option::of(any::<prop::sample::Index>()), 1..60)
        ) {
            let mut numbers = Numbers::new((3, 11));
            let mut out: Vec<u32> = Vec::new();
            for step in steps {
                match step {
                    None => {
                        let given = numbers.reserve_and_map(8);
                        prop_assert_eq!(given.is_ok(), out.len() < 8);
                        if let Ok(number) = given {
                            prop_assert!((3..11).contains(&number));
                            prop_assert!(!out.contains(&number));
                            out.push(number);
                        }
                    }
                    Some(which) if !out.is_empty() => {
                        let number = out.swap_remove(which.index(out.len()));
                        prop_assert_eq!(numbers.unmap_and_release(number), Ok(()));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}
