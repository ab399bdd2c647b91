//! Ctrl-C and SIGTERM as a flag that long work looks at. The second signal ends the process at once.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::INTERRUPTED;

/// The flag; the handler is installed on first use and stays for the life of the process.
pub(crate) fn flag() -> Arc<AtomicBool> {
    static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
    let flag = FLAG.get_or_init(|| {
        let flag = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&flag);
        let installed = ctrlc::set_handler(move || {
            if seen.swap(true, Ordering::Relaxed) {
                std::process::exit(i32::from(INTERRUPTED));
            }
            eprintln!("\nstopping after this step and saving; once more to stop at once");
        });
        // Inside another program, such as Python, somebody else may own the signals: then they end the process.
        drop(installed);
        flag
    });
    Arc::clone(flag)
}
