//! Measurements of a process by itself: the machine it runs on, where its time goes, how long things take, and charts of
//! numbers.
//! Knows no domain type: no batch, no table, no model. Prints nothing and opens no file but those of `/proc`, `/sys` and `/etc`.

mod cores;

pub mod distribution;
pub mod exposition;
pub mod latency;
pub mod latency_table;
pub mod machine;
pub mod numbers;
pub mod pattern;
pub mod plot;
pub mod spans;
pub mod stages;
pub mod threads;
pub mod trends;
pub mod unique;

pub use cores::cores_usable;
pub use distribution::{Magnitudes, Parts};
pub use exposition::{EXPOSITION_CONTENT_TYPE, Exposition, Labels};
pub use latency::{Latency, LatencySummary};
pub use latency_table::LatencyTable;
pub use machine::{Machine, Resident, SimdLevel};
pub use spans::{SpanContext, SpanQueue, SpanSampler, TraceSpan};
pub use stages::{StageTimer, StageTotal, StageWatch, Stages};
pub use threads::{ThreadStatus, threads};
pub use trends::{Series, Span, Trends};
pub use unique::unique;

/// The style sheet of our HTML pages. The colours of charts are those of [`plot::PALETTE`].
pub const PAGE_STYLE: &str = include_str!("page_style.css");
