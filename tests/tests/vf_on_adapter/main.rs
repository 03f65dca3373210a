//! VFs that programs hold on an adapter: once on the functions of an
//! emulated adapter, and twice on virtual functions in software: over its physical one, and over the least of it.

mod divided;
mod emulated;
mod plain;
