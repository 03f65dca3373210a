//! RC and UC queue pairs of virtual functions.

use hca_api::{FunctionId, Hca, HcaError, MigrationState, PortState, QpHandle, QpModify, QpState};
use ib_wire::PKeyIndex;

use crate::pair::Pair;
use crate::vf::Vf;

impl Pair {
    /// Returns the change of the adapter's queue pair for one of the consumer's, which leads to `state`, and the pair after it.
    ///
    /// # Errors
    /// [`HcaError::InvalidPort`] and [`HcaError::InvalidIndex`] also if the queue pair is to carry messages, and the port of the
    /// function is not active, or the function has no P_Key at the index.
    pub(crate) fn change_connection(
        mut self,
        (vf, id): (&Vf, FunctionId),
        change: &QpModify,
        state: QpState,
    ) -> Result<(Self, QpModify), HcaError> {
        // The view of an alternate path's port is not followed.
        let migrates = change
            .migration
            .is_some_and(|to| to != MigrationState::Migrated);
        if change.alternate.is_some() || migrates {
            return Err(HcaError::Unsupported);
        }
        self.port = change.port.or(self.port);
        self.pkey_index = change.pkey_index.unwrap_or(self.pkey_index);
        let mut physical = *change;
        if let Some(path) = &change.primary {
            if Some(path.port) != self.port {
                return Err(HcaError::InvalidPort);
            }
            physical.primary = Some(vf.physical_vector(id, path)?);
        }
        let Some(port) = self.port else {
            return Ok((self, physical));
        };
        self.check_index(vf, port, change)?;
        let passage = vf.passage(port, self.pkey_index);
        if carries(state) && passage.is_none() {
            let is_active = vf.port(port)?.view.state == PortState::Active;
            return Err(if is_active {
                HcaError::InvalidIndex
            } else {
                HcaError::InvalidPort
            });
        }
        self.physical = passage.unwrap_or(self.physical);
        // It was not taken to RTR with the view that there is now.
        let is_named = change.pkey_index.is_some() || change.state == Some(QpState::ReadyToReceive);
        physical.pkey_index = is_named.then_some(self.physical);
        Ok((self, physical))
    }
}

/// Returns `true` if a queue pair in the state carries messages (IBA 10.3.1).
const fn carries(state: QpState) -> bool {
    !matches!(state, QpState::Reset | QpState::Init | QpState::Error)
}

/// Makes a connection of the adapter follow the view of its port. Messages stop at once where they may not pass: the queue pair
/// goes to the error state, and `true` is returned.
pub(crate) fn follow_connection(
    hca: &mut dyn Hca,
    qp: QpHandle,
    pair: &Pair,
    passage: Option<PKeyIndex>,
) -> Result<bool, HcaError> {
    let is_severed = passage != Some(pair.physical) && carries(hca.query_qp(qp)?.state);
    if is_severed {
        let error = QpModify {
            state: Some(QpState::Error),
            ..QpModify::default()
        };
        hca.modify_qp(qp, &error)?;
    }
    Ok(is_severed)
}
