//! The function behind a socket, and its configuration space as far as a VMM has to follow it.

use vf_pci::{Bar, registers};
use vhca_vfio_user_codec::{ClientCommand, DeviceInfo, IrqInfo, RegionInfo};

use crate::error::{AttachError, LinkError};
use crate::link::Link;

/// The region of configuration space (`VFIO_PCI_CONFIG_REGION_INDEX`).
pub(crate) const CONFIG: u32 = 7;

/// Bytes of configuration space with the standard header and all capabilities.
const SPACE: usize = 256;

/// Base address registers of a function.
const BARS: u8 = 6;

/// The function, as the service describes it.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) bars: Vec<Bar>,
    pub(crate) vectors: u16,
    /// The service signals that the doorbells with eventfds are others than before.
    pub(crate) has_doorbells: bool,
    /// Base address register and offset of the MSI-X table.
    pub(crate) table: (u8, u64),
    msix: usize,
    express: Option<usize>,
}

/// Layout of a function by its configuration space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// The function takes accesses behind its base address registers.
    pub(crate) answers: bool,
    /// MSI-X is on.
    pub(crate) is_enabled: bool,
    /// Interrupts of unmasked vectors are sent.
    pub(crate) sends: bool,
    /// Address of each base address register, in the order of [`Layout::bars`], and if it is one.
    addresses: Vec<Address>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Address {
    address: u64,
    /// All ones were written last to the lower or upper half: it reads as the size of the register.
    is_sized: [bool; 2],
}

impl Layout {
    /// Asks a service for the function that it serves.
    pub(crate) fn of(link: &mut Link) -> Result<Self, AttachError> {
        let device: DeviceInfo = link.get(&ClientCommand::DeviceInfo)?;
        if device.flags.get() & DeviceInfo::PCI == 0 || device.num_regions.get() <= CONFIG {
            return Err(AttachError::NoVf("it is no PCI function"));
        }
        let space = read_space(link)?;
        let mut bars = Vec::new();
        for index in 0..BARS {
            let region = u32::from(index);
            let info: RegionInfo = link.get(&ClientCommand::RegionInfo { index: region })?;
            let size = info.size.get();
            if size == 0 {
                continue;
            }
            let register = bytes(&space, registers::BARS + 4 * usize::from(index));
            let register = u32::from_le_bytes(register);
            let is_sound =
                size.is_power_of_two() && register & registers::BAR_TYPE == registers::BAR_64_BIT;
            if !is_sound || index == BARS - 1 {
                return Err(AttachError::NoVf("a register is not of 64-bit memory"));
            }
            bars.push(Bar {
                index,
                size,
                prefetchable: register & registers::BAR_PREFETCHABLE != 0,
            });
        }
        let msix =
            capability(&space, registers::MSI_X).ok_or(AttachError::NoVf("it has no MSI-X"))?;
        let table = u32::from_le_bytes(bytes(&space, msix + 4));
        let vectors = (word(&space, msix + 2) & registers::MSIX_LAST_VECTOR) + 1;
        let info: IrqInfo = link.get(&ClientCommand::IrqInfo {
            index: IrqInfo::MSIX,
        })?;
        let has_doorbells = device.num_irqs.get() > IrqInfo::DOORBELLS && {
            let index = IrqInfo::DOORBELLS;
            let info: IrqInfo = link.get(&ClientCommand::IrqInfo { index })?;
            info.count.get() == 1
        };
        if info.count.get() < u32::from(vectors) {
            return Err(AttachError::NoVf(
                "it has fewer interrupts than MSI-X vectors",
            ));
        }
        Ok(Self {
            bars,
            vectors,
            has_doorbells,
            // Three bits name the register, and the others are the offset.
            table: (table.to_le_bytes()[0] & 0b111, u64::from(table & !0b111)),
            msix,
            express: capability(&space, registers::PCI_EXPRESS),
        })
    }

    /// Returns `true` if a write to configuration space begins a function-level reset.
    pub(crate) fn resets(&self, offset: u16, written: &[u8]) -> bool {
        let control = self.express.map(|at| at + registers::DEVICE_CONTROL + 1);
        let index = control.and_then(|at| at.checked_sub(usize::from(offset)));
        let byte = index.and_then(|index| written.get(index));
        byte.is_some_and(|byte| byte & registers::INITIATE_FLR.to_le_bytes()[1] != 0)
    }

    /// Reads configuration space after a reset (`written` is `None`) or a write to it.
    pub(crate) fn read(
        &self,
        link: &mut Link,
        before: &Config,
        written: Option<(u16, &[u8])>,
    ) -> Result<Config, LinkError> {
        let space = read_space(link)?;
        Ok(self.follow(&space, before, written))
    }

    fn follow(&self, space: &[u8], before: &Config, written: Option<(u16, &[u8])>) -> Config {
        let command = word(space, registers::COMMAND);
        let control = word(space, self.msix + 2);
        let addresses = self.bars.iter().enumerate().map(|(nth, bar)| {
            let mut address = before.addresses.get(nth).copied().unwrap_or_default();
            let register = registers::BARS + 4 * usize::from(bar.index);
            match written {
                Some((offset, written)) => address.note_sizing(register, offset, written),
                None => address.is_sized = [false; 2],
            }
            if address.is_sized == [false; 2] {
                address.address = u64::from_le_bytes(bytes(space, register)) & !0xf;
            }
            address
        });
        Config {
            answers: command & registers::MEMORY_SPACE != 0,
            is_enabled: control & registers::MSIX_ENABLE != 0,
            sends: command & registers::BUS_MASTER != 0
                && control & (registers::MSIX_ENABLE | registers::MSIX_FUNCTION_MASK)
                    == registers::MSIX_ENABLE,
            addresses: addresses.collect(),
        }
    }
}

