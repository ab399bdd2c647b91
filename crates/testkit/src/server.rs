//! A server in this process that listens at one address of each kind and keeps its events.

use std::sync::{Arc, Mutex};

use sanderling_server::{Config, Event, SaveMode, Server};
use sanderling_transport::Address;

/// A server in this process, at a TCP, a unix and a shared-memory address.
#[derive(Debug)]
pub struct TestServer {
    /// The server, until a test takes it to end it.
    pub server: Option<Server>,
    /// Its events so far.
    pub events: Arc<Mutex<Vec<Event>>>,
    /// While a test holds this lock, the thread that reports a note left behind blocks.
    pub(crate) notes_wait: Arc<Mutex<()>>,
    /// The folder with its sockets.
    pub folder: tempfile::TempDir,
}

impl TestServer {
    /// Starts a server with a changed default configuration, in a temporary folder.
    pub fn new(change: impl FnOnce(&mut Config)) -> TestServer {
        TestServer::at(tempfile::tempdir().unwrap(), change)
    }

    /// Starts a server in a folder of the caller.
    pub fn at(folder: tempfile::TempDir, change: impl FnOnce(&mut Config)) -> TestServer {
        let mut config = Config { runtime_dir: folder.path().join("run"), workers: 2, ..Config::default() };
        config.listen = vec!["127.0.0.1:0".parse().unwrap()];
        change(&mut config);
        let events = Arc::<Mutex<Vec<Event>>>::default();
        let notes_wait = Arc::<Mutex<()>>::default();
        let (told, wait) = (Arc::clone(&events), Arc::clone(&notes_wait));
        let on_event = move |event: Event| {
            let is_left = matches!(event, Event::NoteLeft { .. });
            told.lock().unwrap().push(event);
            if is_left {
                drop(wait.lock());
            }
        };
        let server = Server::start(&config, on_event).unwrap();
        TestServer { server: Some(server), events, notes_wait, folder }
    }

    /// Saves its tables under a name, as a delta where one is possible and wanted; returns the generation, and the number of deltas.
    pub fn save(&self, name: &str, delta: bool) -> (u64, u64) {
        let mode = if delta { SaveMode::Delta } else { SaveMode::Full };
        let report = self.server().control().save(name, 0, mode).unwrap();
        (report.saved.generation, report.deltas)
    }

    /// The running server.
    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Its address of a kind: "tcp", "unix" or "shm".
    pub fn address(&self, kind: &str) -> Address {
        let mut addresses = self.server().addresses().iter();
        addresses.find(|address| address.to_string().starts_with(kind)).unwrap().clone()
    }
}
