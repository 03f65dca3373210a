//! The boundary between a VF and the PF.
#![forbid(unsafe_code)]
