//! A VF that a program holds itself.
//!
//! [`ProxyQp`] carries the MADs of [`ib_endpoint`]'s machines through the tunnel, so that
//! [`ib_endpoint::EndPort::open_on`] gives a VF everything that a host has on a port: SA client, CM, the
//! reading of the port. That there is no special QP below stays hidden.

mod proxy_qp;

pub use proxy_qp::ProxyQp;
