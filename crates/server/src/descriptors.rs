//! How many connections the system's limit of open files leaves room for, beside what saves and the control plane need. Knows no
//! connection.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limit::{CONNECTIONS_MAX, DESCRIPTORS_RESERVED, PLACES_MIN};

/// Open files of a connection over gRPC, beside the one that every connection has: its socket, and another name of that.
const OF_CARRIED: usize = 2;

/// Raises this process's limit of open files as far as the system lets it: it is often low only for programs that use `select`.
pub fn raise_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Where it cannot be, the places are fewer.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Connections that there is room for; `carried`: so many may come over gRPC as well.
pub(crate) fn places(carried: bool) -> usize {
    let limit = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
    let used = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    of(limit, used, carried)
}

fn of(limit: usize, used: usize, carried: bool) -> usize {
    let free = limit.saturating_sub(used).saturating_sub(DESCRIPTORS_RESERVED);
    let each = if carried { 1 + OF_CARRIED } else { 1 };
    (free / each).clamp(PLACES_MIN, CONNECTIONS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_saves_and_the_control_plane() {
        for (limit, used, carried, expected) in [
            (usize::MAX, 20, false, CONNECTIONS_MAX),
            (20 + DESCRIPTORS_RESERVED + 6, 20, false, 6),
            (20 + DESCRIPTORS_RESERVED + 18, 20, true, 6),
            (64, 20, false, PLACES_MIN),
            (0, 20, true, PLACES_MIN),
        ] {
            assert_eq!(of(limit, used, carried), expected, "{limit} {used} {carried}");
        }
        assert_eq!(places(false), CONNECTIONS_MAX);
    }
}
