//! Where to attach.

use core::fmt;
use core::str::FromStr;

use thiserror::Error;

use crate::serve::ibsim::sockets::IbsimAddress;

/// Bytes of a node's name at most: the protocol has 32, of which the last is zero.
const MAX_NODE_NAME: usize = 31;

/// Nodes of a simulator to attach to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachSpec {
    /// Which simulator.
    pub simulator: IbsimAddress,
    /// Which nodes of it, by id or description.
    pub nodes: Vec<String>,
}

/// Why a text does not tell where to attach.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AttachSpecError {
    /// It has another form.
    #[error(
        "expected ibsim:SOCKNAME/NODE[,NODE...], with the simulator's IBSIM_SOCKNAME, or ibsim:udp:PORT/NODE[,NODE...]"
    )]
    Form,
    /// A node's name is empty or too long.
    #[error("{0:?} is no name of a node: it has 1 to {MAX_NODE_NAME} bytes")]
    Node(String),
    /// The port is none.
    #[error("{0:?} is no UDP port")]
    Port(String),
}

impl FromStr for AttachSpec {
    type Err = AttachSpecError;

    fn from_str(text: &str) -> Result<Self, AttachSpecError> {
        let rest = text.strip_prefix("ibsim:").ok_or(AttachSpecError::Form)?;
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
    fn a_simulator_and_its_nodes_are_read_and_written() {
        for text in [
            "ibsim:sim/H-2",
            "ibsim:a:b/H-2,H-3",
            "ibsim:udp:7070/host 1",
        ] {
            let spec: AttachSpec = text.parse().unwrap();
            assert_eq!(spec.to_string(), text);
        }
        let spec: AttachSpec = "ibsim:udp:7070/a,b".parse().unwrap();
        assert_eq!(spec.simulator, IbsimAddress::Udp(7070));
        assert_eq!(spec.nodes, ["a", "b"]);
    }

    #[test]
    fn a_wrong_text_says_what_is_wrong_with_it() {
        let error = |text: &str| text.parse::<AttachSpec>().unwrap_err();
        for text in ["", "sim/H-2", "ibsim:sim", "ibsim:/H-2"] {
            assert_eq!(error(text), AttachSpecError::Form);
        }
        assert_eq!(error("ibsim:s/"), AttachSpecError::Node(String::new()));
        let long = "x".repeat(32);
        let node = AttachSpecError::Node(long.clone());
        assert_eq!(error(&format!("ibsim:s/a,{long}")), node);
        for port in ["0", "70000", "x"] {
            let text = format!("ibsim:udp:{port}/a");
            assert_eq!(error(&text), AttachSpecError::Port(port.to_owned()));
        }
    }
}
