//! Traces of steps that a hub feeds: one tree from the trainer's step to the minibatch at the hub and the rows at the server.

use sanderling_observe::SpanQueue;
use sanderling_otlp::{Exporter, Resource};
use sanderling_testkit::{CollectedSpan, Collector};

use super::*;

/// Names of the spans below one, in order.
fn below(all: &[CollectedSpan], parent: &CollectedSpan) -> Vec<(String, CollectedSpan)> {
    let is_child = |span: &&CollectedSpan| {
        span.text("traceId") == parent.text("traceId") && span.text("parentSpanId") == parent.text("spanId")
    };
    let named = all.iter().filter(is_child).map(|span| (span.text("name").to_owned(), span.clone()));
    let mut found: Vec<_> = named.collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn names(children: &[(String, CollectedSpan)]) -> Vec<&str> {
    children.iter().map(|(name, _)| &**name).collect()
}

#[test]
fn a_step_is_one_tree_with_its_minibatch_and_its_rows() {
    let (dir, collector) = (folder(), Collector::start());
    let url = collector.url();
    let at = format!("unix:{}/ps", dir.path().display());
    let _ps = Process::start_at(dir.path(), &at, 1, TO_FILE, &format!("--no-local --otlp {url}"));
    let hub = hub(dir.path(), &format!("--listen 127.0.0.1:0 --otlp {url}"));
    let spans = SpanQueue::new(1);
    let resource = Resource { service: "trainer".to_owned(), ..Resource::default() };
    let exporter = Exporter::start(url.parse().unwrap(), resource, Arc::clone(&spans), |_| {}).unwrap();
    let options = ConnectOptions { spans: Some(Arc::clone(&spans)), ..ConnectOptions::default() };
    let cluster = Cluster::connect(&sanderling_client::addresses(&at).unwrap(), options).unwrap();
    let sgd = Optimizer::Sgd { lr: 1.0, l2: 0.0 };
    let tables = FEATURES.map(|feature| {
        RemoteTable::create(&cluster, &TableConfig::single(feature, DIM, Init::Zero, sgd)).unwrap()
    });
    let embedding = embedding(&tables, Pooling::SUM);
    let options = SubscribeOptions { spans: Some(spans), ..SubscribeOptions::default() };
    let source = Source::hubs(&super::url(&[&hub]), "t", &options).unwrap();
    let queue = FeedQueue::open(source, Some(Arc::clone(&embedding)), QueueOptions::default()).unwrap();
    let trained = train(&queue, usize::MAX);
    drop((queue, embedding, exporter));
    eventually("not all steps are whole trees", || {
        let all = collector.spans();
        let steps = all.iter().filter(|span| span.text("name") == "step");
        let steps: Vec<&CollectedSpan> = steps.collect();
        let is_whole = |step: &CollectedSpan| {
            assert_eq!((&*step.service, step.text("parentSpanId")), ("trainer", ""));
            let children = below(&all, step);
            let of = |name: &str, service: &str| {
                let found = children.iter().find(|(found, span)| found == name && span.service == service);
                found.map(|(_, span)| span)
            };
            let Some(minibatch) = of("minibatch", "sanderling-hub") else { return false };
            assert_eq!(minibatch.attribute("sanderling.minibatch"), step.attribute("sanderling.minibatch"));
            assert_eq!(minibatch.attribute("sanderling.rows"), Some(&*BATCH.to_string()));
            assert_eq!(names(&below(&all, minibatch)), ["lease", "make", "queue"]);
            let served = |name: &str| {
                let is_request =
                    |(found, span): &&(String, CollectedSpan)| found == name && span.span["kind"] == 3;
                let requests: Vec<_> = children.iter().filter(is_request).collect();
                let at_server = |(_, request): &&(String, CollectedSpan)| {
                    below(&all, request).iter().any(|(_, span)| span.service == "sanderling-ps")
                };
                !requests.is_empty() && requests.iter().all(at_server)
            };
            let found = names(&children);
            let stages = ["lookup", "queue", "train", "push"];
            stages.iter().all(|name| found.contains(name)) && served("pull") && served("push")
        };
        steps.len() == trained && steps.iter().all(|step| is_whole(step))
    });
}
