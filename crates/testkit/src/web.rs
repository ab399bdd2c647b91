//! A small web server for tests, with faults on request.
//!
//! It also answers as an S3 endpoint, as far as reading needs (path style, listing in pages, signatures unchecked),
//! and as WebDAV.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A fault of a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// This status, with a body that says no more.
    Status(u16),
    /// The connection ends after so many bytes of the body.
    Cut(usize),
    /// The file has other bytes from now on.
    Change(String, Vec<u8>),
}

/// The files and the behaviour of the server.
#[derive(Clone, Debug)]
pub struct Site {
    /// By path, without the slash before it; in a bucket the bucket is the first part.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Whether it knows ranges.
    pub ranges: bool,
    /// Whether files have tags by which their versions are told apart.
    pub etags: bool,
    /// Whether it knows HEAD.
    pub head: bool,
    /// Whether it lists by PROPFIND.
    pub lists: bool,
    /// Names in a page of a listing.
    pub page: usize,
    /// The faults of the next GETs of files, one each.
    pub faults: VecDeque<Fault>,
    /// Every request so far: method, target and whether it was signed.
    pub requests: Vec<String>,
}

impl Site {
    /// A site with these files, by path, without faults.
    pub fn new(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Site {
        Site {
            files: files.into_iter().collect(),
            ranges: true,
            etags: true,
            head: true,
            lists: true,
            page: 2,
            faults: VecDeque::new(),
            requests: Vec::new(),
        }
    }
}

/// A running server. Its threads end with the process.
pub struct Web {
    /// Its address on this host.
    pub address: SocketAddr,
    /// The site; a test may change it between requests.
    pub site: Arc<Mutex<Site>>,
}

impl Web {
    /// Serves the site on a free port.
    pub fn start(site: Site) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let site = Arc::new(Mutex::new(site));
        let served = Arc::clone(&site);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let site = Arc::clone(&served);
                // A client that disconnects during an answer ends its thread.
                std::thread::spawn(move || while answer(&stream, &site).unwrap_or(false) {});
            }
        });
        Web { address, site }
    }

    /// The url of a file.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// The environment variables that point `s3://` to this server.
    pub fn environment(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://{}", self.address);
        [
            ("AWS_ENDPOINT", &*endpoint),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "eu-central-1"),
            ("AWS_ACCESS_KEY_ID", "test"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ]
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .to_vec()
    }
}

struct Request {
    method: String,
    /// Without the slash before it, and without percent signs.
    path: String,
    query: BTreeMap<String, String>,
    range: Option<(usize, usize)>,
}

/// Reads one request and answers it; whether there may be another one.
fn answer(stream: &Result<TcpStream, std::io::Error>, site: &Mutex<Site>) -> std::io::Result<bool> {
    let Ok(stream) = stream else { return Ok(false) };
    let mut reader = BufReader::with_capacity(1, stream.try_clone()?);
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(false);
    }
    let mut words = line.split(' ').map(str::to_string);
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (mut range, mut signed, mut length) = (None, "", 0);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let Some((name, value)) = header.trim().split_once(": ") else { break };
        match &*name.to_ascii_lowercase() {
            "range" => {
                let (from, to) = value.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                range = Some((from.parse().unwrap(), to.parse().unwrap()));
            }
            "authorization" => signed = " signed",
            "content-length" => length = value.parse().unwrap(),
            _ => {}
        }
    }
    reader.read_exact(&mut vec![0; length])?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = pairs.map(|(name, value)| (name.to_string(), decoded(value))).collect();
    let request = Request { method, path: decoded(path.trim_start_matches('/')), query, range };
    let mut site = site.lock().unwrap();
    site.requests.push(format!("{} {target}{signed}", request.method));
    let (status, headers, body, cut) = site.reply(&request);
    drop(site);
    let mut head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    let mut writer = stream;
    writer.write_all((head + "\r\n").as_bytes())?;
    if request.method != "HEAD" {
        writer.write_all(&body[..cut.unwrap_or(body.len()).min(body.len())])?;
    }
    if cut.is_some() {
        writer.shutdown(std::net::Shutdown::Both)?;
    }
    Ok(cut.is_none())
}

