//! What tables of wire ids are made of: ids that nobody can guess and their owner can decode, and an
//! index that nobody can flood.

mod index;
mod keyed_hash;
mod permutation;
mod trail;
mod universal_hash;

pub use index::{Index, NO_SLOT};
pub use keyed_hash::KeyedHash;
pub use permutation::{LANES, Permutation};
pub use trail::{NEAR, Trail};
pub use universal_hash::UniversalHash;
