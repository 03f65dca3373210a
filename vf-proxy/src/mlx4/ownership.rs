//! Numbers of objects: which the driver was given, and which name an object of the device.

use std::collections::BTreeMap;

use ib_vtime::SecretNumbers;
use ib_wire::Qpn;
use mlx4_defs::{CounterIndex, Cqn, MptIndex, Srqn, Status};

/// A number that names an object of one kind.
pub(super) trait Number: Copy + Ord {
    /// Returns the number of a value, if the kind has such numbers.
    fn new(value: u32) -> Option<Self>;

    /// Returns the number's value.
    fn get(self) -> u32;
}

macro_rules! number {
    ($($name:ident)*) => {
        $(impl Number for $name {
            fn new(value: u32) -> Option<Self> {
                Self::new(value)
            }

            fn get(self) -> u32 {
                self.get()
            }
        })*
    };
}

number! { Qpn Cqn Srqn MptIndex }

impl Number for CounterIndex {
    fn new(value: u32) -> Option<Self> {
        u8::try_from(value).ok().map(Self)
    }

    fn get(self) -> u32 {
        self.0.into()
    }
}

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
#[derive(Debug)]
pub(super) struct Ownership<N> {
    states: BTreeMap<N, State>,
}

impl<N> Default for Ownership<N> {
    fn default() -> Self {
        Self {
            states: BTreeMap::new(),
        }
    }
}

impl<N: Number> Ownership<N> {
    /// Sets numbers aside.
    pub(super) fn reserve(&mut self, first: N, count: u32) {
        let values = (first.get()..).zip(0..count);
        for number in values.map_while(|(value, _)| N::new(value)) {
            self.states.insert(number, State::Reserved);
        }
    }

