//! What exercises the machines of vhca: none of this runs in a service or a VMM.
//!
//! * [`demo`] brings a subnet up and has guests talk; [`drain`] does so over a faulty fabric, by [`conversations`].
//! * [`mod@bench`] measures.
//! * [`embedded`] has guests without a hypervisor, each a thread with a driver, on the VFs of a world in this process.
//! * [`replay`] runs the PF's mux on a script.

#![forbid(unsafe_code)]

pub mod bench;
pub mod conversations;
pub mod demo;
pub mod drain;
pub mod embedded;
pub mod replay;
