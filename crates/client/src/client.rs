//! The tables of a model, in this process or on servers, and which feature reads which. Knows nothing of what the rows
//! mean.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sanderling_observe::unique;
use sanderling_sample::Rows;
use sanderling_store::{Absent, PushScale, Table};

use crate::error::ClientError;
use crate::lookup::{Lookup, TableLookup};
use crate::remote::RemoteTable;
use crate::session::{PullInto, PullPart, Session, check_push};
use crate::shared_push::push_shared;
use crate::stop::Stop;

/// Distinct keys of a table in this process that are pulled together: many enough that their misses overlap, few enough that
/// what is pulled is still in a near cache when it is shown.
const TOGETHER_KEYS: usize = 1024;

/// The tables of a model, and which feature reads which. Cheap to share: workers bring their own [`Lookup`].
#[derive(Debug)]
pub struct Client {
    tables: Tables,
    column_tables: Vec<usize>,
    constant: Option<usize>,
    /// Number of the next minibatch whose keys are fed.
    batches: AtomicU64,
}

/// Where the tables are.
#[derive(Debug)]
enum Tables {
    Embedded(Vec<Arc<Table>>),
    Remote(Vec<RemoteTable>),
}

impl Client {
    /// A client over tables in this process. `features` are `(feature, table)` names in the order of a batch's columns;
    /// `constant` names a table whose row [`crate::CONSTANT_KEY`] every minibatch gets (a bias).
    pub fn embedded<'a>(
        tables: Vec<Arc<Table>>,
        features: impl IntoIterator<Item = (&'a str, &'a str)>,
        constant: Option<&'a str>,
    ) -> Result<Self, ClientError> {
        let names: Vec<String> = tables.iter().map(|table| table.name().to_owned()).collect();
        // Features name their tables, so that two of one name would all be the first.
        let is_other = |at: usize| {
            let first = names.iter().position(|name| *name == names[at]).unwrap_or(at);
            !Arc::ptr_eq(&tables[first], &tables[at])
        };
        if let Some(at) = (0..tables.len()).find(|&at| is_other(at)) {
            return Err(ClientError::TwinTables { table: names[at].clone() });
        }
        Client::new(Tables::Embedded(tables), &names, features, constant)
    }

    /// A client over tables on the servers of one cluster, each with the name by which features know it.
    pub fn remote<'a>(
        tables: Vec<(String, RemoteTable)>,
        features: impl IntoIterator<Item = (&'a str, &'a str)>,
        constant: Option<&'a str>,
    ) -> Result<Self, ClientError> {
        let (names, tables): (Vec<String>, Vec<RemoteTable>) = tables.into_iter().unzip();
        if let Some(first) = tables.first() {
            first.cluster().check_tables(&tables)?;
        }
        Client::new(Tables::Remote(tables), &names, features, constant)
    }

    fn new<'a>(
        tables: Tables,
        names: &[String],
        features: impl IntoIterator<Item = (&'a str, &'a str)>,
        constant: Option<&'a str>,
    ) -> Result<Self, ClientError> {
        let find = |feature: &str, name: &str| {
            names.iter().position(|other| other == name).ok_or_else(|| ClientError::UnknownTable {
                feature: feature.to_string(),
                table: name.to_string(),
            })
        };
        let column_tables =
            features.into_iter().map(|(feature, name)| find(feature, name)).collect::<Result<_, _>>()?;
        let constant = constant.map(|name| find("(constant)", name)).transpose()?;
        Ok(Client { tables, column_tables, constant, batches: AtomicU64::new(unique()) })
    }

    /// The tables in this process, in the order given; none if they are on servers.
    #[must_use]
    pub fn tables(&self) -> &[Arc<Table>] {
        match &self.tables {
            Tables::Embedded(tables) => tables,
            Tables::Remote(_) => &[],
        }
    }

    /// The tables on servers, in the order given; none if they are in this process.
    #[must_use]
    pub fn remote_tables(&self) -> &[RemoteTable] {
        match &self.tables {
            Tables::Embedded(_) => &[],
            Tables::Remote(tables) => tables,
        }
    }

    /// Per feature, its table.
    pub(crate) fn column_tables(&self) -> &[usize] {
        &self.column_tables
    }

    /// The table of the constant.
    pub(crate) fn constant_table(&self) -> Option<usize> {
        self.constant
    }

    pub(crate) fn next_batch(&self) -> u64 {
        self.batches.fetch_add(1, Ordering::Relaxed)
    }

    /// Room for one minibatch at a time. With tables on servers it also holds the connections of the worker, which are
    /// made when it is used first.
    #[must_use]
    pub fn lookup(&self) -> Lookup {
        let dims: Vec<usize> = match &self.tables {
            Tables::Embedded(tables) => tables.iter().map(|table| table.dim()).collect(),
            Tables::Remote(tables) => tables.iter().map(RemoteTable::dim).collect(),
        };
        Lookup::new(dims.into_iter(), &self.column_tables, self.constant)
    }

    /// Connections for [`Lookup::swap_session`], which are made when they are used first; none if the tables are in this process.
    pub fn session(&self) -> Result<Option<Session>, ClientError> {
        self.remote_tables().first().map(|table| table.cluster().session()).transpose()
    }

    /// Pulls the rows of a minibatch's distinct keys into `lookup`. Returns how many of them have no row yet.
    pub fn pull(&self, rows: &Rows<'_>, absent: Absent, lookup: &mut Lookup) -> Result<usize, ClientError> {
        self.pull_each(rows, absent, lookup, |_, _| {})
    }

    /// The same, and does something while servers are waited for. Tables in this process are not: then it is not done.
    pub fn pull_while(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        meanwhile: impl FnOnce(),
    ) -> Result<usize, ClientError> {
        self.pull_each_while(rows, absent, lookup, |_, _| {}, meanwhile)
    }

    /// [`Client::pull`], and shows each feature, by its number, when the rows of all of its keys have come: what is done with
    /// them then finds them in a near cache. After an error some were shown.
    pub fn pull_each(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        each: impl FnMut(&Lookup, usize),
    ) -> Result<usize, ClientError> {
        self.pull_each_while(rows, absent, lookup, each, || {})
    }

    fn pull_each_while(
        &self,
        rows: &Rows<'_>,
        absent: Absent,
        lookup: &mut Lookup,
        mut each: impl FnMut(&Lookup, usize),
        meanwhile: impl FnOnce(),
    ) -> Result<usize, ClientError> {
        let Tables::Embedded(tables) = &self.tables else {
            lookup.assign_once(rows);
            return self.pull_assigned(absent, lookup, each, meanwhile);
        };
        lookup.begin();
        let mut missing = 0;
        for (number, table) in tables.iter().enumerate() {
            // Of its features so many were added, and so many are shown; of its distinct keys so many are pulled.
            let (mut added, mut shown, mut pulled) = (0, 0, 0);
            let features = lookup.readers(number).len();
            loop {
                let is_end = added == features;
                if is_end {
                    lookup.add_constant(number);
                } else {
                    lookup.add(lookup.readers(number)[added], rows);
                    added += 1;
                }
                let part = &mut lookup.tables[number];
                if !is_end && part.distinct() - pulled < TOGETHER_KEYS {
                    continue;
                }
                missing += pull_new(table, absent, lookup.notes_missing, part, pulled)?;
                pulled = part.distinct();
                for at in shown..added {
                    each(lookup, lookup.readers(number)[at]);
                }
                shown = added;
                if is_end {
                    break;
                }
            }
        }
        Ok(missing)
    }

    /// Pulls the keys that are in the lookup, but for those of tables whose rows the servers pool, from servers, and does
    /// something else meanwhile; then shows each feature of the others.
    pub(crate) fn pull_assigned(
        &self,
        absent: Absent,
        lookup: &mut Lookup,
        mut each: impl FnMut(&Lookup, usize),
        meanwhile: impl FnOnce(),
    ) -> Result<usize, ClientError> {
        let tables = self.remote_tables();
        let fed: Vec<bool> = (0..tables.len()).map(|table| lookup.is_fed(table)).collect();
        let Lookup { tables: parts, fans, session, notes_missing, .. } = lookup;
        let session = match (session, tables.first()) {
            (Some(session), _) => session,
            (none, Some(table)) => none.insert(table.cluster().session()?),
            (_, None) => return Ok(0),
        };
        fans.resize_with(tables.len(), Default::default);
        for (((table, part), fan), &is_fed) in tables.iter().zip(&*parts).zip(&mut *fans).zip(&fed) {
            let keys: &[u64] = if is_fed { &[] } else { &part.dedup.unique };
            fan.assign(session.placement(), table.home(), keys);
        }
        let asked: Vec<PullPart<'_>> =
            tables.iter().zip(&*fans).map(|(table, fan)| PullPart { table, fan }).collect();
        let mut into: Vec<PullInto<'_>> = parts
            .iter_mut()
            .map(|part| PullInto { out: &mut part.rows, missing: notes_missing.then_some(&mut part.missing) })
            .collect();
        let missing = session.pull_parts(&asked, &mut into, absent, meanwhile)?;
        parts.iter_mut().for_each(|part| part.missing.sort_unstable());
        let features = self.column_tables.iter().enumerate();
        features.filter(|(_, table)| !fed[**table]).for_each(|(feature, _)| each(lookup, feature));
        Ok(missing)
    }

    /// Pushes the gradients that were added up in `lookup` since the pull: one update per distinct key. On servers they
    /// are under way when this returns: the lookup's next pull sees them, and says if they failed, as [`Client::finish`]
    /// does.
    pub fn push(&self, lookup: &mut Lookup, scale: PushScale) -> Result<(), ClientError> {
        self.push_by(1, lookup, scale)
    }

    /// The same, by up to so many threads where tables in this process get many keys. Each key is one thread's, so that rows
    /// become what they become by one.
    pub fn push_by(&self, threads: usize, lookup: &mut Lookup, scale: PushScale) -> Result<(), ClientError> {
        self.push_each(threads, lookup, &|_| scale)
    }

    /// As [`Client::push_by`], where `scale_of` says by its number what each table's push is scaled by.
    pub fn push_each(
        &self,
        threads: usize,
        lookup: &mut Lookup,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        self.begin(threads, lookup, scale_of)?;
        lookup.session.iter_mut().for_each(Session::send);
        Ok(())
    }

    /// The same, but to servers it goes with the lookup's next pull, or when that is finished: for who pulls at once, and sends
    /// half as many messages so. A gradient that is refused in one table is applied in none.
    pub fn begin_push(&self, lookup: &mut Lookup, scale: PushScale) -> Result<(), ClientError> {
        self.begin(1, lookup, &|_| scale)
    }

    fn begin(
        &self,
        threads: usize,
        lookup: &mut Lookup,
        scale_of: &dyn Fn(usize) -> PushScale,
    ) -> Result<(), ClientError> {
        let parts = &mut lookup.tables;
        match &self.tables {
            Tables::Embedded(tables) => {
                // All are checked before any is applied.
                let mut pushes = Vec::with_capacity(tables.len());
                for (number, (table, part)) in tables.iter().zip(parts).enumerate() {
                    let (keys, counts, grads) = part.gradients();
                    pushes.push(table.check_push(keys, counts, grads, scale_of(number))?);
                }
                for push in &pushes {
                    push_shared(push, threads)?;
                }
            }
            Tables::Remote(tables) => {
                let Some(session) = &mut lookup.session else { return Ok(()) };
                if !lookup.fed.is_empty() {
                    // What comes under its number from now on could overtake the push.
                    lookup.batch = None;
                }
                for number in lookup.unfed.drain(..) {
                    let (table, keys) = (&tables[number], &parts[number].dedup.unique);
                    lookup.fans[number].assign(session.placement(), table.home(), keys);
                }
                if tables.len() > 1 {
                    let all = tables.iter().zip(&mut *parts).zip(&lookup.fans);
                    for (number, ((table, part), fan)) in all.enumerate() {
                        check_push(table, fan, part.gradients().2, scale_of(number))?;
                    }
                }
                for (number, ((table, part), fan)) in tables.iter().zip(parts).zip(&lookup.fans).enumerate() {
                    let (_, counts, grads) = part.gradients();
                    session.begin_push(table, fan, counts, grads, scale_of(number))?;
                }
                self.push_fed(&mut lookup.fed, session, scale_of)?;
            }
        }
        Ok(())
    }

    /// What whoever waits for its servers asks now and then; None if there are none, or nothing is to be asked.
    #[must_use]
    pub fn stop(&self) -> Option<&Stop> {
        self.remote_tables().first().and_then(|table| table.cluster().stop())
    }

    /// Waits until the servers have applied what was pushed.
    pub fn finish(&self, lookup: &mut Lookup) -> Result<(), ClientError> {
        lookup.session.as_mut().map_or(Ok(()), crate::session::Session::finish)
    }
}

/// Pulls the distinct keys of a table from this number on; how many of them have no row.
fn pull_new(
    table: &Table,
    absent: Absent,
    notes_missing: bool,
    part: &mut TableLookup,
    from: usize,
) -> Result<usize, ClientError> {
    let TableLookup { dedup, dim, rows, missing, .. } = part;
    let (keys, out) = (&dedup.unique[from..], &mut rows[from * *dim..]);
    if !notes_missing {
        return Ok(table.pull(keys, absent, out, None)?);
    }
    let mut new_missing = Vec::new();
    let count = table.pull(keys, absent, out, Some(&mut new_missing))?;
    missing.extend(new_missing.iter().map(|&position| position + from as u32));
    Ok(count)
}
