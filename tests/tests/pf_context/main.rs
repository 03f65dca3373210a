//! A PF context and its VFs on an adapter: once on the functions of an
//! emulated adapter, and once on virtual functions in software over its physical one.

mod divided;
mod emulated;
