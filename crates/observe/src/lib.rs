//! What any process can say about itself: the machine it runs on, where its time goes, and charts of numbers.
//! Knows no domain type: no batch, no table, no model. Prints nothing and opens no file but `/proc` and `/etc`.

pub mod machine;
pub mod plot;
pub mod stages;

pub use machine::{Machine, Resident, SimdLevel};
pub use stages::{StageTimer, StageTotal, Stages};
