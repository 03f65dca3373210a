//! A VMM that says what it likes, message by message, and its guest's commands without a driver.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mlx4_defs::comm::{CommAnswer, CommCommand, CommRequest, SLAVE_READ, SLAVE_WRITE};
use mlx4_defs::mtt::{MAX_ENTRIES_PER_WRITE, MttEntry, WriteMtt};
use mlx4_defs::pci::UAR_BAR;
use mlx4_defs::resource::{ResourceModifier, ResourceOp, ResourceType};
use mlx4_defs::{Mailbox, MailboxLayout, Opcode, TOKEN, VHCR_SIZE, Vhcr};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhca_vfio_user::codec::{
    Command, DmaAccess, DmaMap, DmaMapFlags, DmaUnmap, DmaUnmapFlags, Header, HeaderFlags,
    MultiWrite, RegionAccess, reply,
};
use zerocopy::little_endian;
use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::attacks::note;
use crate::mlx4_driver::{GuestMemory, PAGE};

/// The region of configuration space.
const CONFIG: u32 = 7;

/// The registers of the function.
const REGISTERS: u32 = UAR_BAR as u32;

/// Where the guest has a second view of its memory, which the device may only read.
const READ_ONLY: u64 = 1 << 42;

/// Where the guest has memory that the device must ask for.
const UNSHARED: u64 = 1 << 43;

/// Bytes of the longest payload beside the registers' addresses.
const MOST: usize = 64 << 10;

/// A VMM without manners. Its guest's memory begins with the command register and two mailboxes.
#[derive(Debug)]
pub(super) struct RawVmm {
    socket: UnixStream,
    memory: GuestMemory,
    toggle: bool,
}

/// The bytes of a command.
fn message(command: Command, parts: &[&[u8]]) -> Vec<u8> {
    let len = size_of::<Header>() + parts.iter().map(|part| part.len()).sum::<usize>();
    let header = Header {
        command: little_endian::U16::new(command.0),
        size: little_endian::U32::new(u32::try_from(len).unwrap_or(u32::MAX)),
        ..Header::default()
    };
    [&[header.as_bytes()], parts].concat().concat()
}

/// A message that writes registers.
pub(super) fn write(region: u32, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let access = access(region, offset, bytes.len());
    message(Command::REGION_WRITE, &[access.as_bytes(), bytes])
}

/// A message that writes 32-bit registers of the function, one after another.
pub(super) fn write_all(words: impl Iterator<Item = (u64, [u8; 4])>) -> Vec<u8> {
    let write = |(offset, [a, b, c, d]): (u64, [u8; 4])| MultiWrite {
        access: access(REGISTERS, offset, 4),
        data: [a, b, c, d, 0, 0, 0, 0],
    };
    let writes: Vec<MultiWrite> = words.map(write).collect();
    let count = (writes.len() as u64).to_le_bytes();
    message(Command::REGION_WRITE_MULTI, &[&count, writes.as_bytes()])
}

/// Writes that fill the longest message of them.
pub(super) const MOST_WRITES: usize = MOST / size_of::<MultiWrite>();

/// A message that resets the device.
pub(super) fn reset() -> Vec<u8> {
    message(Command::DEVICE_RESET, &[])
}

/// A message that takes all memory away.
pub(super) fn unmap_all() -> Vec<u8> {
    let unmap = DmaUnmap {
        argsz: little_endian::U32::new(24),
        flags: little_endian::U32::new(DmaUnmapFlags::ALL.bits()),
        ..DmaUnmap::default()
    };
    message(Command::DMA_UNMAP, &[unmap.as_bytes()])
}

/// A long write over the doorbell pages.
pub(super) fn doorbells() -> Vec<u8> {
    write(REGISTERS, 128 << 12, &[0xa5; MOST])
}

fn access(region: u32, offset: u64, len: usize) -> RegionAccess {
    RegionAccess {
        offset: little_endian::U64::new(offset),
        region: little_endian::U32::new(region),
        count: little_endian::U32::new(u32::try_from(len).unwrap_or(u32::MAX)),
    }
}

impl RawVmm {
    /// Connects, and agrees on a version.
    pub(super) fn connect(socket: &Path, memory: GuestMemory) -> io::Result<Self> {
        let socket = UnixStream::connect(socket)?;
        let mut this = Self {
            socket,
            memory,
            toggle: false,
        };
        let hello = b"\0\0\0\0{\"capabilities\":{\"max_msg_fds\":8}}\0";
        this.ask(&message(Command::VERSION, &[hello]))?;
        Ok(this)
    }

