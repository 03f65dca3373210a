//! The components of PortInfoRecord and where they stand in PortInfo (IBA 15.2.5.3).

use ib_wire::sa::ComponentMask;

/// A component: bytes of PortInfo, of which `mask` counts in the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) component: ComponentMask,
    offset: usize,
    len: usize,
    mask: u8,
    /// A capability mask, which may match by containing the asked bits.
    capabilities: bool,
    /// Compared only for ports that know extended speeds.
    pub(super) extended_speeds: bool,
}

impl Field {
    const fn whole(bit: u32, offset: usize, len: usize) -> Self {
        Self {
            component: ComponentMask::new(1 << bit),
            offset,
            len,
            mask: 0xff,
            capabilities: false,
            extended_speeds: false,
        }
    }

    const fn bits(bit: u32, offset: usize, mask: u8) -> Self {
        Self {
            mask,
            ..Self::whole(bit, offset, 1)
        }
    }

    const fn capabilities(bit: u32, offset: usize, len: usize) -> Self {
        Self {
            capabilities: true,
            ..Self::whole(bit, offset, len)
        }
    }

    const fn speeds(bit: u32, offset: usize, mask: u8) -> Self {
        Self {
            extended_speeds: true,
            ..Self::bits(bit, offset, mask)
        }
    }

    /// Whether a PortInfo has what another one asks for; `contained` lets capability masks match by
    /// containing it.
    pub(super) fn matches(&self, asked: &[u8], held: &[u8], contained: bool) -> bool {
        let bytes = self.offset..self.offset + self.len;
        let pairs = asked[bytes.clone()].iter().zip(&held[bytes]);
        pairs.into_iter().all(|(asked, held)| {
            let (asked, held) = (asked & self.mask, held & self.mask);
            if self.capabilities && contained {
                asked & held == asked
            } else {
                asked == held
            }
        })
    }
}

/// All components that can be asked for, by their bits.
pub(super) const FIELDS: [Field; 50] = [
    Field::whole(3, 0, 8),
    Field::whole(4, 8, 8),
    Field::whole(5, 16, 2),
    Field::whole(6, 18, 2),
    Field::capabilities(7, 20, 4),
    Field::whole(8, 24, 2),
    Field::whole(9, 26, 2),
    Field::whole(10, 28, 1),
    Field::whole(11, 29, 1),
    Field::whole(12, 30, 1),
    Field::whole(13, 31, 1),
    Field::bits(14, 32, 0xf0),
    Field::bits(15, 32, 0x0f),
    Field::bits(16, 33, 0xf0),
    Field::bits(17, 33, 0x0f),
    Field::bits(18, 34, 0xc0),
    Field::bits(20, 34, 0x07),
    Field::bits(21, 35, 0xf0),
    Field::bits(22, 35, 0x0f),
    Field::bits(23, 36, 0xf0),
    Field::bits(24, 36, 0x0f),
    Field::bits(25, 37, 0xf0),
    Field::bits(26, 37, 0x0f),
    Field::whole(27, 38, 1),
    Field::whole(28, 39, 1),
    Field::whole(29, 40, 1),
    Field::bits(30, 41, 0xf0),
    Field::bits(31, 41, 0x0f),
    Field::bits(32, 42, 0xe0),
    Field::bits(33, 42, 0x1f),
    Field::bits(34, 43, 0xf0),
    Field::bits(35, 43, 0x08),
    Field::bits(36, 43, 0x04),
    Field::bits(37, 43, 0x02),
    Field::bits(38, 43, 0x01),
    Field::whole(39, 44, 2),
    Field::whole(40, 46, 2),
    Field::whole(41, 48, 2),
    Field::whole(42, 50, 1),
    Field::bits(45, 51, 0x1f),
    Field::bits(47, 52, 0x1f),
    Field::bits(48, 53, 0xf0),
    Field::bits(49, 53, 0x0f),
    Field::whole(50, 54, 2),
    Field::whole(52, 57, 3),
    Field::capabilities(53, 60, 2),
    Field::speeds(54, 62, 0xf0),
    Field::speeds(55, 62, 0x0f),
    Field::speeds(57, 63, 0x1f),
    Field::bits(43, 51, 0x80),
];

#[cfg(test)]
mod tests {
    use ib_wire::sa::PortInfoRecord;
    use ib_wire::smp::{PortInfo, PortState};
    use ib_wire::{Lid, Lmc};
    use zerocopy::IntoBytes;

    use super::*;

    fn matches(
        component: ComponentMask,
        asked: &PortInfo,
        held: &PortInfo,
        contained: bool,
    ) -> bool {
        let field = FIELDS
            .iter()
            .find(|field| field.component == component)
            .unwrap();
        field.matches(asked.as_bytes(), held.as_bytes(), contained)
    }

    #[test]
    fn components_look_at_their_own_field_only() {
        let mut asked = PortInfo {
            lid: Lid::new(7),
            ..PortInfo::default()
        };
        let mut held = PortInfo {
            lid: Lid::new(7),
            ..PortInfo::default()
        };
        held.set_lmc(Lmc::new(3).unwrap());
        held.set_mkey_protect(2);
        asked.set_lmc(Lmc::new(3).unwrap());
        asked.set_port_state(PortState::ACTIVE);
        assert!(matches(PortInfoRecord::BASE_LID, &asked, &held, false));
        assert!(matches(PortInfoRecord::LMC, &asked, &held, false));
        assert!(!matches(PortInfoRecord::PORT_STATE, &asked, &held, false));
    }

    #[test]
    fn capabilities_may_match_by_containing_the_asked_ones() {
        let info = |mask| PortInfo {
            capability_mask: mask,
            ..PortInfo::default()
        };
        let (asked, held) = (info(0x2.into()), info(0x6.into()));
        assert!(!matches(
            PortInfoRecord::CAPABILITY_MASK,
            &asked,
            &held,
            false
        ));
        assert!(matches(
            PortInfoRecord::CAPABILITY_MASK,
            &asked,
            &held,
            true
        ));
        assert!(!matches(
            PortInfoRecord::CAPABILITY_MASK,
            &held,
            &asked,
            true
        ));
    }

    #[test]
    fn no_component_is_listed_twice() {
        let mut bits: Vec<u64> = FIELDS.iter().map(|field| field.component.get()).collect();
        bits.sort_unstable();
        bits.dedup();
        assert_eq!(bits.len(), FIELDS.len());
    }
}
