//! Listing, reading and failing against a small server in this process, which is a web server, an S3 endpoint and WebDAV.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};
use sanderling_testkit::web::{Fault, Site, Web};

use crate::error::ObjectError;
use crate::find::find;
use crate::network::Network;
use crate::stream::ObjectStream;
use crate::{PIECE_BYTES_FIRST, PIECE_BYTES_MAX};

/// Retries without the pauses that a real network wants.
fn network(settings: Vec<(String, String)>) -> Arc<Network> {
    let pause = Duration::from_millis(1);
    let backoff = BackoffConfig { init_backoff: pause, max_backoff: 2 * pause, base: 2.0 };
    let retry = RetryConfig { backoff, max_retries: 3, retry_timeout: Duration::from_secs(60) };
    Arc::new(Network::new(settings, retry).unwrap())
}

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn site(files: &[(&str, usize)]) -> Site {
    Site::new(files.iter().map(|(path, bytes)| (path.to_string(), text(*bytes))))
}

/// The whole file, read in odd steps.
fn read(network: &Arc<Network>, url: &str) -> Result<Vec<u8>, std::io::Error> {
    let mut stream = ObjectStream::open(network, url)?;
    let (mut all, mut buffer) = (Vec::new(), vec![0; 70_001]);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(all),
            count => all.extend_from_slice(&buffer[..count]),
        }
    }
}

#[test]
fn patterns_are_listed_in_order() {
    let web = Web::start(site(&[
        ("b/d/part-2.gz", 12),
        ("b/d/part-10.gz", 11),
        ("b/d/part-1.gz", 13),
        ("b/d/other.gz", 1),
        ("b/d/part-1.gz.d/part-3.gz", 4),
        ("b/d-e/part-4.gz", 5),
        ("b/d/e/part-5.gz", 6),
        ("b/d/[x] y+z.gz", 7),
        ("b/part-0.gz", 8),
        ("c/part-9.gz", 9),
    ]));
    let network = network(web.environment());
    let s3: &[(&str, Result<&[&str], &str>)] = &[
        ("s3://b/d/part-*.gz", Ok(&["d/part-1.gz", "d/part-10.gz", "d/part-2.gz"])),
        ("s3://b/d/part-?.gz", Ok(&["d/part-1.gz", "d/part-2.gz"])),
        ("s3://b/d/part-[02-9].gz", Ok(&["d/part-2.gz"])),
        ("s3://b/*.gz", Ok(&["part-0.gz"])),
        ("s3://b/*/part-[45].gz", Ok(&["d-e/part-4.gz"])),
        ("s3://b/d*/**/part-[45].gz", Ok(&["d/e/part-5.gz", "d-e/part-4.gz"])),
        ("s3://b/part-0.gz", Ok(&["part-0.gz"])),
        ("s3://b/d/[x] y+z.gz", Ok(&["d/[x] y+z.gz"])),
        ("s3://b/d/[[]*.gz", Ok(&["d/[x] y+z.gz"])),
        ("s3://b/d/*.csv", Err("s3://b/d/*.csv: no file matches this pattern")),
        ("s3://b/none/part-*.gz", Err("no file matches")),
        ("s3://b/d/part-[.gz", Err("is no pattern")),
        ("s3://b/d/part-3.gz", Err("s3://b/d/part-3.gz: is not there")),
        ("s3://b/d/", Err("names no file")),
    ];
    for (url, expected) in s3 {
        let found = find(&network, &[url]).map(|mut found| found.remove(0));
        match expected {
            Ok(keys) => {
                let urls: Vec<String> = keys.iter().map(|key| format!("s3://b/{key}")).collect();
                let found = found.unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(
                    found.iter().map(|file| &file.url).collect::<Vec<_>>(),
                    urls.iter().collect::<Vec<_>>()
                );
                for (file, key) in found.iter().zip(*keys) {
                    assert_eq!(file.bytes, web.site.lock().unwrap().files[&format!("b/{key}")].len() as u64);
                }
            }
            Err(reason) => {
                let error = found.unwrap_err().to_string();
                assert!(error.contains(reason), "{url}: {error}");
            }
        }
    }
    // Requests for buckets are signed; a directory of many pages is one listing.
    let requests = web.site.lock().unwrap().requests.clone();
    assert!(requests.iter().all(|request| request.ends_with(" signed")), "{requests:?}");
    // WebDAV, whose listings are of whole directories.
    let found = find(&network, &[&web.url("b/d/part-*.gz?x=1"), &web.url("c/part-9.gz")]).unwrap();
    let urls: Vec<&str> = found.iter().flatten().map(|file| &*file.url).collect();
    let expected = ["b/d/part-1.gz?x=1", "b/d/part-10.gz?x=1", "b/d/part-2.gz?x=1", "c/part-9.gz"];
    assert_eq!(urls, expected.map(|path| web.url(path)));
    assert_eq!(found[1][0].bytes, 9);
    web.site.lock().unwrap().lists = false;
    let error = find(&network, &[&web.url("b/d/*.gz")]).unwrap_err();
    assert!(error.reason.contains("name the files one by one"), "{error}");
}

