//! Names of what is in a world.

use hca_api::FunctionId;
use ib_wire::PortNum;
use vf_tunnel::VfId;

/// Names a host of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub(super) usize);

impl HostId {
    /// The physical function of the host's adapter.
    #[must_use]
    pub const fn pf(self) -> HostFunction {
        HostFunction {
            host: self,
            function: FunctionId::PF,
        }
    }

    /// A VF of the host's adapter.
    #[must_use]
    pub const fn vf(self, vf: VfId) -> HostFunction {
        HostFunction {
            host: self,
            function: FunctionId(vf.get()),
        }
    }

    /// A port of the host, as its physical function has it.
    #[must_use]
    pub const fn port(self, port: u8) -> HostPortId {
        self.pf().port(port)
    }
}

/// Names a function of a host's adapter, and the software that runs on it: the host's own on the
/// physical function, a guest's on a VF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostFunction {
    /// The host.
    pub host: HostId,
    /// Which function of its adapter.
    pub function: FunctionId,
}

impl HostFunction {
    /// A port of the function.
    #[must_use]
    pub const fn port(self, port: u8) -> HostPortId {
        HostPortId {
            host: self.host,
            function: self.function,
            port: PortNum(port),
        }
    }
}

impl From<HostId> for HostFunction {
    fn from(host: HostId) -> Self {
        host.pf()
    }
}

/// Names a port of a function of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPortId {
    /// The host.
    pub host: HostId,
    /// Which function of its adapter.
    pub function: FunctionId,
    /// Its port.
    pub port: PortNum,
}

impl HostPortId {
    /// The function that the port is of.
    #[must_use]
    pub const fn on(self) -> HostFunction {
        HostFunction {
            host: self.host,
            function: self.function,
        }
    }
}

/// Names a datagram socket of a function of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketId {
    pub(super) on: HostFunction,
    pub(super) serial: u32,
}
