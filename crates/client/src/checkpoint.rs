//! Saves and restores the tables of all servers of a cluster under a name. Knows no file.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_observe::unique;
use sanderling_wire::{Features, Ping, Reply, Request, Restore, Save, SaveAs};

use crate::cluster::Cluster;
use crate::engine::Engine;
use crate::error::ClientError;
use crate::locations::Locations;
use crate::outage::{NOTICE_AFTER, Notice};
use crate::placement::Placement;

/// Saves during which slots moved, after which no further one is tried.
const ATTEMPTS_MAX: u32 = 3;
/// How often it is looked whether moves of slots have ended.
const LOOK: Duration = Duration::from_millis(100);

/// Rows, tables and bytes that the servers of a cluster saved or restored, all together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckpointSize {
    /// Rows.
    pub rows: u64,
    /// Tables, those of each server counted; 0 of what was saved.
    pub tables: u64,
    /// Bytes; 0 of what was restored.
    pub bytes: u64,
}

impl Cluster {
    /// Makes every server save all of its tables under this name.
    ///
    /// Servers save at the same time, each its state at its own moment, after all of them were reached. If a server
    /// fails, the others may have saved, as the error says; the failed server keeps its earlier save.
    ///
    /// While slots move between the groups of a cluster, their rows are in two groups or, as of other moments, in none. So a
    /// save waits for the moves to end, and is made again if one began meanwhile.
    pub fn save(&self, name: &str, timeout: Duration) -> Result<CheckpointSize, ClientError> {
        self.between_moves(timeout, |left| self.save_once(name, left), || {
            format!(
                "checkpoint {name:?}: slots moved between groups during each of {ATTEMPTS_MAX} saves, so rows may be missing \
                 in it or there twice; wait until sanderling ctl cluster shows no moves, and save again"
            )
        })
    }

    /// Does something when no slots move between groups, and again if they have moved meanwhile.
    fn between_moves<T>(
        &self,
        timeout: Duration,
        mut once: impl FnMut(Duration) -> Result<T, ClientError>,
        reason: impl FnOnce() -> String,
    ) -> Result<T, ClientError> {
        let Some(locations) = &self.locations else { return once(timeout) };
        let start = Instant::now();
        for _ in 0..ATTEMPTS_MAX {
            let before = self.wait_for_moves(locations, start, timeout)?;
            let done = once(timeout.saturating_sub(start.elapsed()))?;
            if locations.read_placement()?.version == before.version {
                return Ok(done);
            }
        }
        Err(ClientError::Cluster { reason: reason() })
    }

    /// Waits until no slots move between the groups of a cluster.
    ///
    /// # Errors
    /// They still move after this time, or the registry does not answer.
    pub fn settle(&self, timeout: Duration) -> Result<(), ClientError> {
        let locations = self.locations.as_ref();
        locations
            .map_or(Ok(()), |locations| self.wait_for_moves(locations, Instant::now(), timeout).map(drop))
    }

    /// The placement, once no slots move.
    fn wait_for_moves(
        &self,
        locations: &Locations,
        start: Instant,
        timeout: Duration,
    ) -> Result<Arc<Placement>, ClientError> {
        let mut notice_at = start + NOTICE_AFTER;
        loop {
            let placement = locations.read_placement()?;
            let (moves, waited) = (placement.moves, start.elapsed());
            if moves == 0 {
                return Ok(placement);
            }
            let cluster = locations.url();
            if waited >= timeout || self.stop().is_some_and(|stop| stop.told().is_some()) {
                let reason = format!(
                    "cluster {cluster}: {moves} moves of slots have not ended within {timeout:?}; see sanderling ctl cluster, and \
                     try again when they have"
                );
                return Err(ClientError::Cluster { reason });
            }
            if Instant::now() >= notice_at {
                notice_at += waited;
                self.outages.tell(&Notice::Moving { cluster, moves, waited, limit: timeout });
            }
            std::thread::sleep(LOOK.min(timeout.saturating_sub(waited)));
        }
    }

    fn save_once(&self, name: &str, timeout: Duration) -> Result<CheckpointSize, ClientError> {
        let mut engine = self.patient_engine(timeout)?;
        let can_number = greet(&mut engine)?;
        // They are there. What comes next takes as long as there are rows.
        engine.connections.bear_silence();
        let request = match can_number {
            // By it a restore finds out whether all servers have the same save.
            true => Request::SaveAs(SaveAs { number: unique().max(1), name }),
            false => Request::Save(Save { name }),
        };
        let sizes = ask_to(&mut engine, "saved", &request, |reply| match reply {
            Reply::Save(saved) | Reply::SaveAs(saved) => {
                Some(CheckpointSize { rows: saved.rows, tables: 0, bytes: saved.bytes })
            }
            _ => None,
        })?;
        Ok(CheckpointSize::sum(sizes))
    }

