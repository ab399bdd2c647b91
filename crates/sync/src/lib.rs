//! Where workers meet that go in step: the parts of a step's gradients come in, and when all are there their sums go out, to
//! be applied once; how far everybody is; meetings at which everybody's bytes are given to all.
//!
//! A state machine: it deliberately knows no network, no thread that waits, no clock and no table. A parameter server has
//! one [`Place`] for all its clients; workers that are threads of one process share one [`Group`].
//!
//! The way of a step: each worker hands in what it has ([`Group::take`]), to several servers perhaps, and when all of them
//! have it says so to each ([`Said::Whole`]). Where everybody has said so, the step is decided: [`Group::begin`] gives what
//! was handed in, [`Complete::each`] the sums, [`Group::end`] notes that they are applied. Since nobody says so before all
//! servers have its part, a worker that dies leaves a step that is decided nowhere, or one that can be completed everywhere.

pub mod limit;

mod refused;
pub use refused::Refused;

mod budget;
pub use budget::{Budget, Held};

mod fixed;
pub use fixed::{Adding, Fixed, OutOfRange};

mod part;
pub use part::{Gradients, Part};

mod sum;
pub use sum::{Complete, OfTable, Sums, Uneven};

mod rounds;
pub use rounds::Met;

mod group;
pub use group::{Group, Progress, Said, Who};

mod place;
pub use place::Place;