    /// The same with its memory mapped, and a driver that is online.
    pub(super) fn start(socket: &Path, pages: usize) -> io::Result<Self> {
        let memory = GuestMemory::shared(pages)?;
        let mut this = Self::connect(socket, memory)?;
        this.map()?;
        this.ask(&write(CONFIG, 4, &[6, 0]))?;
        this.post(CommCommand::RESET, 0)?;
        let [_, _, .., a, b] = this.page(0).to_be_bytes();
        let [c, d, e, f, g, h, ..] = this.page(0).to_be_bytes();
        this.post(CommCommand::VHCR0, u16::from_be_bytes([c, d]))?;
        this.post(CommCommand::VHCR1, u16::from_be_bytes([e, f]))?;
        this.post(CommCommand::VHCR2, u16::from_be_bytes([g, h]))?;
        this.post(CommCommand::VHCR_EN, u16::from_be_bytes([a, b]))?;
        Ok(this)
    }

    /// Maps the memory, for reading and writing, once more for reading, and once more without sharing it.
    pub(super) fn map(&mut self) -> io::Result<()> {
        let unshared = self.map_message(UNSHARED, DmaMapFlags::READ | DmaMapFlags::WRITE);
        self.ask(&unshared)?;
        let both = DmaMapFlags::READ | DmaMapFlags::WRITE;
        for (address, flags) in [(GuestMemory::BASE, both), (READ_ONLY, DmaMapFlags::READ)] {
            let bytes = self.map_message(address, flags);
            let file = self.memory.file().ok_or(io::ErrorKind::Unsupported)?;
            let fds = [file.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
            let parts = [IoSlice::new(&bytes)];
            sendmsg(&self.socket, &parts, &mut ancillary, SendFlags::empty())?;
            self.reply()?;
        }
        Ok(())
    }

    fn map_message(&self, address: u64, flags: DmaMapFlags) -> Vec<u8> {
        let map = DmaMap {
            argsz: little_endian::U32::new(32),
            flags: little_endian::U32::new(flags.bits()),
            offset: little_endian::U64::new(0),
            address: little_endian::U64::new(address),
            size: little_endian::U64::new((self.memory.pages() * PAGE) as u64),
        };
        message(Command::DMA_MAP, &[map.as_bytes()])
    }

    /// The address of a page of the guest's.
    pub(super) fn page(&self, number: usize) -> u64 {
        GuestMemory::BASE + (number * PAGE) as u64
    }

    /// An address that the device may read but not write.
    pub(super) const fn read_only_page() -> u64 {
        READ_ONLY
    }

    /// An address in memory that is not shared.
    pub(super) const fn unshared_page() -> u64 {
        UNSHARED
    }

    /// Says something, and waits for the answer.
    pub(super) fn ask(&mut self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.socket.write_all(bytes)?;
        self.reply()
    }

    fn reply(&mut self) -> io::Result<Vec<u8>> {
        let mut header = [0; size_of::<Header>()];
        self.socket.read_exact(&mut header)?;
        let header = Header::read_from_bytes(&header).map_err(|_| io::ErrorKind::InvalidData)?;
        let len = header.size.get() as usize;
        let mut payload = vec![0; len.saturating_sub(size_of::<Header>())];
        self.socket.read_exact(&mut payload)?;
        match header.error.get() {
            0 => Ok(payload),
            error => Err(io::Error::from_raw_os_error(error.cast_signed())),
        }
    }

    /// Says the same things over and over, as fast as they are heard, until it is cut off or killed.
    pub(super) fn repeat(mut self, messages: &[Vec<u8>]) -> io::Result<()> {
        let mut replies = self.socket.try_clone()?;
        std::thread::spawn(move || io::copy(&mut replies, &mut io::sink()));
        loop {
            for message in messages {
                self.socket.write_all(message)?;
                note();
            }
        }
    }

    /// Posts the command in the register over and over, and answers each question for memory that is not shared after a
    /// while, just before the service stops waiting.
    pub(super) fn answer_slowly(mut self) -> io::Result<()> {
        const WHILE: Duration = Duration::from_micros(200);

        let mut ours = self.socket.try_clone()?;
        let posts = self.posts();
        std::thread::spawn(move || -> io::Result<()> {
            loop {
                self.socket.write_all(&posts)?;
                note();
            }
        });
        loop {
            let mut header = [0; size_of::<Header>()];
            ours.read_exact(&mut header)?;
            let header =
                Header::read_from_bytes(&header).map_err(|_| io::ErrorKind::InvalidData)?;
            let mut payload = vec![0; header.size.get() as usize - size_of::<Header>()];
            ours.read_exact(&mut payload)?;
            let asked = [Command::DMA_READ, Command::DMA_WRITE].contains(&header.command());
            if !asked || header.flags().contains(HeaderFlags::REPLY) {
                continue;
            }
            std::thread::sleep(WHILE);
            let access = size_of::<DmaAccess>().min(payload.len());
            let data = match header.command() {
                Command::DMA_READ => vec![0; 4096],
                _ => Vec::new(),
            };
            ours.write_all(&reply(&header, &[&payload[..access], &data]))?;
        }
    }

    /// The file of its memory.
    pub(super) fn file(&self) -> Option<Arc<File>> {
        self.memory.file()
    }

    fn post(&mut self, command: CommCommand, param: u16) -> io::Result<()> {
        self.toggle = !self.toggle;
        let word = CommRequest::new(self.toggle, command, param);
        self.ask(&write(REGISTERS, SLAVE_WRITE, word.as_bytes()))?;
        loop {
            let access = access(REGISTERS, SLAVE_READ, 4);
            let reply = self.ask(&message(Command::REGION_READ, &[access.as_bytes()]))?;
            let word = reply.get(size_of::<RegionAccess>()..);
            let answer = word.and_then(|word| CommAnswer::read_from_bytes(word).ok());
            if answer.is_some_and(|answer| answer.toggle() == self.toggle) {
                return Ok(());
            }
        }
    }

    /// Puts a command into its register.
    pub(super) fn prepare(&self, opcode: Opcode, modifier: u32, variant: u8, param: u64) {
        let mut vhcr = Vhcr {
            in_param: U64::new(param),
            in_modifier: U32::new(modifier),
            out_param: U64::new(self.page(2)),
            token: U16::new(TOKEN),
            ..Vhcr::default()
        };
        vhcr.set_opcode(opcode);
        vhcr.set_op_modifier(variant);
        self.memory.write(self.page(0), vhcr.as_bytes());
    }

    /// Puts a mailbox into the guest's memory, and tells where.
    pub(super) fn mailbox<T: MailboxLayout>(&self, layout: &T) -> u64 {
        self.memory
            .write(self.page(1), Mailbox::with(layout).as_bytes());
        self.page(1)
    }

    /// Gives the command in the register; the immediate result.
    pub(super) fn execute(&mut self) -> io::Result<u64> {
        self.post(CommCommand::VHCR_POST, 0)?;
        let mut bytes = [0; VHCR_SIZE];
        self.memory.read(self.page(0), &mut bytes);
        let vhcr: Vhcr = zerocopy::transmute!(bytes);
        if vhcr.status.get() != 0 {
            let what = format!("{:?} ends with {:?}", vhcr.opcode(), vhcr.status);
            return Err(io::Error::other(what));
        }
        Ok(vhcr.out_param.get())
    }

    /// Reserves numbers.
    pub(super) fn allocate(
        &mut self,
        kind: ResourceType,
        op: ResourceOp,
        param: u64,
    ) -> io::Result<u64> {
        let modifier = ResourceModifier::new(kind).word.get();
        self.prepare(Opcode::ALLOC_RES, modifier, op.get(), param);
        self.execute()
    }

    /// A range of the translation table. Its entries name the guest's pages from the fourth on, over and over; the
    /// last one names `last`.
    pub(super) fn map_pages(&mut self, order: u8, last: u64) -> io::Result<u64> {
        let op = ResourceOp::RESERVE_AND_MAP;
        let first = self.allocate(ResourceType::MTT, op, order.into())?;
        let pages = self.memory.pages() - 4;
        let all: Vec<MttEntry> = (1..1_usize << order)
            .map(|n| MttEntry::new(self.page(4 + n % pages)))
            .chain([MttEntry::new(last)])
            .collect();
        let starts = (first..).step_by(MAX_ENTRIES_PER_WRITE);
        for (first, entries) in starts.zip(all.chunks(MAX_ENTRIES_PER_WRITE)) {
            let mut write = WriteMtt {
                first: U64::new(first),
                ..WriteMtt::default()
            };
            write.entries[..entries.len()].copy_from_slice(entries);
            let at = self.mailbox(&write);
            let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
            self.prepare(Opcode::WRITE_MTT, count, 0, at);
            self.execute()?;
        }
        Ok(first)
    }

    /// Returns more descriptors of the socket.
    pub(super) fn copies(&self, count: usize) -> io::Result<Vec<OwnedFd>> {
        let copies = (0..count).map(|_| self.socket.try_clone().map(OwnedFd::from));
        copies.collect()
    }

    /// A message that gives the command in the register as often as fits.
    pub(super) fn posts(&self) -> Vec<u8> {
        let toggles = core::iter::successors(Some(!self.toggle), |toggle| Some(!toggle));
        let words = toggles.take(MOST_WRITES / 2 * 2).map(|toggle| {
            let word = CommRequest::new(toggle, CommCommand::VHCR_POST, 0).word;
            (SLAVE_WRITE, word.get().to_be_bytes())
        });
        write_all(words)
    }
}
