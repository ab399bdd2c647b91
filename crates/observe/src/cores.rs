//! Physical cores, two of whose logical processors share their arithmetic, as far as Linux tells. Knows nothing of what runs there.

use std::collections::BTreeSet;
use std::fs;

const STATUS: &str = "/proc/self/status";
const CPUS: &str = "/sys/devices/system/cpu";

/// Physical cores that this process may use: those of the processors that it may run on, and no more than the processors that
/// its container grants. At least 1; where the system does not tell, every processor counts as a core.
#[must_use]
pub fn cores_usable() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let status = fs::read_to_string(STATUS).unwrap_or_default();
    let siblings = |cpu: usize| {
        fs::read_to_string(format!("{CPUS}/cpu{cpu}/topology/thread_siblings_list")).unwrap_or_default()
    };
    let cores = cores_of(&status, siblings);
    if cores == 0 { processors } else { cores.min(processors) }
}

/// How many groups of siblings the processors are in that the status allows.
fn cores_of(status: &str, siblings: impl Fn(usize) -> String) -> usize {
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let core = |cpu| {
        let siblings = siblings(cpu).trim().to_owned();
        // A core by itself where the system does not say.
        if siblings.is_empty() { cpu.to_string() } else { siblings }
    };
    parse_list(allowed).into_iter().map(core).collect::<BTreeSet<String>>().len()
}

/// Numbers of a list such as "0-3,8".
fn parse_list(list: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_of_a_core_count_once() {
        let pairs = |cpu: usize| format!("{},{}\n", cpu % 4, cpu % 4 + 4);
        let allowed = |list: &str| format!("Name:\tx\nCpus_allowed_list:\t{list}\n");
        assert_eq!(cores_of(&allowed("0-7"), pairs), 4);
        assert_eq!(cores_of(&allowed("0,4"), pairs), 1);
        assert_eq!(cores_of(&allowed("1-2,6"), pairs), 2);
        assert_eq!(cores_of(&allowed("0-2"), |_| String::new()), 3, "what is not told counts by itself");
        assert_eq!(cores_of("", pairs), 0);
    }

    #[test]
    fn this_machine_has_a_core() {
        assert!((1..=std::thread::available_parallelism().unwrap().get()).contains(&cores_usable()));
    }
}
