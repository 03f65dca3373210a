//! Protection domains. The guest's driver numbers its own and never announces them: a number first
//! appears inside the context of a queue or a region, and is a tag that is compared for equality.

use std::collections::BTreeMap;

use hca_api::{AccessFlags, Hca, HcaError, LKey, MrHandle, MrKind, MrSpec, PdHandle};
use mlx4_defs::{Pdn, Status};

/// A domain of the guest.
#[derive(Debug)]
struct Pd {
    handle: PdHandle,
    /// Queues and regions that belong to it.
    users: u32,
    /// All of the guest's memory, for its kernel. Made when the kernel first uses it.
    whole: Option<(MrHandle, LKey)>,
}

/// The guest's domains that have something in them.
#[derive(Debug, Default)]
pub(super) struct Pds {
    by_tag: BTreeMap<Pdn, Pd>,
}

/// Keys of the regions behind the reserved key: beyond every key that a guest can choose, and one for
/// each of the 2^17 domains.
const WHOLE_SPACE_KEYS: u32 = 0x8000_0000;

impl Pds {
    /// The domain with a tag, for one more object in it.
    ///
    /// # Errors
    /// [`Status::EXCEED_LIM`].
    pub(super) fn acquire(&mut self, hca: &mut dyn Hca, tag: Pdn) -> Result<PdHandle, Status> {
        if let Some(pd) = self.by_tag.get_mut(&tag) {
            pd.users += 1;
            return Ok(pd.handle);
        }
        let handle = hca.alloc_pd().map_err(|_| Status::EXCEED_LIM)?;
        let pd = Pd {
            handle,
            users: 1,
            whole: None,
        };
        self.by_tag.insert(tag, pd);
        Ok(handle)
    }

    /// An object of the domain is gone. The last one takes the domain with it.
    pub(super) fn release(&mut self, hca: &mut dyn Hca, tag: Pdn) {
        let Some(pd) = self.by_tag.get_mut(&tag) else {
            return;
        };
        pd.users -= 1;
        if pd.users != 0 {
            return;
        }
        if let Some(Pd { handle, whole, .. }) = self.by_tag.remove(&tag) {
            let gone = whole.map_or(Ok(()), |(mr, _)| hca.deregister_mr(mr));
            let gone = gone.and_then(|()| hca.dealloc_pd(handle));
            debug_assert_eq!(gone, Ok(()), "whatever was in the domain is gone");
        }
    }

    /// The key that stands for the reserved key in a domain.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] if the domain has no object, [`Status::EXCEED_LIM`].
    pub(super) fn reserved_lkey(&mut self, hca: &mut dyn Hca, tag: Pdn) -> Result<LKey, Status> {
        let pd = self.by_tag.get_mut(&tag).ok_or(Status::BAD_PARAM)?;
        if let Some((_, lkey)) = pd.whole {
            return Ok(lkey);
        }
        let keys = hca
            .register_mr(&MrSpec {
                pd: pd.handle,
                kind: MrKind::WholeSpace,
                access: AccessFlags::LOCAL_WRITE,
                key: Some(WHOLE_SPACE_KEYS | tag.0 << 8),
            })
            .map_err(status_of)?;
        pd.whole = Some((keys.handle, keys.lkey));
        Ok(keys.lkey)
    }
}

/// How a command ends that the provider refused.
pub(super) const fn status_of(error: HcaError) -> Status {
    match error {
        HcaError::InsufficientResources | HcaError::QueueFull => Status::EXCEED_LIM,
        HcaError::InUse | HcaError::SpecialQpTaken => Status::RESOURCE_BUSY,
        HcaError::InvalidQpState => Status::BAD_QP_STATE,
        HcaError::PermissionDenied => Status::BAD_OP,
        HcaError::DeviceFailed => Status::INTERNAL_ERR,
        HcaError::InvalidHandle => Status::BAD_RESOURCE,
        _ => Status::BAD_PARAM,
    }
}
