//! A server that is away during a run: one time limit, and a line that says who is waited for.

use super::*;

const LIMIT_S: u64 = 2;

/// Killed, or stopped as by a debugger; the limit comes from the command line or from the configuration. Without it this would
/// take 20 seconds.
#[test]
fn a_server_that_is_away_ends_a_run_within_one_time_limit_and_is_named_meanwhile() {
    let place = Place::new();
    let options = format!("--ps-timeout {LIMIT_S}s");
    std::fs::write(place.path("job.toml"), IN_STEP).unwrap();
    let limited = CONFIG.replace("batch_size = 32", &format!("batch_size = 32, ps_timeout = \"{LIMIT_S}s\""));
    std::fs::write(place.path("limited.toml"), limited).unwrap();
    for (name, config, options, signal, cause) in [
        ("minibatches", "c", options.clone(), "KILL", "connection refused"),
        ("threads", "limited", "--threads 2".to_owned(), "KILL", "connection refused"),
        ("stopped", "c", options.clone(), "STOP", "it does not answer"),
        ("job", "job", format!("--algorithm ftrl --workers 2 {options}"), "KILL", "connection refused"),
        (
            "in-step",
            "job",
            format!("--algorithm ftrl-sync --workers 2 {options}"),
            "KILL",
            "connection refused",
        ),
    ] {
        let servers = ["0/2", "1/2"].map(|shard| server(&place, shard));
        let options = format!("--name {name} --passes 1000000 --runs-dir there {options} {}", ps(&servers));
        let line = format!("train {config}.toml --quiet {options}");
        let mut training = place.command(&line).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let (model, start) = (place.path(&format!("there/{name}/model")), Instant::now());
        while !model.join("manifest.json").exists() {
            assert!(start.elapsed() < LONG && training.try_wait().unwrap().is_none(), "nothing was saved");
            std::thread::sleep(Duration::from_millis(1));
        }
        servers[1].signal(signal);
        let start = Instant::now();
        let output = training.wait_with_output().unwrap();
        let (took, errors) = (start.elapsed(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(1), "{name}: {errors}");
        assert!(took >= Duration::from_millis(LIMIT_S * 1000 - 200), "{name}: {took:?}: {errors}");
        assert!(took < Duration::from_secs(4 * LIMIT_S), "{name}: {took:?}: {errors}");
        let address = servers[1].addresses[0].to_string();
        let said = format!("server {address} has not answered for 1 s (limit {LIMIT_S} s): {cause}");
        assert!(errors.contains(&said), "{name}: {said}: {errors}");
        assert_eq!(errors.matches("has not answered for 1 s").count(), 1, "{name}: {errors}");
        assert!(errors.contains(&format!("no answer within {LIMIT_S}s")), "{name}: {errors}");
    }
}

#[test]
fn a_time_limit_that_makes_no_sense_is_refused() {
    let place = Place::new();
    for (limit, expected) in [("0s", "must be 10ms to 24h"), ("20", "\"20\" is not a time")] {
        let line = format!("train c.toml --ps 127.0.0.1:1 --ps-timeout {limit}");
        let output = place.command(&line).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && errors.contains(expected), "{limit}: {errors}");
    }
}
