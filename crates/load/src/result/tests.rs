//! Results to text and back, damaged ones among them; errors within a run against the scatter of many runs;
//! logs read back.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
use proptest::prelude::*;
use sanderling_observe::SimdLevel;
use sanderling_random::Rng;

use super::*;
use crate::observed::Observed;

/// A run of `seconds`, of which every number is made up: `rate` calls per second of 512 keys that take about
/// `service_us`, with a tail; for tests of this and other modules.
pub(crate) fn made_up(label: &str, rate: f64, seconds: f64, service_us: f64, seed: u64) -> RunResult {
    let mut rng = Rng::new(seed, 0, 0);
    let functions = ["pull".to_owned(), "push".to_owned()];
    let measured = Duration::from_secs_f64(seconds);
    let mut observed = Observed::new(&functions, measured);
    let mut at = 0.0;
    while at < seconds {
        let function = usize::from(rng.unit() < 0.02);
        let lag = 2e-6 * rng.unit();
        let tail = if rng.unit() < 0.02 { 1.0 + 9.0 * rng.unit() } else { 1.0 };
        let service = 1e-6 * service_us * tail * (0.8 - 0.5 * (1.0 - rng.unit()).ln());
        let of = Duration::from_secs_f64;
        observed.call(function, of(at), of(service + lag), of(service), of(lag), false);
        let sent = std::time::Instant::now();
        observed.request(
            of(at + service),
            &crate::request::Finished {
                slot: 0,
                operation: [crate::request::Operation::Pull, crate::request::Operation::Push][function],
                keys: 512,
                sent,
                done: sent + of(service),
                outcome: Ok(crate::request::Outcome { missing: 3, bytes: 512 * 136 }),
            },
        );
        observed.unique(&[rng.next() % 1000, rng.next() % 100_000]);
        at -= (1.0 - rng.unit()).ln() / rate;
    }
    let script =
        Script { name: "serve".into(), source: "pub async fn pull() {}\n".into(), params: BTreeMap::new() };
    RunResult {
        label: label.to_owned(),
        began_unix_s: 1_800_000_000.25,
        asked: Asked {
            address: "tcp://127.0.0.1:7000".into(),
            script,
            functions: vec![("pull".into(), 98.0), ("push".into(), 2.0)],
            seeds: [("keys".to_owned(), 1), ("sizes".to_owned(), 2)].into(),
            threads: 2,
            concurrency: 8,
            load: Load::Open { rate_per_s: rate, arrivals: "poisson".into() },
            warmup_s: 5.0,
            limit: Limit::Seconds { seconds },
            cycles: Some((0, 1 << 40)),
            objectives: vec![Objective { quantile: 0.99, below_ns: 5_000_000 }],
        },
        versions: Versions { sanderling: "0.1.0".into(), rune: "0.14.2".into() },
        machine: Machine {
            cpu: "AMD EPYC 9755".into(),
            cpus: 4,
            cpus_usable: 2,
            simd: SimdLevel::Avx512,
            memory_bytes: 8 << 30,
            os: "Debian GNU/Linux 12".into(),
            kernel: "6.1".into(),
            arch: "x86_64".into(),
        },
        measured: Measured { due_s: Some(seconds), ..observed.measured(measured) },
        client: ClientCpu { user_s: 0.3 * seconds, system_s: 0.1 * seconds, busiest_thread: Some(0.31) },
        server: vec![ServerLatency {
            peer: "tcp".into(),
            command: "pull".into(),
            summary: LatencySummary { count: 9, sum_ns: 9, average_ns: 1, ..LatencySummary::default() },
        }],
        validity: Validity { valid: true, reasons: Vec::new(), by_client: false, gone: false },
    }
}

#[test]
fn a_file_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("result.json");
    let runs = vec![made_up("A", 2000.0, 2.0, 50.0, 1), made_up("B", 100.0, 0.5, 900.0, 2)];
    let file = ResultFile::new("ab", runs);
    file.save(&path).expect("it is written");
    assert_eq!(ResultFile::load(&path).expect("it is read"), file);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing temporary is left");
    let text = fs::read_to_string(&path).expect("text");
    // An interrupted result replaces no file; older results without the field are whole.
    let cut = ResultFile { cut: true, ..file.clone() };
    let error = cut.save(&path).expect_err("there is one");
    assert!(
        matches!(error, ResultError::File { error, .. } if error.kind() == std::io::ErrorKind::AlreadyExists)
    );
    assert_eq!(fs::read_to_string(&path).expect("text"), text);
    cut.save(&folder.path().join("cut.json")).expect("there is none");
    let older = text.replacen("\"cut\": false,", "", 1);
    assert!(older != text && ResultFile::parse(older.as_bytes(), &path).expect("a result") == file);
    let newer = text.replacen("\"command\"", "\"of_a_later_version\": [1, {}], \"command\"", 1);
    assert_eq!(ResultFile::parse(newer.as_bytes(), &path).expect("unknown fields are passed over"), file);
}

