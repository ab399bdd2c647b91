//! The spans of minibatches whose trainers trace them: made, in the queue, leased. Knows no connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use sanderling_observe::spans::{Attribute, SpanKind, unix_ns};
use sanderling_observe::{SpanContext, SpanQueue, TraceSpan};
use sanderling_wire::Trace;

use super::leases::Minibatch;

/// A minibatch that a connection's trainer holds.
#[derive(Debug)]
struct Leased {
    batch: Arc<Minibatch>,
    since: Instant,
}

/// The minibatches of one connection, which has no more of them than the window of its trainer.
#[derive(Debug, Default)]
pub(super) struct Traced {
    leased: BTreeMap<u64, Leased>,
    /// The trainer's span of the minibatch that the next request acknowledges.
    next: Option<SpanContext>,
}

impl Traced {
    /// The next request belongs to a trace.
    pub(super) fn announce(&mut self, trace: &Trace) {
        let Trace { trace_high, trace_low, span } = *trace;
        let trace = u128::from(trace_high) << 64 | u128::from(trace_low);
        self.next = (trace != 0 && span != 0).then_some(SpanContext { trace, span });
    }

    /// The trainer gets a minibatch.
    pub(super) fn lease(&mut self, number: u64, batch: &Arc<Minibatch>) {
        self.leased.insert(number, Leased { batch: Arc::clone(batch), since: Instant::now() });
    }

    /// The trainer acknowledges minibatches. The announced trace is that of the first.
    pub(super) fn acknowledge(&mut self, numbers: &[u64], spans: &SpanQueue) {
        let mut trace = self.next.take();
        for number in numbers {
            let leased = self.leased.remove(number);
            if let (Some(leased), Some(step)) = (leased, trace.take()) {
                spans.add(leased.spans(*number, step));
            }
        }
    }
}

impl Leased {
    fn spans(&self, number: u64, step: SpanContext) -> Vec<TraceSpan> {
        let Leased { batch, since } = self;
        let ((begun, made), now, own) = (batch.made, Instant::now(), step.child());
        let numbers = [
            ("sanderling.minibatch", number),
            ("sanderling.pass", batch.pass),
            ("sanderling.rows", batch.rows.into()),
            ("sanderling.bytes", batch.payload.len() as u64),
        ];
        let attributes = numbers.map(|(name, number)| (name, Attribute::Number(number as i64)));
        let root = TraceSpan {
            context: own,
            parent: Some(step.span),
            name: "minibatch".to_owned(),
            kind: SpanKind::Server,
            start_unix_ns: unix_ns(begun),
            took: now.saturating_duration_since(begun),
            attributes: attributes.to_vec(),
            failure: None,
        };
        let stages = [("make", begun, made), ("queue", made, *since), ("lease", *since, now)];
        let stages = stages.map(|(name, began, ended)| {
            TraceSpan::stage(own, name, began, ended.saturating_duration_since(began))
        });
        std::iter::once(root).chain(stages).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_trainer_traces_has_spans() {
        let (spans, now) = (SpanQueue::new(0), Instant::now());
        let batch = Arc::new(Minibatch { pass: 1, rows: 2, payload: vec![3; 4], made: (now, now) });
        let mut traced = Traced::default();
        (0..4).for_each(|number| traced.lease(number, &batch));
        traced.acknowledge(&[0], &spans);
        assert!(spans.take(9).is_empty());
        let trace = |trace_low| Trace { trace_high: 0, trace_low, span: 5 };
        traced.announce(&trace(0));
        traced.acknowledge(&[1], &spans);
        assert!(spans.take(9).is_empty());
        traced.announce(&trace(7));
        traced.acknowledge(&[2, 3], &spans);
        let found = spans.take(9);
        let names: Vec<&str> = found.iter().map(|span| &*span.name).collect();
        assert_eq!(names, ["minibatch", "make", "queue", "lease"]);
        assert_eq!((found[0].context.trace, found[0].parent), (7, Some(5)));
        assert!(found[1..].iter().all(|span| span.parent == Some(found[0].context.span)));
        assert!(found[0].attributes.contains(&("sanderling.minibatch", Attribute::Number(2))));
        // It was announced for one request.
        traced.lease(4, &batch);
        traced.acknowledge(&[4], &spans);
        assert!(spans.take(9).is_empty() && traced.leased.is_empty());
    }
}
