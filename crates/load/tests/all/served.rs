//! A parameter server in this process, for the commands to load.

use std::path::Path;

use sanderling_server::{Config, Control, Server};

/// A running server; it ends with this value.
pub(crate) struct Served(Server);

impl Served {
    /// Starts a server of one worker below a folder, at a TCP port, a unix socket and shared memory.
    pub(crate) fn start(folder: &Path) -> Served {
        Served::start_with(folder, |_| ())
    }

    /// Starts a server with a changed configuration.
    pub(crate) fn start_with(folder: &Path, change: impl FnOnce(&mut Config)) -> Served {
        let listen = vec!["127.0.0.1:0".parse().unwrap()];
        let mut config = Config { listen, runtime_dir: folder.join("run"), workers: 1, ..Config::default() };
        change(&mut config);
        Served(Server::start(&config, |_| ()).unwrap())
    }

    /// The TCP address.
    pub(crate) fn address(&self) -> String {
        self.0.addresses()[0].to_string()
    }

    pub(crate) fn control(&self) -> Control {
        self.0.control()
    }

    /// The tables: name, rows, and whether they are temporary.
    pub(crate) fn tables(&self) -> Vec<(String, u64, bool)> {
        let tables = self.control().tables();
        tables.into_iter().map(|table| (table.name, table.stats.rows, table.temporary)).collect()
    }
}