#[test]
fn a_run_against_many_servers_is_read_as_it_was_written() {
    let mut run = small();
    let row = run.server[0].clone();
    run.server =
        (0..1024 * 16).map(|at| ServerLatency { peer: format!("server-{at}"), ..row.clone() }).collect();
    let file = ResultFile::new("run", vec![run]);
    let text = serde_json::to_vec(&file).expect("JSON");
    assert_eq!(ResultFile::parse(&text, Path::new("x")).expect("it is read"), file);
}

#[test]
fn damaged_files_are_refused_by_name() {
    let path = Path::new("some/result.json");
    let good =
        serde_json::to_value(ResultFile::new("run", vec![made_up("", 200.0, 1.0, 50.0, 3)])).expect("JSON");
    let check = |place: &str, value: serde_json::Value, expected: &str| {
        let mut bad = good.clone();
        *bad.pointer_mut(place).unwrap_or_else(|| panic!("no {place}")) = value;
        let found = ResultFile::parse(&serde_json::to_vec(&bad).expect("JSON"), path);
        let error = found.expect_err(place).to_string();
        assert!(error.starts_with("some/result.json: ") && error.contains(expected), "{place}: {error}");
    };
    let histogram = |high: u64, digits: u8| {
        encoding::encode(&Histogram::<u64>::new_with_bounds(1, high, digits).expect("bounds"))
    };
    let function = "/runs/0/measured/functions/0";
    check("/schema", 2.into(), "in format 2; this version reads format 1");
    check("/runs", serde_json::json!([]), "0 runs");
    check("/runs/0/machine/cpus", "many".into(), "not a result");
    check("/runs/0/measured/seconds", 0.into(), "a measured part of 0 s");
    check("/runs/0/measured/backlog_s", 1.into(), "1 s of 1 s were the warm-up's");
    check("/runs/0/measured/backlog_s", (-1).into(), "-1 s of 1 s were the warm-up's");
    check(&format!("{function}/failed"), (1_u64 << 40).into(), "more failures or latencies than calls");
    check(&format!("{function}/response/hdr"), "AAAA".into(), "not a histogram");
    check(&format!("{function}/response/hdr"), histogram(1 << 60, 5).into(), "5 digits");
    check(&format!("{function}/response/count"), 1.into(), "contradicts");
    check(&format!("{function}/response/sum_ns"), u128::MAX.to_string().into(), "contradicts");
    check("/runs/0/measured/requests/0/keys", u64::MAX.into(), "a count of more than 9007199254740992");
    check("/runs/0/measured/series/interval_ns", 0.into(), "intervals of 0 ns");
    let missing = ResultFile::load(Path::new("/nowhere/result.json")).expect_err("there is none").to_string();
    assert!(missing.starts_with("/nowhere/result.json: "), "{missing}");
}

proptest! {
    /// Any bytes, also where all but some are right, are refused or make a histogram; nothing panics.
    #[test]
    fn damaged_histograms_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        cut in 0_usize..400,
        flips in prop::collection::vec((0_usize..400, any::<u8>()), 0..4),
    ) {
        let refused = encoding::decode::<u64>(&STANDARD.encode(&bytes), 3).is_err();
        prop_assert!(refused || bytes.len() > 40);
        let mut inner = 0x1c84_9313_u32.to_be_bytes().to_vec();
        inner.extend((bytes.len() as u32).to_be_bytes());
        inner.extend([0, 0, 0, 0, 0, 0, 0, 3]);
        inner.extend(1_u64.to_be_bytes());
        inner.extend(600_000_000_000_u64.to_be_bytes());
        inner.extend(1_f64.to_be_bytes());
        inner.extend(&bytes);
        for &(at, byte) in &flips {
            if let Some(place) = inner.get_mut(at) {
                *place = byte;
            }
        }
        inner.truncate(inner.len().saturating_sub(cut / 40));
        let mut deflated = Vec::new();
        let mut encoder = flate2::read::ZlibEncoder::new(&inner[..], flate2::Compression::fast());
        encoder.read_to_end(&mut deflated).expect("it deflates");
        let mut outer = 0x1c84_9314_u32.to_be_bytes().to_vec();
        outer.extend((deflated.len() as u32).to_be_bytes());
        outer.extend(&deflated);
        if let Ok(histogram) = encoding::decode::<u64>(&STANDARD.encode(&outer), 3) {
            let _ = (histogram.len(), histogram.value_at_quantile(0.99), histogram.mean());
        }
    }

    #[test]
    fn damaged_text_never_panics(at in 0_usize..100_000, byte: u8, cut in 0_usize..100_000) {
        let mut text = serde_json::to_vec(&ResultFile::new("run", vec![small()])).expect("JSON");
        let length = text.len();
        text[at % length] = byte;
        if let Ok(file) = ResultFile::parse(&text, Path::new("x")) {
            // A result that can be read can be shown.
            let run = &file.runs[0];
            let _ = (crate::show::one(run), crate::show::two(run, run), hdr_log::hdr_log(run));
        }
        let _ = ResultFile::parse(&text[..cut % length], Path::new("x"));
    }
}

