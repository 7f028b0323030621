//! Hash tables for what each request of a program looks up.
//!
//! Owns the choice of their hash function. The functions of the standard library withstand keys that
//! are chosen to collide, and took a seventh of the instructions of a create. This one has a random
//! seed for each table, so somebody who does not see the hashes cannot choose such keys either, as far as
//! is known. Must never be used where hashes leave the process.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

/// A map with the fast hash function.
pub type FastMap<K, V> = HashMap<K, V, RandomState>;

/// A set with the fast hash function.
pub type FastSet<T> = HashSet<T, RandomState>;
