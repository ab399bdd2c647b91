//! The registries that the suite runs over: in memory, a keeper, and etcd where it is installed.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sanderling_keeper::{Keeper, KeeperConfig};
use sanderling_registry::{Edit, MemoryRegistry, Options, Registry, RegistryUrl};
use serde_json::Value;

/// Time for each call. No test waits this long unless it fails.
pub(crate) const WITHIN: Duration = Duration::from_secs(30);

/// A registry to test.
pub(crate) enum Backend {
    Memory(Arc<MemoryRegistry>),
    Keeper { keeper: Keeper, _data: tempfile::TempDir },
    Etcd(Etcd),
}

/// A running etcd, which ends with this.
pub(crate) struct Etcd {
    process: Child,
    port: u16,
    _data: tempfile::TempDir,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The settings of a keeper on a free port.
pub(crate) fn config(data: &Path) -> KeeperConfig {
    KeeperConfig {
        data: data.to_path_buf(),
        listen: "127.0.0.1:0".parse().unwrap(),
        expose: false,
        insecure: false,
        token: None,
        tls: None,
        hosts: Vec::new(),
        pages: Default::default(),
    }
}

/// The url of a keeper's cluster.
pub(crate) fn url(keeper: &Keeper, cluster: &str) -> RegistryUrl {
    let host = keeper.url().rsplit('/').next().unwrap();
    format!("keeper://{host}/{cluster}").parse().unwrap()
}

impl Backend {
    pub(crate) fn all() -> Vec<Backend> {
        let data = tempfile::tempdir().unwrap();
        let keeper = Keeper::start(&config(data.path()), |line| panic!("{line}")).unwrap();
        let mut all = vec![Backend::Memory(Arc::default()), Backend::Keeper { keeper, _data: data }];
        all.extend(etcd().map(Backend::Etcd));
        all
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Backend::Memory(_) => "memory",
            Backend::Keeper { .. } => "keeper",
            Backend::Etcd(_) => "etcd",
        }
    }

    /// The records of a new cluster.
    pub(crate) fn open(&self) -> Arc<dyn Registry> {
        static CLUSTERS: AtomicUsize = AtomicUsize::new(0);
        let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
        self.open_cluster(&format!("c{number}"))
    }

    /// The records of a cluster. In memory there is only one.
    pub(crate) fn open_cluster(&self, cluster: &str) -> Arc<dyn Registry> {
        let url: RegistryUrl = match self {
            Backend::Memory(memory) => return Arc::clone(memory) as Arc<dyn Registry>,
            Backend::Keeper { keeper, .. } => url(keeper, cluster),
            Backend::Etcd(etcd) => format!("etcd://127.0.0.1:{}/{cluster}", etcd.port).parse().unwrap(),
        };
        url.open(&Options::default()).unwrap()
    }

    /// Makes the registry forget the changes so far.
    pub(crate) fn forget_changes(&self) {
        match self {
            Backend::Memory(memory) => memory.forget_changes(),
            Backend::Keeper { .. } => {
                let (registry, value) = (self.open(), Value::from("x".repeat(250 << 10)));
                let mut revision = 0;
                for _ in 0..70 {
                    let done = registry.compare_and_set("large", revision, Edit::put(value.clone()), WITHIN);
                    match done.unwrap() {
                        sanderling_registry::Outcome::Done(next) => revision = next,
                        other => panic!("{other:?}"),
                    }
                }
            }
            Backend::Etcd(etcd) => {
                let revision = self.open().list("", WITHIN).unwrap().revision;
                etcd.post("/v3/kv/compaction", &format!("{{\"revision\":\"{revision}\"}}"));
            }
        }
    }
}

impl Etcd {
    fn post(&self, path: &str, body: &str) {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

/// Starts etcd, where it is installed.
fn etcd() -> Option<Etcd> {
    let data = tempfile::tempdir().unwrap();
    let [port, peers] = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let [port, peers] = [port, peers].map(|listener| listener.local_addr().unwrap().port());
    let (clients, peers) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peers}"));
    let started = Command::new("etcd")
        .arg("--data-dir")
        .arg(data.path())
        .args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients])
        .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
        .args(["--initial-cluster", &format!("default={peers}"), "--max-txn-ops", "1024"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let process = match started {
        Ok(process) => process,
        Err(error) => {
            eprintln!(
                "SKIPPED: registries of etcd: etcd does not start: {error}; apt-get install etcd-server"
            );
            return None;
        }
    };
    let etcd = Etcd { process, port, _data: data };
    let registry = format!("etcd://127.0.0.1:{port}/start").parse::<RegistryUrl>().unwrap();
    let registry = registry.open(&Options::default()).unwrap();
    let deadline = Instant::now() + WITHIN;
    while let Err(error) = registry.get("config", Duration::from_secs(5)) {
        assert!(Instant::now() < deadline, "etcd does not answer: {error}");
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(etcd)
}
