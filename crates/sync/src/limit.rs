//! The bounds of what is kept for workers, each with what happens beyond it. Knows no code.

use std::time::Duration;

/// Workers of a group; a group of more is refused.
pub const WORKERS_MAX: u32 = 1024;
/// Messages that one worker hands in for one step, at one place; a further one is refused.
pub const MESSAGES_MAX: u32 = 1 << 16;
/// Bytes of all that is handed in and not applied yet; what is beyond is refused as too much for now.
pub const BYTES_MAX: usize = 1 << 30;
/// Bytes that one worker brings to a meeting; more are refused.
pub const MEETING_BYTES_MAX: usize = 1 << 20;
/// Groups of one place; a further one is refused as too much for now.
pub const GROUPS_MAX: usize = 256;
/// A group that nobody has used for so long gives back what it keeps to sum up with when a new one comes, and is forgotten
/// when there is no room for a new one, or for bytes.
pub const GROUP_IDLE_MAX: Duration = Duration::from_secs(600);
/// Bytes that a group keeps to sum up its next step with; what is beyond is given back after each step.
pub const SPARE_BYTES_MAX: usize = 64 << 20;
