//! MSI-X as a VMM has it signalled: an eventfd for each vector.
//!
//! The table with its masks is the VMM's, which also keeps the enable bit: what a function raises is signalled
//! unless the VMM masks it by a message. A vector that nobody can be told of yet waits.

use std::sync::Arc;

use rustix::io::Errno;
use vhca_receiver::PassedFd;

use super::eventfd::Signaller;
use vhca_vfio_user_codec::{IrqAction, IrqData, IrqInfo, SetIrqs};

/// Interrupt types: INTx, MSI, MSI-X, errors, requests to let the device go, and [`IrqInfo::DOORBELLS`].
pub(super) const IRQ_TYPES: u32 = IrqInfo::DOORBELLS + 1;

#[derive(Debug, Default)]
struct Vector {
    signal: Option<Arc<PassedFd>>,
    is_masked: bool,
    is_pending: bool,
}

impl Vector {
    fn raise(&mut self, signaller: &Signaller) {
        match &self.signal {
            Some(signal) if !self.is_masked => {
                self.is_pending = false;
                signaller.signal(signal);
            }
            _ => self.is_pending = true,
        }
    }

    fn raise_pending(&mut self, signaller: &Signaller) {
        if self.is_pending {
            self.raise(signaller);
        }
    }
}

/// The vectors of a function.
#[derive(Debug)]
pub struct Interrupts {
    vectors: Vec<Vector>,
    /// The one that says that doorbells are others.
    doorbells: Vector,
    signaller: Signaller,
}

impl Interrupts {
    /// Vectors that nobody is told of.
    #[must_use]
    pub fn new(count: u16, signaller: Signaller) -> Self {
        Self {
            vectors: (0..count).map(|_| Vector::default()).collect(),
            doorbells: Vector::default(),
            signaller,
        }
    }

    /// Vectors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.vectors.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.vectors.is_empty()
    }

    /// Vectors that the VMM wants to be told of.
    #[must_use]
    pub fn in_use(&self) -> usize {
        let in_use = self.vectors.iter().filter(|vector| vector.signal.is_some());
        in_use.count()
    }

    /// Signals a vector, or has it wait. There being no such vector is the function's mistake, and nothing happens.
    pub fn raise(&mut self, vector: u16) {
        if let Some(vector) = self.vectors.get_mut(usize::from(vector)) {
            vector.raise(&self.signaller);
        }
    }

    /// Signals that the doorbells are others, to a client that gave an eventfd for that.
    pub fn raise_doorbells_changed(&mut self) {
        if self.doorbells.signal.is_some() {
            self.doorbells.raise(&self.signaller);
        }
    }

    /// Does what a message says.
    ///
    /// # Errors
    /// [`Errno::INVAL`] for interrupts that do not exist, descriptors that are no eventfds or not one for each
    /// interrupt, and what cannot be combined.
    pub fn set(&mut self, set: &SetIrqs<'_>, signals: Vec<PassedFd>) -> Result<(), Errno> {
        if set.index >= IRQ_TYPES {
            return Err(Errno::INVAL);
        }
        let signaller = &self.signaller;
        let exist = match set.index {
            IrqInfo::MSIX => self.vectors.as_mut_slice(),
            IrqInfo::DOORBELLS => core::slice::from_mut(&mut self.doorbells),
            _ => &mut [],
        };
        let ends_all = (set.start, set.count) == (0, 0)
            && set.data == IrqData::None
            && set.action == IrqAction::Trigger;
        if ends_all {
            exist.fill_with(Vector::default);
            return Ok(());
        }
        let start = set.start as usize;
        let end = start.checked_add(set.count as usize).ok_or(Errno::INVAL)?;
        let meant = exist.get_mut(start..end).ok_or(Errno::INVAL)?;
        match (set.action, set.data) {
            (IrqAction::Trigger, IrqData::EventFd) => assign(meant, signals, signaller),
            (_, IrqData::EventFd) => Err(Errno::INVAL),
            (action, IrqData::None) => {
                meant
                    .iter_mut()
                    .for_each(|vector| act(vector, action, signaller));
                Ok(())
            }
            (action, IrqData::Bool(which)) => {
                let meant = meant
                    .iter_mut()
                    .zip(which)
                    .filter(|(_, is_meant)| **is_meant != 0);
                meant.for_each(|(vector, _)| act(vector, action, signaller));
                Ok(())
            }
        }
    }
}

fn assign(
    vectors: &mut [Vector],
    signals: Vec<PassedFd>,
    signaller: &Signaller,
) -> Result<(), Errno> {
    if signals.is_empty() {
        vectors.iter_mut().for_each(|vector| vector.signal = None);
        return Ok(());
    }
    if signals.len() != vectors.len() {
        return Err(Errno::INVAL);
    }
    for signal in &signals {
        signaller.check(signal)?;
    }
    for (vector, signal) in vectors.iter_mut().zip(signals) {
        vector.signal = Some(Arc::new(signal));
        vector.raise_pending(signaller);
    }
    Ok(())
}

