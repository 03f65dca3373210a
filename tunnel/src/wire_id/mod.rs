//! What tables of wire ids are made of: ids that nobody can guess and their owner can decode, and an
//! index that nobody can flood.

mod index;
mod keyed_hash;
mod permutation;
mod trail;

pub use index::{Index, NO_SLOT};
pub use keyed_hash::KeyedHash;
pub use permutation::Permutation;
pub use trail::{NEAR, Trail};
