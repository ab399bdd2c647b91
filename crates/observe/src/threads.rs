//! The threads of this process, read from `/proc/self/task`. Knows nothing of what they do.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// Clock ticks of `/proc` per second (`USER_HZ`), the same on all architectures that Linux has since 2.6.
const TICKS_PER_S: u64 = 100;
/// Position of the state in `stat`, counted after the name.
const STATE_AT: usize = 0;
/// Positions of user and system time in `stat`, counted after the name.
const CPU_AT: [usize; 2] = [11, 12];

/// One thread, as the system sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadStatus {
    /// Thread number of the kernel.
    pub id: u32,
    /// Name, at most 15 bytes.
    pub name: String,
    /// State in a word, such as "sleeping".
    pub state: &'static str,
    /// Processor time since its start.
    pub cpu: Duration,
    /// Time for which it could run and no processor was free. `None`: the kernel does not count it.
    pub waited: Option<Duration>,
}

/// All threads of this process, by processor time, most first. Empty where there is no `/proc`.
#[must_use]
pub fn threads() -> Vec<ThreadStatus> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    // A thread may end meanwhile.
    let mut threads: Vec<ThreadStatus> = tasks.filter_map(|task| read(&task.ok()?.path())).collect();
    threads.sort_by(|a, b| b.cpu.cmp(&a.cpu).then(a.id.cmp(&b.id)));
    threads
}

fn read(task: &Path) -> Option<ThreadStatus> {
    let id = task.file_name()?.to_str()?.parse().ok()?;
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    let schedstat = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
    parse(id, &stat, &schedstat)
}

/// The texts of `stat` and `schedstat`. The latter counts nanoseconds, the former ticks of 10 ms.
fn parse(id: u32, stat: &str, schedstat: &str) -> Option<ThreadStatus> {
    // The name, in brackets, may hold anything.
    let (name, rest) = (stat.split_once('(')?.1, stat.rsplit_once(')')?.1);
    let name = name.rsplit_once(')')?.0.to_owned();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = CPU_AT.iter().map(|&at| fields.get(at)?.parse::<u64>().ok()).sum::<Option<u64>>()?;
    let mut ns = schedstat.split_whitespace().map(|text| text.parse().map(Duration::from_nanos));
    let (ran, waited) = (ns.next().and_then(Result::ok), ns.next().and_then(Result::ok));
    let cpu = ran.unwrap_or(Duration::from_millis(ticks * 1000 / TICKS_PER_S));
    Some(ThreadStatus { id, name, state: state(fields.get(STATE_AT)?), cpu, waited })
}

fn state(letter: &str) -> &'static str {
    match letter {
        "R" => "running",
        "S" | "I" => "sleeping",
        "D" => "waits for a device",
        "T" | "t" => "stopped",
        "Z" | "X" | "x" => "ended",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_the_system() {
        let stat = "7 (a) (b)) S 1 2 3 4 5 6 7 8 9 10 150 20 0 0";
        let thread = |cpu_ms, waited_ms: Option<u64>| ThreadStatus {
            id: 7,
            name: "a) (b)".to_owned(),
            state: "sleeping",
            cpu: Duration::from_millis(cpu_ms),
            waited: waited_ms.map(Duration::from_millis),
        };
        for (stat, schedstat, expected) in [
            (stat, "1234000000 5000000 9\n", Some(thread(1234, Some(5)))),
            (stat, "", Some(thread(1700, None))),
            ("7 (a) S 1", "", None),
            ("", "1 2 3", None),
        ] {
            assert_eq!(parse(7, stat, schedstat), expected, "{stat:?} {schedstat:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_is_seen_under_its_name() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let sleeper = std::thread::Builder::new().name("a sleeper".to_owned()).spawn(move || {
            ready.send(()).expect("someone waits");
            // It ends when the other side is dropped.
            let _ = stopped.recv();
        });
        is_ready.recv().expect("it runs");
        let found = threads();
        drop(stop);
        sleeper.expect("a thread").join().expect("it ends");
        assert!(found.iter().any(|thread| thread.name == "a sleeper"), "{found:?}");
    }
}
