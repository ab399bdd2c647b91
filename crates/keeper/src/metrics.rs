//! The metrics of a keeper for Prometheus.

use std::sync::atomic::Ordering;

use sanderling_observe::Exposition;

use crate::committer::Shared;

/// All metrics.
pub(crate) fn text(shared: &Shared, keeper: &str, watches: usize) -> String {
    let mut text = Exposition::default();
    text.family(
        "sanderling_keeper_info",
        "gauge",
        "Always 1; the label is the number of the keeper's folder.",
    );
    text.sample("sanderling_keeper_info", &[("keeper", keeper)], 1);
    let (revision, records, bytes, leases) = {
        let published = shared.published();
        let machine = &published.machine;
        (machine.revision(), machine.len(), machine.bytes(), machine.leases())
    };
    text.single("sanderling_keeper_revision", "gauge", "Revision of the last change.", revision);
    text.single("sanderling_keeper_records", "gauge", "Records of all clusters.", records);
    text.single("sanderling_keeper_record_bytes", "gauge", "Bytes of their names and values.", bytes);
    text.single("sanderling_keeper_leases", "gauge", "Leases that have not ended.", leases);
    text.single("sanderling_keeper_watches", "gauge", "Watches that wait for changes.", watches);
    let writable = u8::from(shared.trouble().is_none());
    text.single(
        "sanderling_keeper_writable",
        "gauge",
        "1 while the disk takes changes, 0 while it refuses them.",
        writable,
    );
    let counters = &shared.counters;
    for (name, kind, help, value) in [
        ("changes_total", "counter", "Changes of records.", &counters.changes),
        ("refused_total", "counter", "Requests that the disk refused.", &counters.refused),
        ("leases_ended_total", "counter", "Leases whose term was over.", &counters.leases_ended),
        ("journal_rewrites_total", "counter", "Times that the journal was written anew.", &counters.rewrites),
        ("journal_bytes", "gauge", "Length of the journal.", &counters.journal_bytes),
    ] {
        text.single(&format!("sanderling_keeper_{name}"), kind, help, value.load(Ordering::Relaxed));
    }
    let help = "Time until changes are durable on the disk.";
    text.latencies("sanderling_keeper_write", help, &[(Vec::new(), shared.writes())]);
    text.finish()
}