#[test]
fn files_are_read_whatever_their_size_and_server() {
    let pieces =
        (PIECE_BYTES_FIRST + 2 * PIECE_BYTES_FIRST + 4 * PIECE_BYTES_FIRST + PIECE_BYTES_MAX) as usize;
    let sizes = [0, 1, PIECE_BYTES_FIRST as usize, PIECE_BYTES_FIRST as usize + 1, pieces + 5];
    let files: Vec<(String, usize)> = sizes.iter().map(|size| (format!("b/f{size}"), *size)).collect();
    let files: Vec<(&str, usize)> = files.iter().map(|(path, size)| (&**path, *size)).collect();
    for ranges in [true, false] {
        for etags in [true, false] {
            let web = Web::start(Site { ranges, etags, ..site(&files) });
            let network = network(web.environment());
            for (path, size) in &files {
                assert!(read(&network, &web.url(path)).unwrap() == text(*size), "{path} {ranges} {etags}");
                if ranges && etags {
                    assert!(read(&network, &format!("s3://{path}")).unwrap() == text(*size), "s3 {path}");
                }
            }
            let gets = web
                .site
                .lock()
                .unwrap()
                .requests
                .iter()
                .filter(|request| request.contains(&format!("f{}", pieces + 5)))
                .count();
            // Five pieces, by both names; or one range refused and the whole.
            assert_eq!(
                gets,
                if ranges && etags {
                    10
                } else if ranges {
                    5
                } else {
                    2
                }
            );
        }
    }
    // A size without HEAD, with ranges and without.
    for ranges in [true, false] {
        let web = Web::start(Site { head: false, ranges, ..site(&[("x", 77)]) });
        assert_eq!(find(&network(Vec::new()), &[&web.url("x")]).unwrap()[0][0].bytes, 77);
    }
}

/// A server that refuses HEAD is heard on why it refuses GET.
#[test]
fn what_is_wrong_is_what_get_is_answered() {
    let check = |faults: &[Fault], kind: ErrorKind| {
        let faults = faults.iter().cloned().collect();
        let web = Web::start(Site { head: false, faults, ..site(&[("x", 77)]) });
        let error = find(&network(Vec::new()), &[&web.url("x")]).unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
    };
    check(&[Fault::Status(403)], ErrorKind::PermissionDenied);
    check(&[Fault::Status(404)], ErrorKind::NotFound);
}

#[test]
fn who_stops_reading_stops_fetching() {
    let web = Web::start(site(&[("x", 40 << 20)]));
    let network = network(Vec::new());
    let mut stream = ObjectStream::open(&network, &web.url("x")).unwrap();
    stream.read_exact(&mut [0; 10]).unwrap();
    drop(stream);
    // One piece was taken and so another one asked for: five at most, of eight.
    assert!(web.site.lock().unwrap().requests.len() <= 1 + crate::PIECES_AHEAD);
}

/// The result of reading a file of `bytes` bytes while the server has faults.
fn after(faults: &[Fault], site: Site, by_s3: bool) -> (Result<Vec<u8>, String>, usize) {
    let web = Web::start(Site { faults: faults.iter().cloned().collect(), ..site });
    let network = network(web.environment());
    let url = if by_s3 { "s3://b/x".to_string() } else { web.url("b/x") };
    let read = read(&network, &url).map_err(|error| format!("{:?}: {error}", error.kind()));
    let requests = web.site.lock().unwrap().requests.len();
    (read, requests)
}

