//! Tables of rows, and the sources of the rows.

use emulated_hca::NodeId;
use vf_tunnel::VfId;
use vhca_control::table::{Cell, Column, column};

use super::{NamedPf, Scene, VmmRow};

/// A row of a table: a value for each of its columns.
pub(super) trait Row {
    /// The columns.
    const COLUMNS: &'static [Column<'static>];

    /// Returns the values, one for each column.
    fn cells(&self) -> Vec<Cell>;

    /// Returns true if the row is a VF's, or the VF is a member of what it is about.
    fn is_of(&self, _vf: VfId) -> bool {
        false
    }

    /// Returns true if something is wrong with what the row is about.
    fn has_problem(&self) -> bool {
        false
    }
}

/// Which rows are wanted: all by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Those of this node only.
    pub node: Option<NodeId>,
    /// Those of the node's VF only.
    pub vf: Option<VfId>,
    /// Those with something wrong only.
    pub problems: bool,
}

impl Filter {
    /// Returns true if rows of a node are wanted.
    pub(super) fn takes_node(&self, node: NodeId) -> bool {
        self.node.is_none_or(|only| only == node)
    }

    /// Returns true if a row of a wanted node is wanted.
    pub(super) fn takes(&self, row: &impl Row) -> bool {
        self.vf.is_none_or(|vf| row.is_of(vf)) && (!self.problems || row.has_problem())
    }
}

/// The values of some rows.
pub(super) type Cells = Box<dyn Iterator<Item = Vec<Cell>>>;

/// Returns the values of the wanted rows of one host or node, by its place, or `None` behind the last one.
type Part = Box<dyn Fn(&Scene<'_>, &Filter, usize) -> Option<Cells>>;

/// A table: its rows come part by part, so that a large one can be written in many turns.
pub(super) struct Table {
    pub(super) name: &'static str,
    pub(super) columns: Vec<Column<'static>>,
    pub(super) part: Part,
}

/// The column of the host's name in tables of what PFs have.
const HOST: Column<'static> = column("host").shrinks_to(8);

impl Table {
    /// Returns a table whose parts are the rows of one PF each, with the name of its host in front.
    pub(super) fn of_pfs<R: Row + 'static>(
        name: &'static str,
        rows: impl Fn(&Scene<'_>, &NamedPf<'_>) -> Vec<R> + 'static,
    ) -> Self {
        let part = move |scene: &Scene<'_>, filter: &Filter, place: usize| {
            let pf = scene.pfs.get(place)?;
            let wanted = if filter.takes_node(pf.node) {
                cells(rows(scene, pf), filter)
            } else {
                cells(Vec::<R>::new(), filter)
            };
            let name = Cell::of(pf.name);
            let cells = wanted.map(move |mut cells| {
                cells.insert(0, name.clone());
                cells
            });
            Some(Box::new(cells) as Cells)
        };
        Self {
            name,
            columns: [&[HOST], R::COLUMNS].concat(),
            part: Box::new(part),
        }
    }

    /// Returns a table whose parts are the rows of one node of the fabric each.
    pub(super) fn of_nodes<R: Row + 'static>(
        name: &'static str,
        rows: impl Fn(&Scene<'_>, NodeId) -> Vec<R> + 'static,
    ) -> Self {
        Self::of_links(name, move |scene, filter, node| {
            if filter.takes_node(node) {
                rows(scene, node)
            } else {
                Vec::new()
            }
        })
    }

    /// The same where a row can be of two nodes.
    pub(super) fn of_links<R: Row + 'static>(
        name: &'static str,
        rows: impl Fn(&Scene<'_>, &Filter, NodeId) -> Vec<R> + 'static,
    ) -> Self {
        let part = move |scene: &Scene<'_>, filter: &Filter, place: usize| {
            let (node, _) = scene.fabric.nodes().nth(place)?;
            Some(cells(rows(scene, filter, node), filter))
        };
        Self {
            name,
            columns: R::COLUMNS.to_vec(),
            part: Box::new(part),
        }
    }

    /// Returns a table of the service, which has one part.
    pub(super) fn of_service<R: Row + 'static>(
        name: &'static str,
        rows: impl Fn(&Scene<'_>) -> Vec<R> + 'static,
    ) -> Self {
        let part = move |scene: &Scene<'_>, filter: &Filter, place: usize| {
            (place == 0).then(|| cells(rows(scene), filter))
        };
        Self {
            name,
            columns: R::COLUMNS.to_vec(),
            part: Box::new(part),
        }
    }

    /// Returns the table of the VFs that are offered to VMMs.
    pub(super) fn of_vmms() -> Self {
        let part = |scene: &Scene<'_>, filter: &Filter, place: usize| {
            let pf = scene.pfs.get(place)?;
            let rows = if filter.takes_node(pf.node) {
                scene.vmms.of_host(pf.name)
            } else {
                Vec::new()
            };
            Some(cells(rows, filter))
        };
        Self {
            name: "vmms",
            columns: VmmRow::COLUMNS.to_vec(),
            part: Box::new(part),
        }
    }
}

/// Returns the values of the rows that are wanted.
fn cells<R: Row + 'static>(mut rows: Vec<R>, filter: &Filter) -> Cells {
    rows.retain(|row| filter.takes(row));
    Box::new(rows.into_iter().map(|row| row.cells()))
}
