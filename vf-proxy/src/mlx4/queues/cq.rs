//! Completion queues: rings in the guest's memory, and when the driver wants to be woken.

use hca_api::{ArmKind, CqHandle, DmaFault, Hca};
use ib_vtime::Duration;
use mlx4_defs::cq::{ArmCommand, CqContext, CqDoorbell, CqDoorbellRecord};
use mlx4_defs::cqe::CQE_SIZE;
use mlx4_defs::{Status, Uar};
use zerocopy::IntoBytes;

use super::super::buffer::QueueBuffer;
use super::super::mtt::{MttPin, Mtts};
use super::cqe::Entry;
use super::moderation::Moderation;

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
    buffer: QueueBuffer,
    pin: MttPin,
    /// A power of two.
    entries: u32,
}

impl Ring {
    /// The ring of a context, whose first entry will be `next` of the running count. All entries are the
    /// device's; unless there is no such number, since the driver has seen to that.
    fn new(
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        context: &CqContext,
        next: Option<u32>,
    ) -> Result<Self, Status> {
        let log_entries = context.log_entries();
        if log_entries > MAX_LOG_ENTRIES || context.page_offset.get() != 0 {
            return Err(Status::BAD_PARAM);
        }
        let entries: u32 = 1 << log_entries;
        let bytes = u64::from(entries) * CQE_SIZE as u64;
        let first = context.mtt_base.entry();
        let buffer = mtts.queue(first, context.log_page_size, bytes)?;
        if let Some(next) = next {
            // Entries before the slot of the next one come up a turn later than those behind it.
            let turn = u64::from(next & (entries - 1)) * CQE_SIZE as u64;
            let (early, late) = if next & entries == 0 {
                (HARDWARE_OWNED, HARDWARE_OWNED_AGAIN)
            } else {
                (HARDWARE_OWNED_AGAIN, HARDWARE_OWNED)
            };
            buffer
                .fill(hca, 0..turn, late)
                .and_then(|()| buffer.fill(hca, turn..bytes, early))
                .map_err(|_| Status::BAD_PARAM)?;
        }
        Ok(Self {
            buffer,
            pin: mtts.pin(first)?,
            entries,
        })
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

/// What became of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    /// It is there, and the driver will see it.
    Quietly,
    /// It is there, and the driver is to be woken.
    Awaited,
    /// It is there, and the driver is to be woken so much later, unless more come.
    Held(Duration),
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
pub(super) struct Cq {
    pub(super) handle: CqHandle,
    pub(super) eqn: u8,
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
    armed: Option<ArmCommand>,
    moderation: Option<Moderation>,
    /// Entries since the queue was armed that wake nobody yet.
    held: u16,
    failed: bool,
    /// Work queues that complete here.
    pub(super) users: u32,
}

impl Cq {
    /// Makes a queue.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`], [`Status::EXCEED_LIM`].
    pub(super) fn new(
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        context: &CqContext,
        initialised: bool,
    ) -> Result<Self, Status> {
        if context.collapsed() || context.timestamp() {
            return Err(Status::BAD_PARAM);
        }
        let ring = Ring::new(hca, mtts, context, (!initialised).then_some(0))?;
        let entries = provider_entries(hca, ring.entries);
        // A new queue has nothing yet that could be missed.
        let armed = hca
            .create_cq(entries)
            .and_then(|handle| hca.arm_cq(handle, ArmKind::Next).map(|_| handle));
        let Ok(handle) = armed else {
            mtts.unpin(ring.pin);
            return Err(Status::EXCEED_LIM);
        };
        Ok(Self {
            handle,
            eqn: context.comp_eqn,
            uar: context.uar,
            doorbell_record: context.doorbell_record.get(),
            ring,
            producer: 0,
            consumer: 0,
            solicited: 0,
            armed: None,
            moderation: Moderation::of(context),
            held: 0,
            failed: false,
            users: 0,
        })
    }

    /// Ends a queue; there are no entries any more.
    pub(super) fn end(self, hca: &mut dyn Hca, mtts: &mut Mtts) {
        let gone = hca.destroy_cq(self.handle);
        debug_assert_eq!(gone, Ok(()), "nobody uses it");
        mtts.unpin(self.ring.pin);
    }

    /// Goes on in another buffer. The old one ends with an entry that says so.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] also for a buffer that cannot take what waits.
    pub(super) fn resize(
        &mut self,
        hca: &mut dyn Hca,
        mtts: &mut Mtts,
        context: &CqContext,
    ) -> Result<(), Status> {
        if self.failed {
            return Err(Status::BAD_RES_STATE);
        }
        self.read_consumer(hca);
        // The entry that ends the old buffer counts, and is taken, too.
        let needed = self.waiting() + 1;
        if needed > self.ring.entries || needed > 1 << context.log_entries() {
            return Err(Status::BAD_PARAM);
        }
        let next = self.producer.wrapping_add(1);
        let ring = Ring::new(hca, mtts, context, Some(next))?;
        if hca
            .resize_cq(self.handle, provider_entries(hca, ring.entries))
            .is_err()
        {
            mtts.unpin(ring.pin);
            return Err(Status::BAD_PARAM);
        }
        let ended = self.ring.write(hca, self.producer, &Entry::resize());
        if ended.is_err() {
            mtts.unpin(ring.pin);
            return Err(Status::BAD_PARAM);
        }
        // The driver moves the entries that wait up by one, to after the one that ended the buffer.
        if self.solicited_waits() {
            self.solicited = self.solicited.wrapping_add(1);
        }
        self.producer = next;
        let old = core::mem::replace(&mut self.ring, ring);
        mtts.unpin(old.pin);
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
        let due = match self.armed {
            Some(ArmCommand::NEXT) => true,
            Some(_) => entry.solicited,
            None => false,
        };
        if !due {
            return Written::Quietly;
        }
        self.held = self.held.saturating_add(1);
        if let Some(moderation) = self.moderation
            && self.held < moderation.count
        {
            return Written::Held(moderation.period);
        }
        self.release();
        Written::Awaited
    }

    /// Changes the moderation. Whether the driver is to be woken now.
    pub(super) fn moderate(&mut self, moderation: Option<Moderation>) -> bool {
        self.moderation = moderation;
        self.release()
    }

    /// Holds entries back no more. Whether there were any: then the driver is to be woken.
    pub(super) const fn release(&mut self) -> bool {
        let any = self.held != 0;
        if any {
            (self.armed, self.held) = (None, 0);
        }
        any
    }

    /// Whether the driver has not taken the last entry that was solicited or in error.
    const fn solicited_waits(&self) -> bool {
        let ahead = self.solicited.wrapping_sub(self.consumer) & INDEX_MASK;
        ahead != 0 && ahead < INDEX_HALF
    }

    /// The driver rang the queue's doorbell in a UAR.
    pub(super) fn arm(&mut self, uar: Uar, doorbell: &CqDoorbell) -> Rung {
        if uar != self.uar {
            return Rung::Ignored;
        }
        self.consumer = doorbell.consumer_index();
        let missed = match doorbell.command() {
            ArmCommand::NEXT => self.waiting() != 0,
            ArmCommand::SOLICITED => self.solicited_waits(),
            _ => return Rung::Ignored,
        };
        self.held = 0;
        self.armed = (!missed).then(|| doorbell.command());
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

/// Entries of the provider's queue behind one of the guest's: every send completes there, told to the
/// guest or not, so there have to be more.
fn provider_entries(hca: &dyn Hca, entries: u32) -> u32 {
    const LEAST: u32 = 1 << 12;

    let most = hca.attributes().limits.max_cqe;
    entries.saturating_mul(2).max(LEAST).min(most)
}

#[cfg(test)]
mod tests;
