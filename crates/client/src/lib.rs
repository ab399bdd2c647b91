//! The trainer's side of the tables: deduplicate a minibatch's keys, pull their rows, push their gradients.
//!
//! Embedded: the tables live in this process. The crate knows no file and no model; what a row means is the caller's.

mod lookup;
pub use lookup::{CONSTANT_KEY, Lookup, TableLookup};

mod embedded;
pub use embedded::{Client, ClientError};

mod online;
pub use online::{Handles, Online};
