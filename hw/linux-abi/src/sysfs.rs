//! Devices in `/sys`, as the kernel writes them (`drivers/infiniband/core/sysfs.c`, `user_mad.c`, `uverbs_main.c`).

mod attributes;
mod device;
mod read;
mod view;

pub use attributes::{Adapter, Port};
pub use device::{CharacterDevice, DOMAIN, Device, Entry, PciSlot};
pub use view::{
    FIRST_ISSM, FIRST_UVERBS, MAD_ABI_VERSION, MAJOR, RDMA_CM, RDMA_CM_ABI_VERSION,
    VERBS_ABI_VERSION, View,
};