    /// Checks that numbers are set aside, and nothing more.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for one that is not, [`Status::RESOURCE_BUSY`] for one with a context.
    pub(super) fn check_reserved(&self, first: N, count: u32) -> Result<(), Status> {
        let mut expected = first.get();
        let end = expected.checked_add(count).ok_or(Status::BAD_PARAM)?;
        let ahead = self.states.range(first..);
        for (number, state) in ahead.take_while(|(number, _)| number.get() < end) {
            if number.get() != expected {
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
    pub(super) fn release(&mut self, first: N, count: u32) -> Result<(), Status> {
        self.check_reserved(first, count)?;
        let values = first.get()..first.get() + count;
        for number in values.filter_map(N::new) {
            self.states.remove(&number);
        }
        Ok(())
    }

    /// Gives a number a context.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] unless it is set aside and has none.
    pub(super) fn map(&mut self, number: N) -> Result<(), Status> {
        self.change(number, State::Reserved, State::Software, Status::BAD_PARAM)
    }

    /// Takes a number's context.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] if it has none, [`Status::RESOURCE_BUSY`] while the device has it.
    pub(super) fn unmap(&mut self, number: N) -> Result<(), Status> {
        if self.is_hardware(number) {
            return Err(Status::RESOURCE_BUSY);
        }
        self.change(number, State::Software, State::Reserved, Status::BAD_PARAM)
    }

    /// Whether there is a context, whoever has it.
    ///
    /// # Errors
    /// [`Status::BAD_RESOURCE`].
    pub(super) fn check_mapped(&self, number: N) -> Result<(), Status> {
        match self.states.get(&number) {
            Some(State::Software | State::Hardware) => Ok(()),
            Some(State::Reserved) | None => Err(Status::BAD_RESOURCE),
        }
    }

    /// Whether the driver may hand the context over.
    ///
    /// # Errors
    /// [`Status::BAD_RESOURCE`] if there is none, [`Status::BAD_RES_STATE`] if the device has it.
    pub(super) fn check_software(&self, number: N) -> Result<(), Status> {
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
    pub(super) fn check_hardware(&self, number: N) -> Result<(), Status> {
        match self.states.get(&number) {
            Some(State::Hardware) => Ok(()),
            Some(State::Software) => Err(Status::BAD_RES_STATE),
            Some(State::Reserved) | None => Err(Status::BAD_RESOURCE),
        }
    }

    /// Notes that the context was handed over to the device, or back.
    pub(super) fn set_hardware(&mut self, number: N, hardware: bool) {
        if let Some(state @ (State::Software | State::Hardware)) = self.states.get_mut(&number) {
            *state = if hardware {
                State::Hardware
            } else {
                State::Software
            };
        }
    }

    fn is_hardware(&self, number: N) -> bool {
        self.states.get(&number) == Some(&State::Hardware)
    }

    fn change(
        &mut self,
        number: N,
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

    fn contains(&self, number: N) -> bool {
        self.states.contains_key(&number)
    }
}

/// Numbers that the device chooses, one at a time and in turn: one that was given back comes up again
/// when all others had theirs, so that a late event hardly reaches a stranger.
#[derive(Debug)]
pub(super) struct Numbers<N> {
    first: u32,
    end: u32,
    next: u32,
    pub(super) owned: Ownership<N>,
}

impl<N: Number> Numbers<N> {
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
    pub(super) fn reserve(&mut self, quota: u32) -> Result<N, Status> {
        if self.owned.len() >= quota {
            return Err(Status::EXCEED_LIM);
        }
        let ahead = (self.next..self.end).chain(self.first..self.next);
        let mut numbers = ahead.filter_map(N::new);
        let number = numbers.find(|number| !self.owned.contains(*number));
        let number = number.ok_or(Status::EXCEED_LIM)?;
        let after = number.get() + 1;
        self.next = if after == self.end { self.first } else { after };
        self.owned.reserve(number, 1);
        Ok(number)
    }

    /// As [`Numbers::reserve`], but sets a number aside that only the holder of the secret can compute.
    ///
    /// # Errors
    /// [`Status::EXCEED_LIM`].
    pub(super) fn reserve_secretly(
        &mut self,
        quota: u32,
        random: &mut SecretNumbers,
    ) -> Result<N, Status> {
        let drawn = random.below(u64::from(self.end - self.first));
        let drawn = u32::try_from(drawn).map_err(|_| Status::EXCEED_LIM)?;
        self.next = self.first + drawn;
        self.reserve(quota)
    }

    /// Sets a number aside and gives it a context.
    ///
    /// # Errors
    /// As [`Numbers::reserve`].
    pub(super) fn reserve_and_map(&mut self, quota: u32) -> Result<N, Status> {
        let number = self.reserve(quota)?;
        self.owned.map(number)?;
        Ok(number)
    }

    /// Takes a number and its context back.
    ///
    /// # Errors
    /// As [`Ownership::unmap`].
    pub(super) fn unmap_and_release(&mut self, number: N) -> Result<(), Status> {
        self.owned.unmap(number)?;
        self.owned.release(number, 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use ib_vtime::Secret;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_number_passes_through_its_states_and_no_other_way() {
        let mut numbers = Numbers::<Cqn>::new((4, 8));
        let number = numbers.reserve(2).unwrap();
        let owned = &mut numbers.owned;
        assert_eq!(number.get(), 4);
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
        let mut owned = Ownership::<Cqn>::default();
        owned.reserve(Cqn::from_low_bits(64), 8);
        assert_eq!(
            owned.release(Cqn::from_low_bits(63), 2),
            Err(Status::BAD_PARAM)
        );
        assert_eq!(
            owned.release(Cqn::from_low_bits(70), 3),
            Err(Status::BAD_PARAM)
        );
        assert_eq!(owned.release(Cqn::MAX, 2), Err(Status::BAD_PARAM));
        assert_eq!(owned.release(Cqn::from_low_bits(66), 2), Ok(()));
        assert_eq!(
            owned.release(Cqn::from_low_bits(64), 8),
            Err(Status::BAD_PARAM)
        );
        assert_eq!(owned.release(Cqn::from_low_bits(64), 2), Ok(()));
        assert_eq!(owned.release(Cqn::from_low_bits(68), 4), Ok(()));
        assert_eq!(owned.len(), 0);
    }

    #[test]
    fn a_quota_and_the_end_of_the_numbers_are_limits() {
        let mut numbers = Numbers::<Cqn>::new((4, 6));
        assert!(numbers.reserve_and_map(1).is_ok());
        assert_eq!(numbers.reserve(1), Err(Status::EXCEED_LIM));
        assert!(numbers.reserve(9).is_ok());
        assert_eq!(numbers.reserve(9), Err(Status::EXCEED_LIM));
    }

    #[test]
    fn numbers_come_in_turn() {
        let mut numbers = Numbers::<Cqn>::new((4, 7));
        let given = [(); 5].map(|()| {
            let number = numbers.reserve_and_map(1).unwrap();
            numbers.unmap_and_release(number).unwrap();
            number.get()
        });
        assert_eq!(given, [4, 5, 6, 4, 5]);
    }

    /// The indices of a function's first 100 regions.
    fn drawn(seed: u64) -> Vec<u32> {
        let mut random = Secret::from(seed).numbers();
        let mut numbers = Numbers::<MptIndex>::new((0x40, 1 << 22));
        let drawn = (0..100).map(|_| numbers.reserve_secretly(100, &mut random));
        drawn.map(|number| number.unwrap().get()).collect()
    }

    #[test]
    fn indices_of_regions_follow_from_the_secret_and_not_from_each_other() {
        let own = drawn(1);
        assert_eq!(own, drawn(1));
        assert!(own.iter().all(|index| (0x40..1 << 22).contains(index)));
        let unique: BTreeSet<u32> = own.iter().copied().collect();
        assert_eq!(unique.len(), own.len());
        let others: BTreeSet<u32> = drawn(2).into_iter().collect();
        assert!(unique.intersection(&others).count() < 3);
        let steps = own.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]));
        assert!(steps.collect::<BTreeSet<u32>>().len() > 95);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// The model is the set of numbers that are out.
        #[test]
        fn numbers_are_unique_and_within_bounds(
            secretly: bool,
            steps in proptest::collection::vec(proptest::option::of(any::<prop::sample::Index>()), 1..60)
        ) {
            let mut numbers = Numbers::<Cqn>::new((3, 11));
            let mut random = Secret::from(1).numbers();
            let mut out: Vec<Cqn> = Vec::new();
            for step in steps {
                match step {
                    None => {
                        let given = if secretly {
                            let given = numbers.reserve_secretly(8, &mut random);
                            given.and_then(|number| numbers.owned.map(number).map(|()| number))
                        } else {
                            numbers.reserve_and_map(8)
                        };
                        prop_assert_eq!(given.is_ok(), out.len() < 8);
                        if let Ok(number) = given {
                            prop_assert!((3..11).contains(&number.get()));
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
