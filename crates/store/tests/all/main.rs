//! Integration tests of the store through its public API, in one binary: it links once and runs all tests in parallel.

#![allow(clippy::unwrap_used)] // a panic is a failed test

mod changes;
mod concurrent;
mod contract;
mod damage;
mod deltas;
#[cfg(all(target_os = "linux", not(miri)))]
mod drill;
mod epoch;
mod flood;
mod full;
mod gather;
mod golden;
mod growth;
#[cfg(all(target_os = "linux", not(miri)))]
mod guest;
mod halves;
mod import;
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
mod kept_device;
#[cfg(all(target_os = "linux", not(miri)))]
mod kept_full;
mod log;
mod model;
mod pages;
mod policies;
mod pulled_rows;
mod refused;
mod replicas;
mod restore;
mod support;
mod threads;
mod walk;