fn small() -> RunResult {
    made_up("", 20.0, 0.3, 50.0, 4)
}

#[test]
fn histograms_that_would_swell_are_refused() {
    // A megabyte of zeros deflates to a kilobyte; a thousand of them to a megabyte of text.
    let mut deflated = 0x1c84_9314_u32.to_be_bytes().to_vec();
    let mut zeros = Vec::new();
    let swelling = std::io::repeat(0).take(1 << 26);
    flate2::read::ZlibEncoder::new(swelling, flate2::Compression::best())
        .read_to_end(&mut zeros)
        .expect("it deflates");
    deflated.extend((zeros.len() as u32).to_be_bytes());
    deflated.extend(&zeros);
    assert!(encoding::decode::<u64>(&STANDARD.encode(&deflated), 3).is_err());
    let long = "A".repeat((1 << 20) + 1);
    assert_eq!(encoding::decode::<u64>(&long, 3), Err(encoding::HistogramError::TooLong(long.len())));
}

#[test]
fn logs_are_read_back() {
    let run = made_up("", 2000.0, 2.0, 50.0, 5);
    let text = hdr_log::hdr_log(&run);
    assert!(text.starts_with("#[Histogram log format version 1.3]\n#[StartTime: 1800000000.250 "), "{text}");
    assert!(text.contains("\n\"StartTimestamp\",\"Interval_Length\","));
    let (mut tagged, mut intervals) = (Vec::new(), 0);
    for entry in IntervalLogIterator::new(text.as_bytes()) {
        let LogEntry::Interval(line) = entry.expect("a line of the format") else { continue };
        let bytes = STANDARD.decode(line.encoded_histogram()).expect("base 64");
        let histogram: Histogram<u64> =
            Deserializer::new().deserialize(&mut &bytes[..]).expect("a histogram");
        match line.tag() {
            Some(tag) => tagged.push((tag.as_str().to_owned(), histogram)),
            None => intervals += histogram.len(),
        }
    }
    let names: Vec<&str> = tagged.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["pull.response", "pull.service", "push.response", "push.service"]);
    assert_eq!(&tagged[0].1, run.measured.functions[0].response.histogram());
    assert_eq!(intervals, run.measured.calls());
}

/// Calls whose latency wanders, so that neighbouring intervals are alike: an autoregression with this
/// correlation.
fn wandering(seed: u64, correlation: f64) -> Measured {
    let mut rng = Rng::new(seed, 0, 0);
    let mut observed = Observed::new(&["f".to_owned()], Duration::from_secs(26));
    let mut level = 0.0;
    for interval in 0..256_u64 {
        let noise = (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
        level = correlation * level + (1.0 - correlation * correlation).sqrt() * noise;
        for call in 0..40_u64 {
            let at = Duration::from_millis(100 * interval + 2 * call);
            let took = Duration::from_secs_f64(0.01 * (1.0 + 0.2 * level + 0.1 * rng.unit()).max(0.1));
            observed.call(0, at, took, took, Duration::ZERO, false);
        }
    }
    observed.measured(Duration::from_millis(25_600))
}

#[test]
fn errors_hold_what_they_promise_also_where_neighbours_are_alike() {
    for correlation in [0.0, 0.6, 0.9] {
        let (mut mean, mut median) = (0, 0);
        for seed in 0..200 {
            let measured = wandering(seed, correlation);
            let held = |estimate: Option<estimate::Estimate>| {
                let estimate = estimate.expect("there are enough samples");
                let half = estimate.half_width.expect("there are enough intervals");
                usize::from((estimate.value - 0.0105e9).abs() <= half)
            };
            mean += held(estimate::mean_ns(&measured));
            median += held(estimate::quantile_ns(&measured, 0.5));
        }
        // 95 % of 200 are 190; the standard error is 3. A plain error, which takes intervals for independent,
        // holds in less than half of them where the correlation is .9.
        assert!((172..=200).contains(&mean), "{correlation}: the mean lay within its error in {mean} of 200");
        assert!(
            (172..=200).contains(&median),
            "{correlation}: the median lay within its error in {median} of 200"
        );
    }
}

/// A second of nothing but the warm-up's queue, then as much in every interval: the rate has no error to speak of.
#[test]
fn the_queue_of_the_warm_up_is_no_scatter() {
    let mut observed = Observed::new(&["f".to_owned()], Duration::from_secs(3));
    for call in 0..300 {
        let (at, took) = (Duration::from_millis(5 * call), Duration::from_millis(1000 + 5 * call));
        observed.call(0, at, took, took, Duration::ZERO, false);
    }
    let measured = Measured { backlog_s: 0.95, ..observed.measured(Duration::from_secs(4)) };
    let found = estimate::calls_per_s(&measured);
    assert!(found.half_width.expect("there are enough intervals") < 1e-9, "{found:?}");
}

#[test]
fn short_runs_have_no_errors() {
    let run = small();
    assert_eq!(estimate::calls_per_s(&run.measured).half_width, None);
    assert_eq!(estimate::quantile_ns(&run.measured, 0.99), None);
}