impl Address {
    /// Notes which halves a write had read as the register's size, and which not any longer.
    fn note_sizing(&mut self, register: usize, offset: u16, written: &[u8]) {
        let at = usize::from(offset);
        for (is_sized, half) in self.is_sized.iter_mut().zip([register, register + 4]) {
            if at < half + 4 && half < at + written.len() {
                let from = half.checked_sub(at);
                let value = from.and_then(|from| written.get(from..from + 4));
                *is_sized = value == Some(&[0xff; 4]);
            }
        }
    }
}

impl Config {
    /// Returns the address of each base address register, in the order of [`Layout::bars`]. `None` for one that has none, and
    /// while memory space is off.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = Option<u64>> {
        let addresses = self.addresses.iter().map(|address| address.address);
        addresses.map(|address| (self.answers && address != 0).then_some(address))
    }
}

fn read_space(link: &mut Link) -> Result<Vec<u8>, LinkError> {
    let mut space = vec![0; SPACE];
    link.read(CONFIG, 0, &mut space)?;
    Ok(space)
}

/// Returns the place of a capability. Their list may be as long as it likes, and have no end.
fn capability(space: &[u8], id: u8) -> Option<usize> {
    let mut at = byte(space, registers::CAPABILITIES);
    for _ in 0..SPACE / 4 {
        let place = usize::from(at & !0b11);
        if place == 0 {
            return None;
        }
        if byte(space, place) == id {
            return Some(place);
        }
        at = byte(space, place + 1);
    }
    None
}

fn byte(space: &[u8], at: usize) -> u8 {
    space.get(at).copied().unwrap_or_default()
}

fn word(space: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes(space, at))
}

/// Returns bytes of the space; zeros beyond it.
fn bytes<const N: usize>(space: &[u8], at: usize) -> [u8; N] {
    core::array::from_fn(|nth| byte(space, at + nth))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout {
            bars: vec![Bar {
                index: 2,
                size: 0x80_0000,
                prefetchable: true,
            }],
            vectors: 4,
            has_doorbells: false,
            table: (4, 0),
            msix: 0x9c,
            express: Some(0x60),
        }
    }

    /// Configuration space with a command register, MSI-X control and the register at 0x18.
    fn space(command: u16, control: u16, register: u64) -> Vec<u8> {
        let mut space = vec![0; SPACE];
        space[0x04..0x06].copy_from_slice(&command.to_le_bytes());
        space[0x9e..0xa0].copy_from_slice(&control.to_le_bytes());
        space[0x18..0x20].copy_from_slice(&register.to_le_bytes());
        space
    }

    fn address(config: &Config) -> Option<u64> {
        config.addresses().next().unwrap()
    }

    #[test]
    fn a_register_stays_where_it_is_while_its_size_is_read() {
        let layout = layout();
        let (low, high) = (0xfb80_000c_u64, 0x1_fb80_000c);
        let config = layout.follow(&space(2, 0, low), &Config::default(), None);
        assert_eq!(address(&config), Some(0xfb80_0000));
        let ones: &[u8] = &[0xff; 4];
        let config = layout.follow(&space(2, 0, 0xff80_000c), &config, Some((0x18, ones)));
        assert_eq!(address(&config), Some(0xfb80_0000));
        let high_half = [1, 0, 0, 0];
        let sized = space(2, 0, 0x1_ff80_000c);
        let config = layout.follow(&sized, &config, Some((0x1c, &high_half)));
        assert_eq!(
            address(&config),
            Some(0xfb80_0000),
            "the lower half is a size"
        );
        let low_half = u32::try_from(low).unwrap().to_le_bytes();
        let config = layout.follow(&space(2, 0, high), &config, Some((0x18, &low_half)));
        assert_eq!(address(&config), Some(0x1_fb80_0000));
        let config = layout.follow(&space(0, 0, high), &config, Some((0x04, &[0, 0])));
        assert_eq!(address(&config), None, "memory space is off");
    }

    #[test]
    fn interrupts_are_sent_by_a_bus_master_with_msi_x_on() {
        let layout = layout();
        let sends = |command, control| {
            let space = space(command, control, 0);
            layout.follow(&space, &Config::default(), None).sends
        };
        assert!(sends(registers::BUS_MASTER, registers::MSIX_ENABLE));
        assert!(!sends(0, registers::MSIX_ENABLE));
        assert!(!sends(registers::BUS_MASTER, 0));
        assert!(!sends(
            registers::BUS_MASTER,
            registers::MSIX_ENABLE | registers::MSIX_FUNCTION_MASK
        ));
    }

    #[test]
    fn a_function_level_reset_is_a_bit_of_a_write() {
        let layout = layout();
        assert!(layout.resets(0x68, &[0, 0x80]));
        assert!(layout.resets(0x69, &[0x80]));
        assert!(!layout.resets(0x68, &[0x80]));
        assert!(!layout.resets(0x70, &[0x80; 4]));
        assert!(!layout.resets(0, &[0; 64]));
    }

    #[test]
    fn a_list_of_capabilities_without_an_end_is_left() {
        let mut space = vec![0; SPACE];
        space[registers::CAPABILITIES] = 0x40;
        (space[0x40], space[0x41]) = (1, 0x50);
        (space[0x50], space[0x51]) = (5, 0x40);
        assert_eq!(capability(&space, registers::MSI_X), None);
        (space[0x50], space[0x51]) = (registers::MSI_X, 0);
        assert_eq!(capability(&space, registers::MSI_X), Some(0x50));
        assert_eq!(capability(&[0xff; SPACE], registers::MSI_X), None);
    }
}
