//! What a hub that feeds keys refuses at its start, and what trainers are told that cannot take them.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use sanderling_feed::{Embedding, EmbeddingOptions, Feature, FeaturePooling as Pooling, FeedError};
use sanderling_hub::{HubError, SubscribeOptions, Subscription, hub_addresses};
use sanderling_store::{Init, Optimizer};

use super::{PATIENCE, embedding, folder, hub, open, servers, tables, url};

/// Exit code and what is said of a hub with these options.
fn run(dir: &Path, options: &str) -> (Option<i32>, String) {
    let line = format!(
        "exec '{}' hub --listen 127.0.0.1:0 --spec spec.toml {options} day_0.csv",
        env!("CARGO_BIN_EXE_sanderling")
    );
    let output = Command::new("sh").args(["-c", &line]).current_dir(dir).output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn what_cannot_be_fed_is_said_at_the_start() {
    let dir = folder();
    let (_processes, ps) = servers(dir.path(), 1);
    let shared = "[[feature]]\nname = \"id\"\ntable = \"t\"\n[[feature]]\nname = \"history\"\ntable = \"t\"";
    std::fs::write(dir.path().join("shared.toml"), shared).unwrap();
    let cases = [
        ("--feed history=t", "needs --ps ADDR"),
        (&format!("--ps {ps}"), "needs --feed FEATURE=TABLE"),
        (&format!("--ps {ps} --feed history"), "FEATURE=TABLE[:POOLING]"),
        (&format!("--ps {ps} --feed history=t:max"), "cannot be fed with pooling \"max\""),
        (&format!("--ps {ps} --feed history=t:none"), "cannot be fed with pooling \"none\""),
        (&format!("--ps {ps} --feed history=t:avg"), "there is no such pooling"),
        (&format!("--ps {ps} --feed other=t"), "feature \"other\""),
        (&format!("--ps {ps} --feed id=t,history=t"), "feature \"id\" also reads table \"t\""),
        (&format!("--ps {ps} --feed id=t,id=u"), "it is named twice"),
    ];
    for (options, expected) in cases {
        let (code, said) = run(dir.path(), options);
        assert!(code == Some(2) && said.contains(expected), "{options}: {code:?} {said}");
    }
    std::fs::rename(dir.path().join("shared.toml"), dir.path().join("spec.toml")).unwrap();
    let (code, said) = run(dir.path(), &format!("--ps {ps} --feed id=t"));
    assert!(code == Some(2) && said.contains("of the configuration also has table \"t\""), "{said}");
    let nobody = format!("unix:{}/nobody", dir.path().display());
    let (code, said) = run(dir.path(), &format!("--ps {nobody} --feed id=u"));
    assert!(code.is_some_and(|code| code != 0) && said.contains("nobody"), "{code:?} {said}");
}

#[test]
fn trainers_that_cannot_take_what_is_fed_are_told_what_to_do() {
    let dir = folder();
    let (_processes, ps) = servers(dir.path(), 1);
    let options = format!("--listen 127.0.0.1:0 --ps {ps} --feed history=run/history");
    let patient = hub(dir.path(), &options);
    let hubs = url(&[&patient]);
    let plain = Subscription::open(&hub_addresses(&hubs).unwrap(), "plain", &SubscribeOptions::default());
    let error = plain.unwrap_err();
    assert!(
        matches!(error, HubError::Refused { .. }) && error.to_string().contains("without --feed"),
        "{error}"
    );
    let error = |embedding: Option<&Arc<Embedding>>| open(&hubs, "t", embedding).map(drop).unwrap_err();
    let other = tables(&ps, "other", Init::Zero, Optimizer::Sgd { lr: 1.0, l2: 0.0 });
    let mean = embedding(&other, Pooling::MEAN);
    let shared = |features: &[(&str, usize)]| {
        let feature =
            |&(name, table): &(&str, usize)| Feature { name: name.to_owned(), table, pooling: Pooling::SUM };
        Embedding::remote(other.clone(), features.iter().map(feature).collect(), EmbeddingOptions::default())
            .unwrap()
    };
    for (embedding, expected) in [
        (None, "this queue looks nothing up"),
        (Some(&shared(&[("id", 0)])), "does not look it up"),
        (Some(&mean), "reads table \"other/history\""),
    ] {
        let error = error(embedding);
        assert!(matches!(error, FeedError::FedByHub { .. }), "{error}");
        assert!(error.to_string().contains(expected) && error.to_string().contains("run/history"), "{error}");
    }
    // The table that is to be fed was never made. Who comes late is told it, too.
    let hub = hub(dir.path(), &format!("{options} --feed-timeout 300ms"));
    let takes_fed = SubscribeOptions { takes_fed: true, ..SubscribeOptions::default() };
    let at = hub_addresses(&url(&[&hub])).unwrap();
    let mut waits = Subscription::open(&at, "waits", &takes_fed).unwrap();
    let error = waits.next(Instant::now() + PATIENCE).unwrap_err();
    assert!(matches!(error, HubError::Failed { .. }) && error.to_string().contains("run/history"), "{error}");
    drop(waits);
    assert!(!hub.end().0.success());
}
