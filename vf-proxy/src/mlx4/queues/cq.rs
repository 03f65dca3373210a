//! Completion queues: rings in the guest's memory, and when the driver wants to be woken.

use hca_api::{ArmKind, CqHandle, DmaFault, Hca};
use mlx4_defs::cq::{ArmCommand, CqContext, CqDoorbell, CqDoorbellRecord};
use mlx4_defs::cqe::CQE_SIZE;
use mlx4_defs::{Cqn, Eqn, Status, Uar};
use vf_queues::{Arming, Event, Moderation, create_cq, resize_cq};
use zerocopy::IntoBytes;

use super::super::mtt::{MttPin, Mtts};
use super::cqe::Entry;
use super::moderation::moderation;
use vf_pci::{Fill, PagedBuffer};

/// Largest queue: 2^17 entries, 4 MiB.
const MAX_LOG_ENTRIES: u8 = 17;
/// Entries that belong to the device read like this, as the firmware leaves them: the owner's bit is set,
/// which gives them to the driver at the second turn.
const HARDWARE_OWNED: u8 = 0xcc;
/// The same with the owner's bit clear, which gives them to the driver at the first turn.
const HARDWARE_OWNED_AGAIN: u8 = HARDWARE_OWNED & !0x80;
/// Consumer indices are modulo 2^24.
const INDEX_MASK: u32 = 0xff_ffff;
/// Half of the count of consumer indices: what is less far ahead is ahead, the rest is behind.
const INDEX_HALF: u32 = 1 << 23;

/// The entries of a queue, in the guest's memory.
#[derive(Debug)]
struct Ring {
    buffer: PagedBuffer,
    pin: MttPin,
    /// A power of two.
    entries: u32,
}

impl Ring {
    /// The ring of a context.
    fn new(mtts: &mut Mtts, context: &CqContext) -> Result<Self, Status> {
        let log_entries = context.log_entries();
        if log_entries > MAX_LOG_ENTRIES || context.page_offset.get() != 0 {
            return Err(Status::BAD_PARAM);
        }
        let entries: u32 = 1 << log_entries;
        let bytes = u64::from(entries) * CQE_SIZE as u64;
        let first = context.mtt_base.entry();
        Ok(Self {
            buffer: mtts.queue(first, context.log_page_size, bytes)?,
            pin: mtts.pin(first)?,
            entries,
        })
    }

    /// Gives all entries to the device, of which the next one will be `next` of the running count.
    fn fill(&self, next: u32) -> Fill {
        let bytes = u64::from(self.entries) * CQE_SIZE as u64;
        // Entries before the slot of the next one come up a turn later than those behind it.
        let turn = u64::from(next & (self.entries - 1)) * CQE_SIZE as u64;
        let (early, late) = (self.unwritten(next), self.unwritten(next ^ self.entries));
        Fill::new(self.buffer.clone(), turn, bytes, [late, early])
    }

    /// What the bytes of entry `n` of the running count are before it is written.
    const fn unwritten(&self, n: u32) -> u8 {
        if n & self.entries == 0 {
            HARDWARE_OWNED
        } else {
            HARDWARE_OWNED_AGAIN
        }
    }

    /// Writes entry `n` of the running count.
    fn write(&self, hca: &mut dyn Hca, n: u32, entry: &Entry) -> Result<(), DmaFault> {
        let mut cqe = entry.cqe;
        cqe.owner_opcode = cqe.owner_opcode.with_owner(n & self.entries != 0);
        let offset = u64::from(n & (self.entries - 1)) * CQE_SIZE as u64;
        let (body, owner) = cqe.as_bytes().split_at(CQE_SIZE - 1);
        self.buffer.write(hca, offset, body)?;
        // The owner's bit gives the entry to the driver, so it comes last.
        self.buffer.write(hca, offset + body.len() as u64, owner)
    }
}

/// A buffer that a queue is to go on in.
#[derive(Debug)]
pub(in super::super) struct NewRing {
    ring: Ring,
    /// The entry that was to be the queue's next when the filling began.
    next: u32,
}

impl NewRing {
    /// Gives up what it holds.
    pub(in super::super) fn give_up(self, mtts: &mut Mtts) {
        mtts.unpin(self.ring.pin);
    }

