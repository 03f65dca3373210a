//! VFs that programs hold, on a subnet with a manager: once on the functions of emulated adapters, and once on
//! virtual functions in software over their physical ones.

mod divided;
mod emulated;