    /// Makes every server restore all of its tables from its save of this name.
    ///
    /// All servers must have the same save. Tables must be opened again. If a server fails, the others may have
    /// restored, as the error says.
    ///
    /// In a cluster each primary restores the rows of its slots, and all replicas of its group get them. It waits for
    /// moves of slots, and is made again if one began meanwhile.
    pub fn restore(&self, name: &str, timeout: Duration) -> Result<CheckpointSize, ClientError> {
        self.between_moves(timeout, |left| self.restore_once(name, left), || {
            format!(
                "checkpoint {name:?}: slots moved between groups during each of {ATTEMPTS_MAX} restores, so groups may have \
                 rows of before; wait until sanderling ctl cluster shows no moves, and restore again"
            )
        })
    }

    fn restore_once(&self, name: &str, timeout: Duration) -> Result<CheckpointSize, ClientError> {
        let mut engine = self.patient_engine(timeout)?;
        if greet(&mut engine)? {
            let numbers = engine.ask_all(&Request::Saved(name), |reply| match reply {
                Reply::Saved(number) => Some(number),
                _ => None,
            });
            let numbers = numbers.into_iter().collect::<Result<Vec<u64>, _>>()?;
            let servers = engine.with_rows().into_iter().map(|server| engine.addresses()[server].clone());
            check_same_save(name, &numbers, &servers.collect::<Vec<String>>())?;
        }
        let sizes =
            ask_to(&mut engine, "restored", &Request::Restore(Restore { name }), |reply| match reply {
                Reply::Restore(found) => {
                    Some(CheckpointSize { rows: found.rows, tables: found.tables, bytes: 0 })
                }
                _ => None,
            })?;
        Ok(CheckpointSize::sum(sizes))
    }
}

impl CheckpointSize {
    fn sum(sizes: Vec<CheckpointSize>) -> CheckpointSize {
        sizes.into_iter().fold(CheckpointSize::default(), |sum, size| CheckpointSize {
            rows: sum.rows + size.rows,
            tables: sum.tables + size.tables,
            bytes: sum.bytes + size.bytes,
        })
    }
}

/// Reaches all servers, before any does what others might not. Can all of them number what they save?
fn greet(engine: &mut Engine) -> Result<bool, ClientError> {
    let answers = engine.ask_all(&Request::Ping(Ping { reply_bytes: 0, bytes: &[] }), |_| Some(()));
    answers.into_iter().collect::<Result<Vec<()>, _>>()?;
    Ok(engine.with_rows().into_iter().all(|server| engine.connections.can(server, Features::SAVES)))
}

/// Checks that all servers have the same save of this name, by its number at each.
///
/// A save that failed on some servers, or that a server made alone, leaves the others with another one.
///
/// # Errors
/// [`ClientError::Cluster`] names two that have not.
pub fn check_same_save(name: &str, numbers: &[u64], servers: &[String]) -> Result<(), ClientError> {
    let Some(other) = numbers.iter().position(|number| *number != numbers[0]) else { return Ok(()) };
    let reason = format!(
        "checkpoint {name:?}: {} and {} have different saves of this name, since one of them was not made by all servers; \
         nothing was restored: restore another checkpoint, or have one server after the other restore this one (sanderling ctl restore)",
        servers[0], servers[other]
    );
    Err(ClientError::Cluster { reason })
}

/// Asks all servers at once to do something; what each answers.
fn ask_to<T>(
    engine: &mut Engine,
    done: &'static str,
    request: &Request<'_>,
    read: impl Fn(Reply<'_>) -> Option<T>,
) -> Result<Vec<T>, ClientError> {
    let answers = engine.ask_all(request, read);
    let did = answers.iter().zip(engine.with_rows()).filter(|(answer, _)| answer.is_ok());
    let by: Vec<String> = did.map(|(_, server)| engine.addresses()[server].clone()).collect();
    answers.into_iter().collect::<Result<Vec<T>, _>>().map_err(|error| match by.is_empty() {
        true => error,
        false => ClientError::Partly { error: Box::new(error), done, by },
    })
}
