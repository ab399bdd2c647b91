//! Traces by OTLP: the spans of a request from the trainer over the primary to the other replica, as a collector gets them,
//! and trainings whose collector is away.

use std::time::Instant;

use sanderling_testkit::{CollectedSpan, Collector};

use super::{LONG, Place, train};

const SPEC: &str = r#"
data.train = "d.csv"
label.column = "label"
feature = [{ column = "user", type = "categorical" }]
model.type = "lr"
optimizer = { type = "adagrad", lr = 0.05 }
train.batch_size = 2
"#;

fn write_run(place: &Place) {
    let rows: String = (0..40).map(|row| format!("{},u{}\n", row % 2, row % 7)).collect();
    std::fs::write(place.folder.path().join("d.csv"), format!("label,user\n{rows}")).unwrap();
    std::fs::write(place.folder.path().join("spec.toml"), SPEC).unwrap();
}

/// The spans below one, in the order of their begins.
fn below<'a>(all: &'a [CollectedSpan], parent: &CollectedSpan) -> Vec<&'a CollectedSpan> {
    let is_child = |span: &&CollectedSpan| {
        span.text("traceId") == parent.text("traceId") && span.text("parentSpanId") == parent.text("spanId")
    };
    let mut found: Vec<_> = all.iter().filter(is_child).collect();
    found.sort_by_key(|span| span.text("startTimeUnixNano").parse::<u64>().unwrap());
    found
}

/// The tree of one request of the trainer: its name, the stages at the server, and the servers of its replicas.
fn tree(all: &[CollectedSpan], root: &CollectedSpan) -> Option<(String, Vec<String>, Vec<String>)> {
    assert_eq!((&*root.service, root.text("parentSpanId")), ("sanderling-train", ""));
    let server = *below(all, root).first()?;
    assert_eq!((&*server.service, server.text("name")), ("sanderling-ps", root.text("name")));
    assert_eq!(server.span["kind"], 2);
    assert_eq!(server.attribute("sanderling.keys"), root.attribute("sanderling.keys"));
    assert!(
        server.attribute("sanderling.table").is_some_and(|name| name.starts_with("traced/")),
        "{server:?}"
    );
    let children = below(all, server);
    let stages = children.iter().filter(|span| span.span["kind"] == 1);
    let stages = stages.map(|span| span.text("name").to_owned()).collect();
    let replicas = children.iter().filter(|span| span.span["kind"] == 2);
    let mut replicas: Vec<String> = replicas
        .map(|span| {
            assert_eq!((&*span.service, span.text("name")), ("sanderling-ps", "replicate"));
            assert_ne!(span.attribute("sanderling.server"), span.attribute("sanderling.primary"));
            span.attribute("sanderling.server").unwrap_or_default().to_owned()
        })
        .collect();
    // A push that a busy follower acknowledges late is sent to it again.
    replicas.dedup();
    Some((root.text("name").to_owned(), stages, replicas))
}

#[test]
fn a_request_is_one_tree_from_the_trainer_to_the_replicas() {
    let collector = Collector::start();
    let url = collector.url();
    let place = Place::with(1, &format!("--otlp {url}"));
    write_run(&place);
    let record = place.settled(0, 0);
    let follower = record.group.in_sync[0].server.to_string();
    train(place.folder.path(), "traced", &place.keeper.url(), &["--otlp", &url, "--otlp-every", "1"], || {});
    let stages = ["wait", "decode", "work", "reply"].map(str::to_owned).to_vec();
    let pull = ("pull".to_owned(), stages.clone(), vec![]);
    let push = ("push".to_owned(), [stages, vec!["replicate".to_owned()]].concat(), vec![follower]);
    // On a busy machine the follower may fall silent, and the primary goes on without it for a while.
    let alone = (push.0.clone(), push.1.clone(), vec![]);
    let start = Instant::now();
    loop {
        let all = collector.spans();
        let roots = all.iter().filter(|span| span.span["kind"] == 3);
        let of_rows = roots.filter(|span| ["pull", "push"].contains(&span.text("name")));
        let trees: Vec<_> = of_rows.map(|root| tree(&all, root)).collect();
        let is_whole = trees.len() >= 40
            && trees.iter().all(|tree| [Some(&pull), Some(&push), Some(&alone)].contains(&tree.as_ref()));
        if is_whole && trees.contains(&Some(push.clone())) && trees.contains(&Some(pull.clone())) {
            return;
        }
        assert!(start.elapsed() < LONG, "{trees:#?}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_collector_that_is_away_costs_spans_only() {
    let place = Place::with(1, "");
    write_run(&place);
    let options = ["--otlp", "http://127.0.0.1:1", "--otlp-every", "1"];
    let (_, said) = train(place.folder.path(), "away", &place.keeper.url(), &options, || {});
    assert!(said.contains("traces are dropped: http://127.0.0.1:1/v1/traces: "), "{said}");
}
