//! Ctrl-C and SIGTERM as a flag that long work looks at. The second signal ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};

use crate::failure::INTERRUPTED;

/// The flag, for who only looks at it.
pub fn told() -> Arc<AtomicBool> {
    static TOLD: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    Arc::clone(TOLD.get_or_init(Arc::default))
}

/// The flag; the handler is installed on first use and stays for the life of the process. Others may set it, too: a job whose
/// worker elsewhere was stopped.
pub fn flag() -> Arc<AtomicBool> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let (told, heard) = (told(), AtomicBool::new(false));
        let installed = ctrlc::set_handler(move || {
            told.store(true, Ordering::Relaxed);
            if heard.swap(true, Ordering::Relaxed) {
                std::process::exit(i32::from(INTERRUPTED));
            }
            note!("\nstopping; once more to stop at once");
        });
        // Another program, such as Python, may own the signals: then they end the process.
        drop(installed);
    });
    told()
}
