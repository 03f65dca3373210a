//! The port, as its own management agent describes it.

use ib_wire::Lid;
use ib_wire::mad::{Mad, MadHeader, MadStatus, Method, MgmtClass};
use ib_wire::smp::{LidRoutedSmp, PortInfo, PortState, SmpAttribute};
use mlx4_defs::mad_ifc::{MadIfcInput, MadIfcOutput};
use mlx4_defs::{Opcode, Vhcr};
use zerocopy::network_endian::{U32, U64};

use super::cpu;
use super::hca::Hca;

/// Op modifier of MAD_IFC: whatever keys the port has.
const IGNORE_KEYS: u8 = 3;

impl Hca {
    /// Waits until the port is active. Returns its LID.
    pub(crate) fn wait_for_port(&mut self) -> Lid {
        loop {
            let port = self.port_info();
            if port.port_state() == PortState::ACTIVE {
                return port.lid;
            }
            cpu::relax();
        }
    }

    fn port_info(&mut self) -> PortInfo {
        let class = MgmtClass::SUBN_LID_ROUTED;
        let header = MadHeader::new(class, Method::GET, PortInfo::ID);
        let input = MadIfcInput {
            mad: Mad::new(header),
            ..MadIfcInput::default()
        };
        cpu::write(self.inbox, input);
        let vhcr = Vhcr {
            in_param: U64::new(self.inbox),
            in_modifier: U32::new(1),
            out_param: U64::new(self.outbox),
            ..Vhcr::default()
        };
        self.execute(Opcode::MAD_IFC, IGNORE_KEYS, vhcr);
        let answer: MadIfcOutput = cpu::read(self.outbox);
        assert!(answer.mad.header.status == MadStatus::OK);
        *answer.mad.view::<LidRoutedSmp>().attribute()
    }
}
