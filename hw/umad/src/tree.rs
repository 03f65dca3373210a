//! Names of trees of files.

use core::fmt;

use linux_abi::sysfs::View;

use crate::adapters::{AdapterId, Adapters, Verbs};
use crate::sysfs;

/// Names a tree: the devices that it shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TreeId {
    /// Adapters, in the order in which the program sees them.
    pub adapters: Vec<AdapterId>,
    /// Classes of libibverbs, if the service has them.
    pub verbs: Option<Verbs>,
    /// Name of the device of libibverbs, if it is not the next after the adapters.
    pub name: Option<String>,
}

impl fmt::Display for TreeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, adapter) in self.adapters.iter().enumerate() {
            let plus = if index > 0 { "+" } else { "" };
            write!(f, "{plus}{}", adapter.0)?;
        }
        match self.verbs.map(|verbs| verbs.device) {
            Some(Some(device)) => write!(f, "-v{}", device.0)?,
            Some(None) => f.write_str("-v")?,
            None => {}
        }
        match &self.name {
            Some(name) => write!(f, "={name}"),
            None => Ok(()),
        }
    }
}

impl TreeId {
    /// Returns the devices as they are now. `None` if an adapter is gone.
    #[must_use]
    pub fn view(&self, adapters: &mut dyn Adapters) -> Option<View> {
        let views = self.adapters.iter().map(|id| adapters.view(*id));
        let views: Option<Vec<_>> = views.collect();
        let mut devices = sysfs::devices(&views?);
        let verbs = self.verbs.unwrap_or_default();
        match (verbs.device, devices.first_mut()) {
            (Some(device), Some(adapter)) if verbs.is_adapter => {
                let name = adapter.name.clone();
                let files = adapters
                    .verbs_device(device, name)
                    .map(|device| device.files);
                adapter.files.extend(files.into_iter().flatten());
            }
            (Some(device), _) => {
                let numbered = || sysfs::name(self.adapters.len());
                let name = self.name.clone().unwrap_or_else(numbered);
                devices.extend(adapters.verbs_device(device, name));
            }
            (None, _) => {}
        }
        Some(View {
            devices,
            has_verbs: self.verbs.is_some(),
        })
    }
}
