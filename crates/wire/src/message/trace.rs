//! The place of a request in a distributed trace, as OpenTelemetry numbers it. Knows no exporter.

use crate::WireError;
use crate::reader::Reader;
use crate::writer::Writer;

/// The trace that a request belongs to, and the client's span of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// Upper half of the trace id.
    pub trace_high: u64,
    /// Lower half of the trace id. The id is not 0.
    pub trace_low: u64,
    /// Id of the client's span. It is not 0.
    pub span: u64,
}

impl Trace {
    pub(crate) fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        [self.trace_high, self.trace_low, self.span].into_iter().for_each(|number| out.u64(number));
        Ok(())
    }

    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Trace, WireError> {
        Ok(Trace { trace_high: from.u64("trace")?, trace_low: from.u64("trace")?, span: from.u64("span")? })
    }
}