fn act(vector: &mut Vector, action: IrqAction, signaller: &Signaller) {
    match action {
        IrqAction::Mask => vector.is_masked = true,
        IrqAction::Unmask => {
            vector.is_masked = false;
            vector.raise_pending(signaller);
        }
        IrqAction::Trigger => vector.raise(signaller),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::read;

    use super::super::eventfd::Signals;
    use super::*;

    fn signaller() -> Signaller {
        Signals::default().signaller().unwrap()
    }

    fn msix(action: IrqAction, data: IrqData<'_>, start: u32, count: u32) -> SetIrqs<'_> {
        SetIrqs {
            index: IrqInfo::MSIX,
            start,
            count,
            action,
            data,
        }
    }

    /// An eventfd, once to give away and once to look at.
    fn signal() -> (PassedFd, OwnedFd) {
        let signal = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        (signal.try_clone().unwrap().into(), signal)
    }

    fn take(signal: &OwnedFd) -> Option<u64> {
        let mut bytes = [0; 8];
        read(signal, &mut bytes).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    #[test]
    fn a_vector_is_signalled_by_its_own_eventfd() {
        let mut interrupts = Interrupts::new(4, signaller());
        let (first, first_seen) = signal();
        let (second, second_seen) = signal();
        let set = msix(IrqAction::Trigger, IrqData::EventFd, 1, 2);
        interrupts.set(&set, vec![first, second]).unwrap();
        interrupts.raise(2);
        interrupts.raise(2);
        assert_eq!((take(&first_seen), take(&second_seen)), (None, Some(2)));
        interrupts.raise(77);
        assert_eq!(interrupts.in_use(), 2);
    }

    #[test]
    fn a_vector_without_an_eventfd_waits_for_one() {
        let mut interrupts = Interrupts::new(2, signaller());
        interrupts.raise(0);
        interrupts.raise(0);
        let (fd, seen) = signal();
        let set = msix(IrqAction::Trigger, IrqData::EventFd, 0, 1);
        interrupts.set(&set, vec![fd]).unwrap();
        assert_eq!(take(&seen), Some(1));
        assert_eq!(take(&seen), None);
    }

    #[test]
    fn a_masked_vector_waits_until_it_is_unmasked() {
        let mut interrupts = Interrupts::new(2, signaller());
        let (fd, seen) = signal();
        let set = msix(IrqAction::Trigger, IrqData::EventFd, 1, 1);
        interrupts.set(&set, vec![fd]).unwrap();
        let only_second = IrqData::Bool(&[0, 1]);
        let mask = msix(IrqAction::Mask, only_second, 0, 2);
        interrupts.set(&mask, Vec::new()).unwrap();
        interrupts.raise(1);
        assert_eq!(take(&seen), None);
        let unmask = msix(IrqAction::Unmask, IrqData::None, 1, 1);
        interrupts.set(&unmask, Vec::new()).unwrap();
        assert_eq!(take(&seen), Some(1));
    }

    #[test]
    fn a_client_triggers_takes_away_and_ends_all() {
        let mut interrupts = Interrupts::new(2, signaller());
        let (fd, seen) = signal();
        let assign = msix(IrqAction::Trigger, IrqData::EventFd, 0, 1);
        interrupts.set(&assign, vec![fd]).unwrap();
        let trigger = msix(IrqAction::Trigger, IrqData::None, 0, 1);
        interrupts.set(&trigger, Vec::new()).unwrap();
        assert_eq!(take(&seen), Some(1));
        interrupts.set(&assign, Vec::new()).unwrap();
        assert_eq!(interrupts.in_use(), 0);
        interrupts.raise(0);
        let end = msix(IrqAction::Trigger, IrqData::None, 0, 0);
        interrupts.set(&end, Vec::new()).unwrap();
        let (fd, seen) = signal();
        interrupts.set(&assign, vec![fd]).unwrap();
        assert_eq!(take(&seen), None, "what waited is forgotten");
    }

    #[test]
    fn interrupts_that_do_not_exist_and_wrong_descriptors_are_refused() {
        let mut interrupts = Interrupts::new(2, signaller());
        let (fd, _) = signal();
        let beyond = msix(IrqAction::Trigger, IrqData::EventFd, 2, 1);
        assert_eq!(interrupts.set(&beyond, vec![fd]), Err(Errno::INVAL));
        let wraps = msix(IrqAction::Trigger, IrqData::None, u32::MAX, u32::MAX);
        assert_eq!(interrupts.set(&wraps, Vec::new()), Err(Errno::INVAL));
        let (fd, _) = signal();
        let two = msix(IrqAction::Trigger, IrqData::EventFd, 0, 2);
        assert_eq!(interrupts.set(&two, vec![fd]), Err(Errno::INVAL));
        let one = msix(IrqAction::Trigger, IrqData::EventFd, 0, 1);
        let file = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        assert_eq!(interrupts.set(&one, vec![file.into()]), Err(Errno::INVAL));
        let (fd, _) = signal();
        let odd = msix(IrqAction::Mask, IrqData::EventFd, 0, 1);
        assert_eq!(interrupts.set(&odd, vec![fd]), Err(Errno::INVAL));
        let intx = SetIrqs { index: 0, ..one };
        assert_eq!(interrupts.set(&intx, Vec::new()), Err(Errno::INVAL));
        let no_type = SetIrqs { index: 9, ..one };
        assert_eq!(interrupts.set(&no_type, Vec::new()), Err(Errno::INVAL));
        assert_eq!(interrupts.in_use(), 0);
    }

    #[test]
    fn ending_all_of_a_type_without_interrupts_is_no_mistake() {
        let mut interrupts = Interrupts::new(1, signaller());
        let end = SetIrqs {
            index: 0,
            ..msix(IrqAction::Trigger, IrqData::None, 0, 0)
        };
        assert_eq!(interrupts.set(&end, Vec::new()), Ok(()));
    }
}