/// A name, what goes wrong, with which site, and either how many requests are sent again or words of the error.
type Row<'a> = (&'a str, &'a [Fault], Site, Result<usize, &'a [&'a str]>);

#[test]
fn what_passes_is_tried_again_and_the_rest_says_what_to_do() {
    let size = 3 << 20;
    let one = || site(&[("b/x", size)]);
    let rows: &[Row<'_>] = &[
        ("500 then ok", &[Fault::Status(500), Fault::Status(503)], one(), Ok(2)),
        ("slow down", &[Fault::Status(429)], one(), Ok(1)),
        ("cut at once", &[Fault::Cut(0)], one(), Ok(1)),
        ("cut in the middle", &[Fault::Cut(700_000), Fault::Cut(100)], one(), Ok(2)),
        (
            "cut in the middle without tags",
            &[Fault::Cut(700_000)],
            Site { etags: false, ..one() },
            Err(&["cannot be read"]),
        ),
        (
            "cut without ranges",
            &[Fault::Cut(0), Fault::Cut(2 << 20)],
            Site { ranges: false, ..one() },
            Err(&["Other"]),
        ),
        (
            "500 for ever",
            &[const { Fault::Status(500) }; 9],
            one(),
            Err(&["cannot be read", "500", "after 3 retries"]),
        ),
        (
            "403",
            &[Fault::Status(403)],
            one(),
            Err(&["PermissionDenied", "may not be read", "AWS_ACCESS_KEY_ID"]),
        ),
        (
            "401",
            &[Fault::Status(401)],
            one(),
            Err(&["PermissionDenied", "have expired", "AWS_SESSION_TOKEN"]),
        ),
        ("another region", &[Fault::Status(301)], one(), Err(&["InvalidInput", "set AWS_REGION"])),
        ("404", &[], site(&[("b/y", 1)]), Err(&["NotFound", "is not there"])),
        (
            "changed",
            &[Fault::Cut(size), Fault::Change("b/x".into(), text(size - 1))],
            one(),
            Err(&["InvalidData", "has changed"]),
        ),
    ];
    for (name, faults, site, expected) in rows {
        // Tags and ranges are what every S3 has, regions what only S3 has.
        let of_regions = *name == "another region";
        let ways = [true, false].into_iter();
        for by_s3 in ways.filter(|by_s3| if *by_s3 { site.etags && site.ranges } else { !of_regions }) {
            let (found, requests) = after(faults, site.clone(), by_s3);
            match (found, expected) {
                (Ok(bytes), Ok(again)) => {
                    assert!(bytes == text(size), "{name}");
                    assert_eq!(requests, 2 + again, "{name}");
                }
                (Err(error), Err(words)) => {
                    let of_s3 = |word: &&&str| by_s3 || !word.contains("AWS_");
                    let missing = words.iter().filter(of_s3).find(|word| !error.contains(**word));
                    assert_eq!(missing, None, "{name}: {error}");
                    assert!(error.len() < 900, "{error}");
                }
                (Ok(_), _) => panic!("{name}: no error"),
                (Err(error), _) => panic!("{name}: {error}"),
            }
        }
    }
}

#[test]
fn settings_that_are_missing_are_named() {
    let web = Web::start(site(&[("b/x", 10)]));
    let endpoint = ("AWS_ENDPOINT".to_string(), format!("http://{}", web.address));
    let metadata = ("AWS_METADATA_ENDPOINT".to_string(), format!("http://{}", web.address));
    let http = ("AWS_ALLOW_HTTP".to_string(), "true".to_string());
    let unsigned = ("AWS_SKIP_SIGNATURE".to_string(), "true".to_string());
    let said = |settings: &[&(String, String)]| -> Result<usize, ObjectError> {
        let settings = settings.iter().map(|setting| (*setting).clone());
        find(&network(settings.collect()), &["s3://b/x"]).map(|found| found[0][0].bytes as usize)
    };
    assert_eq!(said(&[&endpoint, &http, &unsigned]).unwrap(), 10);
    let error = said(&[&endpoint, &unsigned]).unwrap_err();
    assert!(error.reason.contains("set AWS_ALLOW_HTTP=true"), "{error}");
    // A machine that has no credentials to give.
    let error = said(&[&endpoint, &http, &metadata]).unwrap_err();
    assert!(error.reason.contains("there are no credentials: set AWS_ACCESS_KEY_ID"), "{error}");
    assert_eq!(error.kind, ErrorKind::PermissionDenied);
    // No account of Azure's has a name of its own.
    let error = find(&network(Vec::new()), &["az://b/x"]).unwrap_err();
    assert!(error.reason.contains("no account is named: set AZURE_STORAGE_ACCOUNT_NAME"), "{error}");
    // No server listens there.
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = find(&network(Vec::new()), &[&format!("http://{nobody}/x")]).unwrap_err();
    assert!(error.reason.contains("cannot be reached"), "{error}");
}
