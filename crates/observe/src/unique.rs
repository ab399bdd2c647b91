//! Numbers by which others tell processes, and what they make, apart. Not for secrets.

/// A number that no other process and no other call has got, as far as chance can say.
#[must_use]
pub fn unique() -> u64 {
    let mut bytes = [0; 8];
    // Of the system each time: whatever a process keeps for this, a fork copies.
    let asked = || rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    rustix::io::retry_on_intr(asked).expect("Linux has had this call since 3.17");
    u64::from_ne_bytes(bytes)
}
