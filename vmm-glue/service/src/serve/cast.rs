//! Which adapters play which part.

use emulated_hca::{PlannedNode, Topology};

use super::lab_error::LabError;
use super::options::{Options, SmChoice};

/// The name of an adapter that is taken for a management host's.
const MANAGER: &str = "mgmt";

/// Who plays which part, by the places of the adapters in the topology.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) manager: usize,
    pub(super) pfs: Vec<usize>,
    pub(super) bare: Vec<usize>,
}

impl Cast {
    pub(super) fn new(
        options: &Options,
        topology: &Topology,
        names: &[(String, PlannedNode)],
    ) -> Result<Self, LabError> {
        let hcas = &topology.hcas;
        if hcas.is_empty() {
            return Err(LabError::NoAdapter);
        }
        let named = |wanted: &String| find(wanted, topology, names);
        let called_so = |place: &usize| is_for_management(&hcas[*place].description);
        let manager = match &options.manager {
            Some(name) => named(name)?,
            None => (0..hcas.len()).find(called_so).unwrap_or(0),
        };
        let places = |option, wanted: &[String]| {
            let mut places = Vec::new();
            for name in wanted {
                let place = named(name)?;
                if let Some(before) = places.iter().position(|known| *known == place) {
                    let before = wanted[before].clone();
                    return Err(LabError::TwoNames(option, name.clone(), before));
                }
                places.push(place);
            }
            Ok(places)
        };
        let mut pfs = places("pf", &options.pf)?;
        let bare = places("bare", &options.bare)?;
        if let Some(both) = bare.iter().find(|place| pfs.contains(place)) {
            return Err(LabError::SharedBare(hcas[*both].description.clone()));
        }
        if options.sm == SmChoice::Lite && bare.contains(&manager) {
            return Err(LabError::ManagerBare(hcas[manager].description.clone()));
        }
        let is_given = options.manager.is_some() && options.sm == SmChoice::Lite;
        if is_given && pfs.contains(&manager) {
            return Err(LabError::ManagerShared(hcas[manager].description.clone()));
        }
        if options.vfs == 0 {
            pfs.clear();
        } else if pfs.is_empty() {
            let plain =
                |place: &usize| *place == manager || called_so(place) || bare.contains(place);
            pfs = (0..hcas.len()).filter(|place| !plain(place)).collect();
        }
        Ok(Self { manager, pfs, bare })
    }
}

/// Finds the place of an adapter by a name of its topology file or by its description.
fn find(
    wanted: &str,
    topology: &Topology,
    names: &[(String, PlannedNode)],
) -> Result<usize, LabError> {
    let by_name = names.iter().find(|(name, _)| name == wanted);
    if let Some((_, PlannedNode::Hca(place))) = by_name {
        return Ok(*place);
    }
    let hcas = &topology.hcas;
    if let Some(place) = hcas.iter().position(|hca| hca.description == wanted) {
        return Ok(place);
    }
    let known: Vec<&str> = hcas.iter().map(|hca| hca.description.as_str()).collect();
    let (wanted, known) = (wanted.to_owned(), known.join(", "));
    let mut switches = topology.switches.iter();
    Err(
        if by_name.is_some() || switches.any(|switch| switch.description == wanted) {
            LabError::Switch(wanted, known)
        } else {
            LabError::NoSuchAdapter(wanted, known)
        },
    )
}

/// Whether an adapter is called a management host's: `mgmt`, or `mgmt-` and something.
fn is_for_management(description: &str) -> bool {
    let rest = description.strip_prefix(MANAGER);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}
