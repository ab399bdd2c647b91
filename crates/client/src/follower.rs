//! A follower of tables at one server: asks for pages of their change streams and keeps its place. Does not know what
//! becomes of the rows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_wire::{Changes, ChangesPlace, Fault, Features, Home, Reply, Request};

use crate::cluster::Cluster;
use crate::engine::Subject;
use crate::error::ClientError;
use crate::open_table::Number;
use crate::placement::Placement;
use crate::session::Session;

pub use sanderling_wire::{ChangedRows, RowValues};

/// Keys of a page at most.
const PAGE_KEYS: usize = 1 << 14;

/// The requests of a follower to one server.
#[derive(Debug)]
pub struct Follower {
    session: Session,
    server: usize,
}

/// A table at one server, and a follower's place in its change stream.
#[derive(Debug)]
pub struct FollowedTable {
    name: String,
    dim: usize,
    /// Not known before it is opened, or when the server was started anew.
    opened: Option<Number>,
    /// Not known before it is opened for the first time.
    home: Option<Home>,
    place: ChangesPlace,
    /// Start of the export or drain under way, by the clock of this process.
    began: Instant,
}

/// The kind of a page.
#[derive(Debug, Clone, Copy)]
pub struct FollowedPage {
    /// It was a page of an export.
    pub is_export: bool,
    /// It was the last one of an export or drain.
    pub is_last: bool,
    /// Another drain must follow at once.
    pub has_more: bool,
    /// After it, the follower has all changes that are older than this.
    pub whole_since: Option<Instant>,
}

/// The part of a table that one server has.
#[derive(Debug, Clone, Copy)]
pub struct TablePart {
    home: Home,
    server: usize,
}

impl TablePart {
    /// Whether a key is of it, as of a placement.
    ///
    /// The change stream of a server in a cluster also tells of rows that are not its own: rows that are on their way to
    /// it, and the removal of rows that are elsewhere now.
    #[must_use]
    pub fn has(self, placement: &Placement, key: u64) -> bool {
        placement.server_of(self.home, key) == self.server
    }
}

impl FollowedTable {
    /// A table by its name at the servers, with so many weights per row.
    #[must_use]
    pub fn new(name: &str, dim: usize) -> FollowedTable {
        FollowedTable {
            name: name.to_owned(),
            dim,
            opened: None,
            home: None,
            place: ChangesPlace::default(),
            began: Instant::now(),
        }
    }

    /// Its name at the servers.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the next page begins an export of all rows.
    #[must_use]
    pub fn begins_export(&self) -> bool {
        self.place == ChangesPlace::default()
    }

    /// Goes on from an epoch of the server's stream, such as that of a checkpoint whose rows are here.
    pub fn go_on_from(&mut self, epoch: u64) {
        self.place = ChangesPlace { since: epoch, until: epoch, cursor: 0 };
    }

    /// Begins at the start, with an export of all rows.
    pub fn restart(&mut self) {
        self.place = ChangesPlace::default();
    }
}

impl Follower {
    /// A follower of tables at a server of a cluster, by its shard.
    ///
    /// # Errors
    /// The system has no room for connections.
    pub fn new(cluster: &Arc<Cluster>, server: usize) -> Result<Follower, ClientError> {
        let mut session = cluster.session()?;
        session.follow_placement();
        Ok(Follower { session, server })
    }

    /// The server's part of a table, which must have been asked for before.
    #[must_use]
    pub fn part(&self, table: &FollowedTable) -> Option<TablePart> {
        table.home.map(|home| TablePart { home, server: self.server })
    }

    /// Asks for the next page. A drain that began up to `fresh` ago, of this or another follower, is used again.
    ///
    /// # Errors
    /// After those of a stream that is too late, of a restarted server and of a table that is gone, the next page
    /// begins an export. After others it is the same page.
    pub fn page(
        &mut self,
        table: &mut FollowedTable,
        fresh: Duration,
        mut each: impl FnMut(&ChangedRows<'_>, TablePart),
    ) -> Result<FollowedPage, ClientError> {
        let (number, home) = match table.opened.zip(table.home) {
            Some(opened) => opened,
            None => self.open(table)?,
        };
        let part = TablePart { home, server: self.server };
        let (asked, place, dim) = (Instant::now(), table.place, table.dim);
        let (engine, subject) = (&mut self.session.engine, Subject::Name(table.name.as_str().into()));
        let request = Request::Changes(Changes {
            table: number.table,
            place,
            fresh_us: u32::try_from(fresh.as_micros()).unwrap_or(u32::MAX),
            keys_max: engine.rows_per_message(dim + 4).min(PAGE_KEYS) as u32,
            format: engine.connections.row_format(self.server),
        });
        let answer = engine.ask(self.server, &subject, number.needs_memory, &request, |reply| match reply {
            Reply::Changes(rows) if rows.dim as usize == dim => {
                each(&rows, part);
                Some((rows.next, rows.age_us, rows.has_more))
            }
            _ => None,
        });
        let (next, age_us, has_more) = answer.inspect_err(|error| {
            let is_too_late =
                matches!(error, ClientError::Refused { fault: Fault::StreamTooLate { .. }, .. });
            let is_gone = matches!(
                error,
                ClientError::Restarted { .. } | ClientError::Refused { fault: Fault::UnknownTable, .. }
            );
            if is_gone {
                table.opened = None;
            }
            if is_too_late || is_gone {
                table.restart();
            }
        })?;
        if place.since == place.until {
            // At the earliest. The server's clock tells a duration only, so that clocks need not agree.
            table.began = asked.checked_sub(Duration::from_micros(age_us)).unwrap_or(table.began);
        }
        table.place = next;
        let is_last = next.since == next.until && next.since != 0;
        let whole_since = (is_last && !has_more).then_some(table.began);
        Ok(FollowedPage { is_export: place.since == 0, is_last, has_more, whole_since })
    }

    fn open(&mut self, table: &mut FollowedTable) -> Result<(Number, Home), ClientError> {
        let (server, name) = (self.server, table.name.as_str());
        let found = self.session.ask(server, name, &Request::Open(name), |reply| match reply {
            Reply::Open(info) => Some((info.table, info.home, info.dim as usize)),
            _ => None,
        })?;
        let (number, home, dim) = found;
        let problem = if !self.session.engine.connections.can(server, Features::CHANGES) {
            Some("the server is too old to be followed; update it".to_owned())
        } else if dim != table.dim {
            Some(format!("its rows have {dim} weights, those of the model {}", table.dim))
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(ClientError::Cluster { reason: format!("table {name:?}: {problem}") });
        }
        let number = self.session.number(server, number);
        (table.opened, table.home) = (Some(number), Some(home));
        Ok((number, home))
    }
}
