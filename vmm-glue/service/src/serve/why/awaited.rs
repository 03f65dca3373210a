//! Nodes of simulators that are not attached yet.

use std::collections::BTreeMap;

use vhca_control::Refusal;

use crate::show::AwaitedRow;

/// Nodes of simulators whose hosts are not there yet, by simulator and node, and why they are not.
#[derive(Debug, Default)]
pub(in crate::serve) struct Awaited(BTreeMap<(String, String), String>);

impl Awaited {
    /// Notes why a node is not attached, or that it is.
    pub(in crate::serve) fn note(&mut self, simulator: &str, node: &str, why_not: Option<String>) {
        let key = (simulator.to_owned(), node.to_owned());
        match why_not {
            Some(why) => self.0.insert(key, why),
            None => self.0.remove(&key),
        };
    }

    pub(in crate::serve) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The nodes, or the one of a host's name.
    pub(in crate::serve) fn rows(&self, host: Option<&str>) -> Vec<AwaitedRow> {
        let rows = self.0.iter().map(|((simulator, node), reason)| AwaitedRow {
            simulator: simulator.clone(),
            node: node.clone(),
            reason: reason.clone(),
        });
        rows.filter(|row| host.is_none_or(|host| host == row.node))
            .collect()
    }

    /// Returns why a host, or any, has no VFs, if it is awaited.
    pub(in crate::serve) fn refusal(&self, host: Option<&str>) -> Option<Refusal> {
        let AwaitedRow {
            simulator,
            node,
            reason,
        } = self.rows(host).into_iter().next()?;
        let message = format!(
            "{node} has no VFs yet: {simulator} is not attached: {reason}; start the simulator, or see its log: \
             vhca attaches as soon as it can"
        );
        Some(Refusal::new("not_attached", message))
    }
}
