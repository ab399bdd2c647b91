//! Charts as SVG text: lines, receiver operating characteristic, calibration, horizontal bars.
//! The text is meant to stand inside an HTML page: it has a `viewBox` and no size, so that it scales with its column;
//! no `id`, so that any number fit on one page; no background, so that the page's shows through; and it names no
//! other resource. [`standalone`] makes a file of it. Knows numbers and labels only, not what they mean.

mod axis;
mod bars;
mod curves;
mod frame;
mod lines;

pub use bars::{Bar, bars};
pub use curves::{CalibrationPoint, calibration, roc};
pub use frame::{GRID, INK, Look, MUTED, PALETTE, standalone};
pub use lines::{Figure, LineChart, Series};
