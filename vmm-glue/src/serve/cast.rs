//! Which adapters play which part.

use emulated_hca::{HcaConfig, PlannedNode};

use super::{LabError, Options};

/// The name of an adapter that is taken for a management host's.
const MANAGER: &str = "mgmt";

/// Who plays which part, by the places of the adapters in the topology.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) manager: usize,
    pub(super) pfs: Vec<usize>,
}

impl Cast {
    pub(super) fn new(
        options: &Options,
        hcas: &[HcaConfig],
        names: &[(String, PlannedNode)],
    ) -> Result<Self, LabError> {
        let named = |wanted: &String| {
            let by_name = names.iter().find_map(|(name, node)| match node {
                PlannedNode::Hca(place) if name == wanted => Some(*place),
                _ => None,
            });
            let described = || hcas.iter().position(|hca| hca.description == *wanted);
            by_name.or_else(described).ok_or_else(|| {
                let known: Vec<&str> = hcas.iter().map(|hca| hca.description.as_str()).collect();
                LabError::NoSuchAdapter(wanted.clone(), known.join(", "))
            })
        };
        if hcas.is_empty() {
            return Err(LabError::NoAdapter);
        }
        let called_so = |place: &usize| is_for_management(&hcas[*place].description);
        let manager = match &options.manager {
            Some(name) => named(name)?,
            None => (0..hcas.len()).find(called_so).unwrap_or(0),
        };
        let pfs = if options.vfs == 0 {
            Vec::new()
        } else if options.pf.is_empty() {
            let plain = |place: &usize| *place == manager || called_so(place);
            (0..hcas.len()).filter(|place| !plain(place)).collect()
        } else {
            options.pf.iter().map(named).collect::<Result<_, _>>()?
        };
        Ok(Self { manager, pfs })
    }
}

/// Whether an adapter is called a management host's: `mgmt`, or `mgmt-` and something.
fn is_for_management(description: &str) -> bool {
    let rest = description.strip_prefix(MANAGER);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}
