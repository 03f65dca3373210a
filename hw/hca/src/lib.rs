//! The HCA as software sees it: the verbs-provider interface.
#![forbid(unsafe_code)]

mod address;

pub use address::{AddressVector, GlobalRoute, SourceAddress};