    /// The queue's next entry is a later one by now: those before it come up a turn later.
    fn catch_up(&self, hca: &mut dyn Hca, next: u32) -> Result<(), DmaFault> {
        let passed = next.wrapping_sub(self.next).min(self.ring.entries);
        for n in (1..=passed).map(|back| next.wrapping_sub(back)) {
            let at = u64::from(n & (self.ring.entries - 1)) * CQE_SIZE as u64;
            let byte = self.ring.unwritten(n ^ self.ring.entries);
            let slot = at..at + CQE_SIZE as u64;
            self.ring.buffer.fill(hca, slot, byte)?;
        }
        Ok(())
    }
}

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It is there, and makes an event.
    There(Event),
    /// There was no room: the queue has just failed.
    Overrun,
    /// There was no memory: the queue has just failed.
    Fault,
    /// The queue had failed before.
    Lost,
}

/// What a doorbell did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rung {
    /// Nothing: it is not the queue's, or says nothing that there is.
    Ignored,
    /// The driver is to be woken by what comes.
    Armed,
    /// The driver is to be woken at once: arming is a level, and it may have missed entries that were
    /// written before.
    Missed,
}

/// A completion queue.
#[derive(Debug)]
pub(in super::super) struct Cq {
    pub(super) handle: CqHandle,
    pub(super) eqn: Eqn,
    uar: Uar,
    /// Address of the [`CqDoorbellRecord`].
    doorbell_record: u64,
    ring: Ring,
    /// Entries written.
    producer: u32,
    /// Entries that the driver has taken, modulo 2^24, as it last said.
    consumer: u32,
    /// Entries written when the last one was solicited or in error.
    solicited: u32,
    arming: Arming,
    /// The doorbell that was heard last. The driver numbers them by the events that it took, so one that comes again says
    /// nothing new.
    heard: Option<CqDoorbell>,
    failed: bool,
    /// Work queues that complete here.
    pub(super) users: u32,
}

impl Cq {
    /// Makes a queue, whose entries the driver has given to the device, or [`Self::fill`] does.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`], [`Status::EXCEED_LIM`].
    pub(super) fn new(
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        context: &CqContext,
    ) -> Result<Self, Status> {
        if context.collapsed() || context.timestamp() {
            return Err(Status::BAD_PARAM);
        }
        let ring = Ring::new(mtts, context)?;
        let Ok(handle) = create_cq(hca, ring.entries) else {
            mtts.unpin(ring.pin);
            return Err(Status::EXCEED_LIM);
        };
        Ok(Self {
            handle,
            eqn: Eqn(context.comp_eqn.into()),
            uar: context.uar,
            doorbell_record: context.doorbell_record.get(),
            ring,
            producer: 0,
            consumer: 0,
            solicited: 0,
            arming: Arming::new(moderation(context)),
            heard: None,
            failed: false,
            users: 0,
        })
    }

    /// Ends a queue; there are no entries any more.
    pub(in super::super) fn end(self, hca: &mut dyn Hca, mtts: &mut Mtts) {
        let gone = hca.destroy_cq(self.handle);
        debug_assert_eq!(gone, Ok(()), "nobody uses it");
        mtts.unpin(self.ring.pin);
    }

    /// Gives all entries of a queue that is new to the device.
    pub(super) fn fill(&self) -> Fill {
        self.ring.fill(0)
    }

    /// Begins to go on in another buffer: the queue does once the entries there were given to the device.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] also for a buffer that cannot take what waits.
    pub(super) fn resize(
        &mut self,
        hca: &dyn Hca,
        mtts: &mut Mtts,
        context: &CqContext,
    ) -> Result<(NewRing, Fill), Status> {
        self.check_room(hca, 1 << context.log_entries())?;
        let ring = Ring::new(mtts, context)?;
        let next = self.producer.wrapping_add(1);
        let fill = ring.fill(next);
        Ok((NewRing { ring, next }, fill))
    }

    /// Goes on in another buffer. The old one ends with an entry that says so.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for a buffer that cannot take what waits by now.
    pub(super) fn move_to(
        &mut self,
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        new: NewRing,
    ) -> Result<(), Status> {
        let next = self.producer.wrapping_add(1);
        let moved = self.check_room(hca, new.ring.entries).and_then(|()| {
            let resized = resize_cq(hca, self.handle, new.ring.entries);
            resized.map_err(|_| Status::BAD_PARAM)?;
            let caught_up = new.catch_up(hca, next);
            let ended =
                caught_up.and_then(|()| self.ring.write(hca, self.producer, &Entry::resize()));
            ended.map_err(|_| Status::BAD_PARAM)
        });
        if let Err(status) = moved {
            new.give_up(mtts);
            return Err(status);
        }
        // The driver moves the entries that wait up by one, to after the one that ended the buffer.
        if self.solicited_waits() {
            self.solicited = self.solicited.wrapping_add(1);
        }
        self.producer = next;
        let old = core::mem::replace(&mut self.ring, new.ring);
        mtts.unpin(old.pin);
        Ok(())
    }

