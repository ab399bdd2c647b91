//! Tables that a load creates on servers: announced and confirmed before, dropped after. Runs nothing.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use sanderling_load::engine::Plan;
use sanderling_load::target::Target;

use super::{failed, unreached};
use crate::failure::Failure;
use crate::output;

/// Time limit of dropping the tables at the end.
const DROP_WITHIN: Duration = Duration::from_secs(5);

/// Whether tables are created on servers, and whether they stay.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Tables on servers")]
pub(super) struct CreationArgs {
    /// Create and fill missing tables on servers without confirmation
    #[arg(long)]
    create: bool,
    /// Keep the created tables after the run and in checkpoints [default: drop them at the end]
    #[arg(long)]
    keep: bool,
}

/// A table that is missing on the servers, or has no rows.
struct Missing {
    name: String,
    /// Is it there, without rows?
    is_empty: bool,
    /// How large it becomes, in words.
    size: String,
}

/// Tables that this command creates. They are dropped with this value unless they are kept.
#[derive(Debug)]
pub(super) struct Created {
    target: Target,
    names: Vec<String>,
    quiet: bool,
}

impl CreationArgs {
    /// A target whose tables are temporary unless they are kept.
    pub(super) fn apply(&self, target: Target) -> Target {
        if self.keep { target } else { target.with_temporary_tables() }
    }

    /// Lists the tables that a command would create on servers, and asks. Tables in this process and tables with rows need no
    /// question.
    pub(super) fn ask(
        &self,
        command: &str,
        target: &Target,
        plan: &Plan,
        fills: bool,
        quiet: bool,
    ) -> Result<Created, Failure> {
        let missing = missing(target, plan, fills)?;
        let new = missing.iter().filter(|table| !table.is_empty && !self.keep);
        let names: Vec<String> = new.map(|table| table.name.clone()).collect();
        // Not before the answer is yes: it is dropped with its tables.
        let created = |names| Created { target: target.clone(), names, quiet };
        if missing.is_empty() {
            return Ok(created(names));
        }
        let place = place(target);
        let lines: Vec<String> = missing.iter().map(|table| self.line(table)).collect();
        if self.create {
            if !quiet {
                lines.iter().for_each(|line| note_line!("{place}: {line}"));
            }
            return Ok(created(names));
        }
        if !std::io::stdin().is_terminal() {
            let (first, more) = (&lines[0], missing.len() - 1);
            let more = if more == 0 { String::new() } else { format!("; and {more} more") };
            return Err(Failure::Usage(format!(
                "load {command} on {place}: {first}{more}; allow it with --create"
            )));
        }
        lines.iter().for_each(|line| note_line!("{place}: {line}"));
        let mut out = std::io::stderr().lock();
        let asked = write!(out, "Go on? [y/N] ").and_then(|()| out.flush());
        let mut answer = String::new();
        asked.and_then(|()| std::io::stdin().read_line(&mut answer).map(|_| ())).map_err(Failure::Output)?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(created(names)),
            _ => Err(Failure::Run("nothing was created".to_owned())),
        }
    }

    fn line(&self, table: &Missing) -> String {
        let Missing { name, is_empty, size } = table;
        match (is_empty, self.keep) {
            (true, _) => format!("fills table {name:?} ({size}), which stays"),
            (false, true) => format!("creates table {name:?} ({size}), which stays (--keep)"),
            (false, false) => {
                format!("creates temporary table {name:?} ({size}): never saved, dropped at the end")
            }
        }
    }
}

/// Says which lasting tables a command creates, or fills, on servers.
pub(super) fn announce(target: &Target, plan: &Plan, fills: bool) -> Result<(), Failure> {
    let place = place(target);
    for Missing { name, is_empty, size } in missing(target, plan, fills)? {
        let does = if is_empty { "fills" } else { "creates" };
        note_line!("{place}: {does} table {name:?} ({size}), which stays until sanderling ctl drop {name}");
    }
    Ok(())
}

fn place(target: &Target) -> String {
    let servers = target.cluster().map_or(0, |cluster| cluster.servers().len());
    let servers = if servers == 1 { "1 server".to_owned() } else { format!("{servers} servers") };
    format!("{} ({servers})", target.address())
}

/// The tables of a workload that are missing on the servers, or have no rows and would be filled.
fn missing(target: &Target, plan: &Plan, fills: bool) -> Result<Vec<Missing>, Failure> {
    let mut missing = Vec::new();
    if target.cluster().is_none() {
        return Ok(missing);
    }
    let keys = plan.keys().map_err(failed)?;
    for config in plan.tables().map_err(failed)? {
        let is_empty = match target.rows(&config.name).map_err(unreached)? {
            None => false,
            Some(0) if fills => true,
            Some(_) => continue,
        };
        let size = match keys {
            Some(keys) => {
                let bytes = output::bytes(config.bytes_of_rows(keys));
                format!("up to {} rows, about {bytes}", output::count(keys))
            }
            None => "of unknown size".to_owned(),
        };
        missing.push(Missing { name: config.name, is_empty, size });
    }
    Ok(missing)
}

impl Drop for Created {
    fn drop(&mut self) {
        let Some(cluster) = self.target.cluster() else { return };
        let within = DROP_WITHIN.min(self.target.timeout());
        for name in &self.names {
            match cluster.drop_where_reached(name, within) {
                Ok(was_there) if self.quiet || !was_there => {}
                Ok(_) => note!("dropped table {name:?} on {}", self.target.address()),
                // A server that does not answer now would not answer for the next table.
                Err(error) => {
                    let left = self.names.join(" ");
                    note!(
                        "{error}; not all of the temporary tables were dropped: sanderling ctl drop {left}"
                    );
                    return;
                }
            }
        }
    }
}