type Reply = (u16, Vec<(&'static str, String)>, Vec<u8>, Option<usize>);

const MODIFIED: &str = "Wed, 21 Oct 2015 07:28:00 GMT";

impl Site {
    fn reply(&mut self, request: &Request) -> Reply {
        let plain = |status| (status, Vec::new(), b"<Error>no more to say</Error>".to_vec(), None);
        match &*request.method {
            "GET" if request.query.contains_key("list-type") => {
                (200, Vec::new(), self.list(request).into_bytes(), None)
            }
            "PROPFIND" if self.lists => (207, Vec::new(), self.properties(&request.path).into_bytes(), None),
            "HEAD" if self.head => self.file(request, None),
            "GET" => match self.faults.pop_front() {
                Some(Fault::Status(status)) => plain(status),
                Some(Fault::Cut(bytes)) => self.file(request, Some(bytes)),
                Some(Fault::Change(path, bytes)) => {
                    self.files.insert(path, bytes);
                    self.file(request, None)
                }
                None => self.file(request, None),
            },
            _ => plain(405),
        }
    }

    fn file(&self, request: &Request, cut: Option<usize>) -> Reply {
        let Some(bytes) = self.files.get(&request.path) else {
            return (404, Vec::new(), b"<Error>NoSuchKey</Error>".to_vec(), None);
        };
        let mut headers = vec![("last-modified", MODIFIED.to_string())];
        if self.etags {
            headers.push(("etag", format!("\"{}\"", bytes.len())));
        }
        match request.range.filter(|_| self.ranges) {
            Some((from, _)) if from >= bytes.len() => (416, headers, Vec::new(), None),
            Some((from, to)) => {
                let to = to.min(bytes.len() - 1);
                headers.push(("content-range", format!("bytes {from}-{to}/{}", bytes.len())));
                (206, headers, bytes[from..=to].to_vec(), cut)
            }
            None => (200, headers, bytes.clone(), cut),
        }
    }

    /// A page of ListObjectsV2.
    fn list(&self, request: &Request) -> String {
        let word = |name: &str| request.query.get(name).map_or("", String::as_str);
        let bucket = format!("{}/", request.path.trim_end_matches('/'));
        let (prefix, delimiter, after) = (word("prefix"), word("delimiter"), word("continuation-token"));
        let keys =
            self.files.iter().filter_map(|(path, bytes)| Some((path.strip_prefix(&bucket)?, bytes.len())));
        // Files below a directory appear as that directory, once.
        let mut entries: BTreeMap<String, Option<usize>> = BTreeMap::new();
        for (key, bytes) in keys.filter(|(key, _)| key.starts_with(prefix)) {
            match key[prefix.len()..].find(delimiter).filter(|_| !delimiter.is_empty()) {
                Some(at) => entries.insert(key[..=prefix.len() + at].to_string(), None),
                None => entries.insert(key.to_string(), Some(bytes)),
            };
        }
        let mut rest = entries.into_iter().filter(|(key, _)| &**key > after).peekable();
        let (mut xml, mut last) = (String::new(), String::new());
        for (key, bytes) in rest.by_ref().take(self.page) {
            match bytes {
                Some(bytes) => write!(
                    xml,
                    "<Contents><Key>{key}</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified><Size>{bytes}</Size></Contents>"
                ),
                None => write!(xml, "<CommonPrefixes><Prefix>{key}</Prefix></CommonPrefixes>"),
            }
            .unwrap();
            last = key;
        }
        if rest.peek().is_some() {
            write!(xml, "<NextContinuationToken>{last}</NextContinuationToken>").unwrap();
        }
        format!("<ListBucketResult>{xml}</ListBucketResult>")
    }

    /// The answer of PROPFIND for a directory, one level deep.
    fn properties(&self, directory: &str) -> String {
        let prefix = if directory.is_empty() {
            String::new()
        } else {
            format!("{}/", directory.trim_end_matches('/'))
        };
        let (mut xml, mut directories) = (String::new(), BTreeSet::new());
        for (path, bytes) in &self.files {
            let Some(name) = path.strip_prefix(&prefix) else { continue };
            match name.split_once('/') {
                Some((directory, _)) => _ = directories.insert(format!("{prefix}{directory}")),
                None => write!(
                    xml,
                    "<D:response><D:href>/{path}</D:href><D:propstat><D:prop><D:getcontentlength>{}</D:getcontentlength>\
                     <D:getlastmodified>{MODIFIED}</D:getlastmodified><D:resourcetype></D:resourcetype></D:prop>\
                     <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>",
                    bytes.len()
                )
                .unwrap(),
            }
        }
        for directory in directories {
            write!(
                xml,
                "<D:response><D:href>/{directory}/</D:href><D:propstat><D:prop><D:getlastmodified>{MODIFIED}\
                 </D:getlastmodified><D:resourcetype><D:collection/></D:resourcetype></D:prop>\
                 <D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
            )
            .unwrap();
        }
        format!("<D:multistatus xmlns:D=\"DAV:\">{xml}</D:multistatus>")
    }
}

fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, more @ ..] = rest {
        rest = more;
        match (first, more) {
            (b'%', [high, low, after @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
                rest = after;
            }
            (b'+', _) => bytes.push(b' '),
            _ => bytes.push(*first),
        }
    }
    String::from_utf8(bytes).unwrap()
}