    /// Whether the queue can move to a buffer of so many entries: what waits has room there, and the old one has
    /// room for the entry that ends it, which counts and is taken, too.
    fn check_room(&mut self, hca: &dyn Hca, entries: u32) -> Result<(), Status> {
        if self.failed {
            return Err(Status::BAD_RES_STATE);
        }
        self.read_consumer(hca);
        let needed = self.waiting() + 1;
        if needed > self.ring.entries || needed > entries {
            return Err(Status::BAD_PARAM);
        }
        Ok(())
    }

    /// Writes an entry.
    pub(super) fn write(&mut self, hca: &mut dyn Hca, entry: &Entry) -> Written {
        if self.failed {
            return Written::Lost;
        }
        if self.waiting() >= self.ring.entries {
            self.read_consumer(hca);
        }
        if self.waiting() >= self.ring.entries {
            self.failed = true;
            return Written::Overrun;
        }
        if self.ring.write(hca, self.producer, entry).is_err() {
            self.failed = true;
            return Written::Fault;
        }
        self.producer = self.producer.wrapping_add(1);
        if entry.solicited {
            self.solicited = self.producer;
        }
        Written::There(self.arming.complete(entry.solicited))
    }

    /// Changes the moderation. Returns `true` if the driver is to be woken now.
    pub(super) const fn moderate(&mut self, moderation: Option<Moderation>) -> bool {
        self.arming.moderate(moderation)
    }

    /// Ends the wait for more entries. Returns `true` if there were any: then the driver is to be woken.
    pub(super) const fn release(&mut self) -> bool {
        self.arming.release()
    }

    /// Whether the driver has not taken the last entry that was solicited or in error.
    const fn solicited_waits(&self) -> bool {
        let ahead = self.solicited.wrapping_sub(self.consumer) & INDEX_MASK;
        ahead != 0 && ahead < INDEX_HALF
    }

    /// Returns the UAR whose doorbell arms it.
    pub(super) const fn uar(&self) -> Uar {
        self.uar
    }

    /// Returns the doorbell that the driver's record says it rang, with its UAR. `None` if it was heard, or cannot be
    /// read.
    pub(super) fn unheard_arm(&self, hca: &dyn Hca, cqn: Cqn) -> Option<(Uar, CqDoorbell)> {
        let mut record = CqDoorbellRecord::default();
        hca.dma_read(self.doorbell_record, record.as_mut_bytes())
            .ok()?;
        let command = record.arm_command();
        let index = record.arm_consumer_index();
        let doorbell = CqDoorbell::new(cqn, command, record.arm_serial(), index);
        // A record that the driver has not written to arms nothing.
        let is_arm = matches!(command, ArmCommand::NEXT | ArmCommand::SOLICITED);
        (is_arm && self.heard != Some(doorbell)).then_some((self.uar, doorbell))
    }

    /// The driver rang the queue's doorbell in a UAR.
    pub(super) fn arm(&mut self, uar: Uar, doorbell: &CqDoorbell) -> Rung {
        if uar != self.uar {
            return Rung::Ignored;
        }
        self.heard = Some(*doorbell);
        self.consumer = doorbell.consumer_index();
        let (kind, missed) = match doorbell.command() {
            ArmCommand::NEXT => (ArmKind::Next, self.waiting() != 0),
            ArmCommand::SOLICITED => (ArmKind::Solicited, self.solicited_waits()),
            _ => return Rung::Ignored,
        };
        self.arming.arm((!missed).then_some(kind));
        if missed { Rung::Missed } else { Rung::Armed }
    }

    /// Takes nothing more, since the provider's queue failed. Whether it did before.
    pub(super) const fn fail(&mut self) -> bool {
        core::mem::replace(&mut self.failed, true)
    }

    /// Entries that the driver has not taken, as far as it said.
    const fn waiting(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & INDEX_MASK
    }

    /// Reads how far the driver is. Where that cannot be read it stays where it was.
    fn read_consumer(&mut self, hca: &dyn Hca) {
        let mut record = CqDoorbellRecord::default();
        if hca
            .dma_read(self.doorbell_record, record.as_mut_bytes())
            .is_ok()
        {
            self.consumer = record.consumer_index();
        }
    }
}

#[cfg(test)]
mod tests;
