//! `sanderling ctl drop`: find tables by pattern, ask for confirmation, and drop them.

use std::collections::BTreeSet;
use std::io::IsTerminal;

use sanderling_control::proto::{StatusReply, Table};
use sanderling_control::{Client, ClientOptions, Code, ControlError};
use sanderling_observe::pattern::matches;

use super::show::{Answers, time};
use super::{ask_all, confirm, fail, print, shown};
use crate::failure::Failure;
use crate::output;

/// Maximum tables listed before the question.
const LISTED_MAX: usize = 20;

/// Options of `ctl drop`.
#[derive(Debug, clap::Args)]
pub(super) struct Drop {
    /// Table names; * matches any characters, in quotes: 'clicks/*'
    #[arg(required = true, value_name = "TABLE")]
    tables: Vec<String>,
    /// Drop without confirmation; needed without a terminal
    #[arg(long, short)]
    yes: bool,
    /// Drop on the servers of --server even if the tables have shards on others
    #[arg(long)]
    some_shards: bool,
}

/// Matching tables of one server.
struct Found {
    url: String,
    status: StatusReply,
    tables: Vec<Table>,
}

impl Drop {
    /// Finds the tables on all servers, asks, and drops them.
    pub(super) fn run(
        &self,
        servers: &[String],
        options: &ClientOptions,
        clients: &mut [Option<Client>],
        json: bool,
    ) -> Result<u8, Failure> {
        let look = |client: &mut Client| {
            let mut tables = client.tables()?.tables;
            tables.retain(|table| self.tables.iter().any(|pattern| matches(pattern, &table.name)));
            Ok(Found { url: client.url().to_owned(), status: client.status()?, tables })
        };
        let mut found = Vec::new();
        for answer in ask_all(servers, options, clients, look) {
            // Nothing is dropped unless all servers answer.
            found.push(answer?);
        }
        for pattern in &self.tables {
            if !found.iter().flat_map(|found| &found.tables).any(|table| matches(pattern, &table.name)) {
                let reason = format!("there is no table {pattern:?}; ctl tables lists them");
                let url = found.first().map_or_else(String::new, |found| found.url.clone());
                return Err(ControlError::Refused { url, code: Code::NotFound, reason }.into());
            }
        }
        if !self.some_shards {
            all_shards(&found).map_err(Failure::Usage)?;
        }
        if !self.yes {
            ask(&found)?;
        }
        let order = |client: &mut Client| {
            let url = client.url().to_owned();
            let of = found.iter().find(|found| found.url == url);
            for table in of.into_iter().flat_map(|found| &found.tables) {
                client.drop_table(&table.name)?;
            }
            Ok(url)
        };
        let (mut dropped, mut errors) = (Vec::new(), Vec::new());
        for answer in ask_all(servers, options, clients, order) {
            match answer {
                Ok(url) => dropped.push(url),
                Err(error) => errors.push(error),
            }
        }
        for name in names(&found) {
            let has = |url: &&String| {
                found.iter().any(|found| found.url == **url && found.tables.iter().any(|t| t.name == name))
            };
            let urls: Vec<String> = dropped.iter().filter(has).cloned().collect();
            if !urls.is_empty() {
                print(Some(shown(&Answers::Dropped(name, urls), json)?), json)?;
            }
        }
        fail(errors, servers.len())
    }
}

/// Names of all matching tables.
fn names(found: &[Found]) -> BTreeSet<String> {
    found.iter().flat_map(|found| &found.tables).map(|table| table.name.clone()).collect()
}

/// Refuses sharded tables unless all shards of their group are named.
fn all_shards(found: &[Found]) -> Result<(), String> {
    let sharded = |found: &&Found| found.tables.iter().any(|table| table.pinned.is_none());
    let Some(first) = found.iter().find(sharded) else { return Ok(()) };
    let shards = first.status.shards;
    let named: BTreeSet<u32> = found.iter().map(|found| found.status.shard).collect();
    let missing: Vec<String> =
        (0..shards).filter(|shard| !named.contains(shard)).map(|shard| shard.to_string()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let of = if missing.len() == 1 { "shard" } else { "shards" };
    Err(format!(
        "{} is shard {} of {shards}: the rows on {of} {} would stay; name the control addresses of all shards by --server, or \
         say --some-shards",
        first.url,
        first.status.shard,
        missing.join(", ")
    ))
}

/// Asks for confirmation on the terminal.
fn ask(found: &[Found]) -> Result<(), Failure> {
    let (names, servers) = (names(found), found.iter().filter(|found| !found.tables.is_empty()).count());
    let tables = || found.iter().flat_map(|found| &found.tables);
    let rows: u64 = tables().map(|table| table.rows).sum();
    let bytes: u64 = tables().map(|table| table.index_bytes + table.slab_bytes).sum();
    let what = match names.len() {
        1 => "1 table".to_owned(),
        count => format!("{count} tables"),
    };
    let on = if servers == 1 { "1 server".to_owned() } else { format!("{servers} servers") };
    let all = format!("{what} with {} rows ({}) on {on}", output::count(rows), output::bytes(bytes));
    if !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(format!("drop: {all}: confirmation needs a terminal; pass --yes")));
    }
    for name in names.iter().take(LISTED_MAX) {
        let age = tables().filter(|table| table.name == *name).find_map(|table| table.age_ms);
        let age = age.map_or_else(String::new, |ms| {
            format!(", made {} ago", time(std::time::Duration::from_millis(ms)))
        });
        note_line!("{name}{age}");
    }
    if let Some(more) = names.len().checked_sub(LISTED_MAX).filter(|more| *more > 0) {
        note!("and {more} more");
    }
    confirm(&format!("Drop {all}?"), "nothing was dropped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shard_of_several_is_not_all_of_a_table() {
        let found = |shard: u32, shards: u32, pinned: Option<u32>| Found {
            url: format!("http://h:{shard}"),
            status: StatusReply { shard, shards, ..Default::default() },
            tables: vec![Table { name: "t".to_owned(), pinned, ..Default::default() }],
        };
        assert_eq!(all_shards(&[found(0, 1, None)]), Ok(()));
        assert_eq!(all_shards(&[found(1, 2, None), found(0, 2, None)]), Ok(()));
        assert_eq!(all_shards(&[found(1, 3, Some(1))]), Ok(()), "all of it is there");
        let said = all_shards(&[found(1, 3, None)]).unwrap_err();
        assert!(said.starts_with("http://h:1 is shard 1 of 3: the rows on shards 0, 2 would stay"), "{said}");
    }
}
