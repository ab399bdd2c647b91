//! Workers that reach each other over TCP, plain or TLS: who may take part, and who is turned away with which words
//! while the others go on waiting. Knows not what the workers say to each other once they are together.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use sanderling_transport::Address;
use sanderling_wire::{Agreed, Buffer, Features, Hello, Offer, Request};

use super::commands::{Overdue, RowBits, ended_well};
use super::{LONG, ROWS, Site};

const TOKEN: &str = "three-sanderlings-ran-before-the-wave";
const WRONG_TOKEN: &str = "three-sanderlings-ran-behind-the-wave";
const TLS: &str = "--worker-ca-file ca.pem --worker-cert-file cert.pem --worker-key-file key.pem";
const TLS_AND_TOKEN: &str =
    "--worker-ca-file ca.pem --worker-cert-file cert.pem --worker-key-file key.pem --worker-token-file token";

/// A port at which nobody listens, below those that the system lends: so nobody is given it before it is used.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let nth = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (std::process::id().wrapping_mul(64) + nth) % 20_000;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port as u16)).is_ok() {
            return port as u16;
        }
    }
}

/// An authority, and a certificate that it has signed for these addresses.
fn write_certificates(site: &Site, authority: &str, certificate: &str, key: &str) {
    let write = |name: &str, text: String| std::fs::write(site.folder.path().join(name), text).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let its_key = KeyPair::generate().unwrap();
    write(authority, params.self_signed(&its_key).unwrap().pem());
    let issuer = Issuer::new(params, its_key);
    let worker_key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned(), "0.0.0.0".to_owned()]).unwrap();
    write(certificate, params.signed_by(&worker_key, &issuer).unwrap().pem());
    write(key, worker_key.serialize_pem());
}

/// A site with secrets and the configuration, and the model that one command alone trains there.
fn site() -> (Site, Vec<RowBits>) {
    let site = Site::new(ROWS / 16);
    site.write_config();
    write_certificates(&site, "ca.pem", "cert.pem", "key.pem");
    write_certificates(&site, "other-ca.pem", "other.pem", "other-key.pem");
    for (name, text) in [("token", TOKEN), ("wrong", WRONG_TOKEN), ("empty", " \n")] {
        std::fs::write(site.folder.path().join(name), text).unwrap();
    }
    ended_well(site.train("--algorithm ftrl-sync --quiet --name alone").spawn().unwrap());
    let alone = site.model("alone");
    assert!(alone.len() > 1000);
    (site, alone)
}

/// One of the two workers of a job; the second one does not listen.
fn worker(site: &Site, rank: u32, listens_at: &str, options: &str) -> Command {
    let servers: Vec<String> = site.addresses.iter().map(Address::to_string).collect();
    let servers = servers.join(",");
    // A machine that stands still for a minute is nobody's death.
    let hosts = format!("{listens_at},127.0.0.1:9 --rank {rank} --worker-timeout 10m");
    site.train(&format!("--algorithm ftrl-sync --name together --ps {servers} --hosts {hosts} {options}"))
}

