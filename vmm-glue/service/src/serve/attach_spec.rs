//! Where to attach.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

use crate::serve::ibsim::sockets::IbsimAddress;

/// Bytes of a node's name at most: the protocol has 32, of which the last is zero.
const MAX_NODE_NAME: usize = 31;

/// A fabric outside to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachSpec {
    /// Nodes of a simulator.
    Ibsim(IbsimSpec),
    /// A port of an HCA that the kernel drives.
    Linux(LinuxSpec),
}

impl AttachSpec {
    /// Returns the nodes of a simulator.
    pub(crate) const fn ibsim(&self) -> Option<&IbsimSpec> {
        match self {
            Self::Ibsim(spec) => Some(spec),
            Self::Linux(_) => None,
        }
    }

    /// Returns the port of a Linux HCA.
    pub(crate) const fn linux(&self) -> Option<&LinuxSpec> {
        match self {
            Self::Ibsim(_) => None,
            Self::Linux(spec) => Some(spec),
        }
    }
}

/// Nodes of a simulator to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IbsimSpec {
    /// Which simulator.
    pub simulator: IbsimAddress,
    /// Which nodes of it, by id or description.
    pub nodes: Vec<String>,
}

/// A port of a Linux HCA to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinuxSpec {
    /// Name of the device, as `ibstat -l` lists it.
    pub device: String,
    /// The port.
    pub port: u8,
    /// `false` to leave the CM to the kernel: VFs have no connections by the CM.
    pub with_cm: bool,
}

/// Why a text does not tell where to attach.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AttachSpecError {
    /// It has another form.
    #[error(
        "expected ibsim:SOCKNAME/NODE[,NODE...], with the simulator's IBSIM_SOCKNAME, ibsim:udp:PORT/NODE[,NODE...], or \
         linux:DEVICE/PORT[,no-cm]"
    )]
    Form,
    /// A node's name is empty or too long.
    #[error("{0:?} is no name of a node: it has 1 to {MAX_NODE_NAME} bytes")]
    Node(String),
    /// The port is none.
    #[error("{0:?} is no UDP port")]
    Port(String),
    /// The port of the device is none.
    #[error("{0:?} is no port of a device: say linux:DEVICE/PORT, as in linux:mlx5_0/1")]
    DevicePort(String),
}

impl FromStr for AttachSpec {
    type Err = AttachSpecError;

    fn from_str(text: &str) -> Result<Self, AttachSpecError> {
        if let Some(rest) = text.strip_prefix("linux:") {
            return rest.parse().map(Self::Linux);
        }
        let rest = text.strip_prefix("ibsim:").ok_or(AttachSpecError::Form)?;
        rest.parse().map(Self::Ibsim)
    }
}

impl FromStr for LinuxSpec {
    type Err = AttachSpecError;

    fn from_str(text: &str) -> Result<Self, AttachSpecError> {
        let (at, with_cm) = match text.strip_suffix(",no-cm") {
            Some(at) => (at, false),
            None => (text, true),
        };
        let (device, port) = at.split_once('/').ok_or(AttachSpecError::Form)?;
        // A name is a folder of sysfs.
        if device.is_empty() || device.starts_with('.') {
            return Err(AttachSpecError::Form);
        }
        let number = port.parse().ok().filter(|port| *port != 0);
        Ok(Self {
            device: device.to_owned(),
            port: number.ok_or_else(|| AttachSpecError::DevicePort(port.to_owned()))?,
            with_cm,
        })
    }
}

impl FromStr for IbsimSpec {
    type Err = AttachSpecError;

    fn from_str(rest: &str) -> Result<Self, AttachSpecError> {
        let (simulator, nodes) = rest.split_once('/').ok_or(AttachSpecError::Form)?;
        let nodes = nodes.split(',').map(str::to_owned).collect::<Vec<_>>();
        let bad = |node: &&String| node.is_empty() || node.len() > MAX_NODE_NAME;
        if let Some(node) = nodes.iter().find(bad) {
            return Err(AttachSpecError::Node(node.clone()));
        }
        Ok(Self {
            simulator: address(simulator)?,
            nodes,
        })
    }
}

/// Where a simulator is: a base of socket names, or `udp:` and a port.
fn address(text: &str) -> Result<IbsimAddress, AttachSpecError> {
    match text.strip_prefix("udp:") {
        Some(port) => {
            let number = port.parse().ok().filter(|port| *port != 0);
            let number = number.ok_or_else(|| AttachSpecError::Port(port.to_owned()))?;
            Ok(IbsimAddress::Udp(number))
        }
        None if text.is_empty() => Err(AttachSpecError::Form),
        None => Ok(IbsimAddress::Unix(text.to_owned())),
    }
}

impl fmt::Display for AttachSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ibsim(spec) => spec.fmt(f),
            Self::Linux(spec) => spec.fmt(f),
        }
    }
}

impl fmt::Display for LinuxSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "linux:{}/{}", self.device, self.port)?;
        match self.with_cm {
            true => Ok(()),
            false => f.write_str(",no-cm"),
        }
    }
}

impl fmt::Display for IbsimSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.simulator {
            IbsimAddress::Unix(base) => write!(f, "ibsim:{base}/"),
            IbsimAddress::Udp(port) => write!(f, "ibsim:udp:{port}/"),
        }?;
        f.write_str(&self.nodes.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_to_attach_is_read_and_written() {
        for text in [
            "linux:mlx5_0/1",
            "linux:vhca0/2,no-cm",
            "ibsim:sim/H-2",
            "ibsim:a:b/H-2,H-3",
            "ibsim:udp:7070/host 1",
        ] {
            let spec: AttachSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
        let spec: IbsimSpec = "udp:7070/a,b".parse().unwrap();
        assert_eq!(spec.simulator, IbsimAddress::Udp(7070));
        assert_eq!(spec.nodes, ["a", "b"]);
    }

    #[test]
    fn a_wrong_text_says_what_is_wrong_with_it() {
        let error = |text: &str| text.parse::<AttachSpec>().unwrap_err();
        for text in [
            "",
            "sim/H-2",
            "ibsim:sim",
            "ibsim:/H-2",
            "linux:mlx5_0",
            "linux:../1",
            "linux:/1",
        ] {
            assert_eq!(error(text), AttachSpecError::Form);
        }
        assert_eq!(error("ibsim:s/"), AttachSpecError::Node(String::new()));
        let long = "x".repeat(32);
        let node = AttachSpecError::Node(long.clone());
        assert_eq!(error(&format!("ibsim:s/a,{long}")), node);
        for port in ["0", "256", "x", "1,cm"] {
            let text = format!("linux:mlx5_0/{port}");
            assert_eq!(error(&text), AttachSpecError::DevicePort(port.to_owned()));
        }
        for port in ["0", "70000", "x"] {
            let text = format!("ibsim:udp:{port}/a");
            assert_eq!(error(&text), AttachSpecError::Port(port.to_owned()));
        }
    }
}
