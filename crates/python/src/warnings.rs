//! Warnings of the logger "sanderling" from threads that must not wait for the interpreter: whoever waits for a server may hold
//! what a thread with the interpreter waits for. Conversion only.

use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};

use pyo3::prelude::*;
use sanderling_client::OnWait;

/// Maximum warnings that wait to be logged; more are dropped.
const KEPT_MAX: usize = 64;

/// Logs what happens to a server.
pub(crate) fn on_wait() -> OnWait {
    OnWait::new(|notice| later(notice.to_string()))
}

/// Has a thread of its own log a warning, soon.
pub(crate) fn later(text: String) {
    static LOGGER: OnceLock<Option<SyncSender<String>>> = OnceLock::new();
    let sender = LOGGER.get_or_init(|| {
        let (sender, texts) = sync_channel::<String>(KEPT_MAX);
        let thread = std::thread::Builder::new().name("warnings".to_owned());
        thread.spawn(move || texts.iter().for_each(|text| log(&text))).ok().map(|_| sender)
    });
    if let Some(sender) = sender {
        // Without a logger, no thread waits.
        let _ = sender.try_send(text);
    }
}

fn log(text: &str) {
    let logged = Python::try_attach(|py| -> PyResult<()> {
        let logger = py.import("logging")?.call_method1("getLogger", ("sanderling",))?;
        logger.call_method1("warning", ("%s", text)).map(|_| ())
    });
    // A handler that fails is no reason to stop, and the error cannot be reported elsewhere.
    drop(logged);
}