/// The same, started; killed if it takes far too long.
fn start(site: &Site, rank: u32, listens_at: &str, options: &str) -> Child {
    let worker = worker(site, rank, listens_at, options);
    Command::new("timeout")
        .args(["--signal=KILL", &(2 * LONG).as_secs().to_string()])
        .arg(worker.get_program())
        .args(worker.get_args())
        .current_dir(site.folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What it says on standard error; secrets are not said anywhere.
fn errors(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let said = format!("{}{errors}", String::from_utf8_lossy(&output.stdout));
    assert!(!said.contains(TOKEN) && !said.contains(WRONG_TOKEN), "{said}");
    errors
}

const WRONG: &str = "the token is missing or wrong (--worker-token-file)";
const AS_ONE: &str = "a peer claiming to be worker 1";

/// The first worker waits at an address while some come that it must not take for the second one: they are told so, with these
/// words, and it says once whom it turned away and why. Then the right one comes, and both train what one trains alone.
fn check(listen: &str, first: &str, strangers: &[(&str, &str, (&str, &str))], second: &str) {
    let (site, alone) = site();
    let listens_at = format!("{listen}:{}", port());
    let waits = start(&site, 0, &listens_at, first);
    let name = format!("worker 0 at tcp://{listens_at}: ");
    for &(options, reason, _) in strangers {
        for _ in 0..2 {
            let output = start(&site, 1, &listens_at, options).wait_with_output().unwrap();
            let errors = errors(&output);
            let is_said = errors.contains(&name) && errors.contains(reason);
            assert!(output.status.code() == Some(1) && is_said, "{first:?} and {options:?}: {errors}");
        }
    }
    let comes = start(&site, 1, &listens_at, second).wait_with_output().unwrap();
    let waited = waits.wait_with_output().unwrap();
    for output in [&waited, &comes] {
        let errors = errors(output);
        assert!(output.status.success(), "{first:?} and {second:?}: {errors}");
    }
    assert!(site.model("together") == alone, "{first:?} and {second:?}: the models differ");
    let said = errors(&waited);
    let told: BTreeSet<&str> = said.lines().filter(|line| line.starts_with("turned away")).collect();
    for &(options, _, (who, why)) in strangers {
        let line = format!("turned away {who} from tcp://127.0.0.1: {why}");
        assert!(told.iter().any(|told| told.starts_with(&line)), "{options:?}: {line}\n{said}");
    }
    let causes: BTreeSet<_> = strangers.iter().map(|&(_, _, told)| told).collect();
    let count = said.lines().filter(|line| line.starts_with("turned away")).count();
    assert_eq!(count, causes.len(), "{said}");
}

#[test]
fn on_the_loopback_two_train_what_one_trains_alone() {
    check("127.0.0.1", "", &[], "");
}

#[test]
fn with_tls_and_a_token_who_has_others_is_told_what_is_wrong() {
    let wrong_token = format!("{TLS} --worker-token-file wrong");
    let other_authority = TLS_AND_TOKEN.replace("ca.pem", "other-ca.pem");
    let no_tls = "one that talks TLS (--worker-cert-file)";
    let strangers = [
        (&*wrong_token, WRONG, (AS_ONE, WRONG)),
        (TLS, WRONG, (AS_ONE, WRONG)),
        (
            &*other_authority,
            "TLS: invalid peer certificate",
            ("an unknown peer", "TLS: received fatal alert"),
        ),
        ("--worker-token-file token", no_tls, ("an unknown peer", "TLS: received corrupt message")),
        ("", no_tls, ("an unknown peer", "TLS: received corrupt message")),
    ];
    check("127.0.0.1", TLS_AND_TOKEN, &strangers, TLS_AND_TOKEN);
}

#[test]
fn with_a_token_and_no_tls_who_has_another_is_told_what_is_wrong() {
    let token = "--worker-token-file token";
    let attempt = "this is attempt 0 of the job, not 1 (--attempt)";
    let other = "it has another configuration, input or set of options";
    let no_tls = "it does not talk TLS, and this connection does";
    let strangers = [
        (TLS_AND_TOKEN, no_tls, ("an unknown peer", "not a frame: it begins as TLS does")),
        ("--worker-token-file wrong", WRONG, (AS_ONE, WRONG)),
        ("", WRONG, (AS_ONE, WRONG)),
        ("--attempt 1 --worker-token-file token", attempt, (AS_ONE, attempt)),
        ("--passes 3 --worker-token-file token", other, (AS_ONE, other)),
        ("--on-worker-loss stop --worker-token-file token", other, (AS_ONE, other)),
    ];
    check("127.0.0.1", token, &strangers, token);
}

/// As servers do: a token keeps others away from who asks for it, and is no reason to turn anybody away.
#[test]
fn a_token_that_nobody_asks_for_is_no_harm() {
    check("127.0.0.1", "", &[], "--worker-token-file token");
}

#[test]
fn where_other_machines_reach_it_a_job_has_tls_and_a_token() {
    let exposed = format!("--worker-expose {TLS_AND_TOKEN}");
    let strangers = [(TLS, WRONG, (AS_ONE, WRONG))];
    // The last one does not listen, and so exposes nothing.
    check("0.0.0.0", &exposed, &strangers, TLS_AND_TOKEN);
}

/// A frame with a request, as it is sent before anything is agreed.
fn hello(offer: Offer, name: &str) -> Vec<u8> {
    let mut buffer = Buffer::new(1 << 16);
    let hello = Request::Hello(Hello { offer, token: "", name });
    buffer.append(|out| hello.encode(&Agreed::BEFORE_HELLO, 1, 0, out)).unwrap();
    buffer.bytes().to_vec()
}

#[test]
fn who_is_no_worker_or_one_of_another_version_is_named_and_who_only_looks_is_not() {
    let (site, _) = site();
    let at = format!("127.0.0.1:{}", port());
    let mut waits = worker(&site, 0, &at, "").spawn().unwrap();
    let _overdue = Overdue::of(&waits);
    let mut said = BufReader::new(waits.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(said.any(|line| line.starts_with("training a")));
    let until = Instant::now() + LONG;
    let connect = || loop {
        match TcpStream::connect(&at) {
            Ok(stream) => return stream,
            // It is about to listen.
            Err(error) => assert!(Instant::now() < until, "{at}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    // Like a scan for open ports.
    (0..10).for_each(|_| drop(connect()));
    let newer = Offer { version_min: 250, version_max: 251, ..Offer::of(Features::NONE) };
    for (bytes, words) in [
        (
            b"GET / HTTP/1.1\r\nHost: sanderling\r\nAccept: */*\r\n\r\n".to_vec(),
            "turned away an unknown peer from tcp://127.0.0.1: not a frame",
        ),
        (hello(newer, "worker 7"), "turned away a peer claiming to be worker 7 from tcp://127.0.0.1: "),
    ] {
        let mut stream = connect();
        stream.write_all(&bytes).unwrap();
        // Until it is turned away.
        let _ = stream.read_to_end(&mut Vec::new());
        let line = said.next().unwrap();
        assert!(line.starts_with(words), "{line}");
    }
    waits.kill().unwrap();
    waits.wait().unwrap();
}

#[test]
fn whoever_is_not_reached_for_long_is_named_with_the_reason() {
    let (site, _) = site();
    let listens_at = format!("127.0.0.1:{}", port());
    let mut comes = worker(&site, 1, &listens_at, TLS_AND_TOKEN).spawn().unwrap();
    let _overdue = Overdue::of(&comes);
    let mut said = BufReader::new(comes.stderr.take().unwrap()).lines().map_while(Result::ok);
    let to = format!("tcp://{listens_at}");
    let why = "connection refused; is the server running?";
    let expected = format!("worker 0 at {to} cannot be reached yet: {to}: {why}");
    let is_said = said.any(|line| line == expected);
    comes.kill().unwrap();
    comes.wait().unwrap();
    assert!(is_said);
}

#[test]
fn what_cannot_be_is_said_before_anybody_is_waited_for() {
    let (site, _) = site();
    let tls_alone = format!("--worker-expose {TLS}");
    let other_key = TLS.replace("key.pem", "other-key.pem");
    for (options, words) in [
        ("", &["0.0.0.0", "not a loopback address", "--worker-expose"][..]),
        (TLS_AND_TOKEN, &["0.0.0.0", "not a loopback address", "--worker-expose"]),
        ("--worker-expose", &["0.0.0.0", "TLS and a token", "--worker-insecure"]),
        ("--worker-expose --worker-token-file token", &["0.0.0.0", "TLS and a token", "--worker-insecure"]),
        (&*tls_alone, &["0.0.0.0", "TLS and a token", "--worker-insecure"]),
        ("--worker-insecure", &["--worker-expose"]),
        ("--worker-token-file empty", &["--worker-token-file", "empty is empty"]),
        ("--worker-token-file nowhere", &["--worker-token-file", "nowhere"]),
        ("--worker-ca-file ca.pem", &["--worker-cert-file"]),
        (&*other_key, &["--worker-cert-file", "cert.pem"]),
    ] {
        let listens_at = format!("0.0.0.0:{}", port());
        let output = start(&site, 0, &listens_at, options).wait_with_output().unwrap();
        let errors = errors(&output);
        let is_said = words.iter().all(|word| errors.contains(word));
        assert!(output.status.code() == Some(2) && is_said, "{options:?}: {errors}");
    }
}
