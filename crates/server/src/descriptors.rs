//! How many connections the system's limit of open files leaves room for, beside what saves and the control plane need. Knows no
//! connection.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limit::{CONNECTIONS_MAX, DESCRIPTORS_RESERVED, PLACES_MIN};

/// Raises this process's limit of open files as far as the system lets it: it is often low only for programs that use `select`.
pub fn raise_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where it cannot be, the places are fewer.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Number of connections that the open-file limit of this process leaves room for.
pub(crate) fn places() -> usize {
    let limit = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
    let used = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    of(limit, used)
}

fn of(limit: usize, used: usize) -> usize {
    let free = limit.saturating_sub(used).saturating_sub(DESCRIPTORS_RESERVED);
    free.clamp(PLACES_MIN, CONNECTIONS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_saves_and_the_control_plane() {
        for (limit, used, expected) in [
            (usize::MAX, 20, CONNECTIONS_MAX),
            (20 + DESCRIPTORS_RESERVED + 6, 20, 6),
            (64, 20, PLACES_MIN),
            (0, 20, PLACES_MIN),
        ] {
            assert_eq!(of(limit, used), expected, "{limit} {used}");
        }
        assert_eq!(places(), CONNECTIONS_MAX);
    }
}
