//! `sanderling ctl`: query and control running parameter servers through their control plane.

mod begin_anew;
mod cluster;
mod drop;
mod groups;
mod in_cluster;
mod registry;
mod saves;
mod show;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use sanderling_client::check_same_save;
use sanderling_control::{Client, ClientOptions, ControlError};
use sanderling_observe::unique;

use crate::failure::Failure;
use crate::output;
use crate::token::read_token;
use crate::width;
use begin_anew::BeginAnew;
use cluster::Cluster;
use drop::Drop;
use groups::{Groups, Rebalance};
use registry::Registry;
use show::Answers;

/// The control plane of a server with default options.
const SERVER_DEFAULT: &str = "127.0.0.1:7100";
/// Default interval of `--watch`.
const WATCH_DEFAULT: &str = "2s";

/// Query and control running parameter servers
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # server of this machine, 127.0.0.1:7100
  sanderling ctl status
  # two shards
  sanderling ctl --server 10.0.0.5:7100,10.0.0.6:7100 status
  # latencies by command, every 2 s
  sanderling ctl stats --watch
  # by peer and command
  sanderling ctl stats --peers
  # save all tables of all named servers
  sanderling ctl save before-upgrade
  sanderling ctl --json tables | jq '.tables[].rows'
  sanderling ctl --server db1:7100 --token-file token --ca-file ca.pem drain

--server takes control addresses, which sanderling ps prints: by default port 7100 for a server on port 7000.

--json prints an object per server and line: the address and the reply of the control service (docs/operations.md). An \
unreachable server is reported on standard error; the others are still shown. restore needs the checkpoint of one save on all \
servers, or it changes none.

Exit codes: 0 success on all servers; 1 a server was unreachable or refused, or checkpoints differ; 2 wrong arguments; 4 \
unknown or damaged table or checkpoint.")]
pub(crate) struct Args {
    /// Control addresses of the servers, comma-separated: host:port, http://host:port or https://host:port
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',', default_value = SERVER_DEFAULT, global = true)]
    server: Vec<String>,
    /// File with the auth token of the servers [default: the generated token of this user]
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// CA bundle (PEM) to verify servers; enables TLS
    #[arg(long, value_name = "FILE", global = true)]
    ca_file: Option<PathBuf>,
    /// Print one line of JSON per server
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    order: Order,
}

/// Repetition of a query.
#[derive(Debug, Clone, Copy, clap::Args)]
struct Watch {
    /// Repeat until Ctrl-C, every 2s or at this interval, 100ms to 24h [default: once]
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = WATCH_DEFAULT)]
    #[arg(value_parser = interval)]
    watch: Option<Duration>,
}

#[derive(Debug, clap::Subcommand)]
enum Order {
    /// Show shard, uptime, connections, tables, memory and last save
    #[command(
        after_help = "Examples:\n  sanderling ctl status\n  sanderling ctl --server 10.0.0.5:7100,10.0.0.6:7100 status --watch 5s"
    )]
    Status(Watch),
    /// List tables with rows, memory and counters
    #[command(
        after_help = "Examples:\n  sanderling ctl tables\n  sanderling ctl --json tables | jq '.tables[].rows'"
    )]
    Tables(Watch),
    /// List client connections
    #[command(after_help = "Example:\n  sanderling ctl connections")]
    Connections(Watch),
    /// Show the keys that requests of the last minutes ask for most, by server
    #[command(
        after_help = "Examples:\n  sanderling ctl hot\n  sanderling ctl --json hot | jq '.keys[0]'\n\nThe keys of sampled requests \
                      (ps --sample-every) are counted. A key that is hotter than a server can answer may be pulled from backups: \
                      train --ps-pull-from any."
    )]
    Hot(Watch),
    /// Show request latencies since the start of the server, by command
    #[command(after_help = "Examples:\n  sanderling ctl stats --watch\n  sanderling ctl stats --peers")]
    Stats {
        /// Show latencies by peer and command
        #[arg(long)]
        peers: bool,
        #[command(flatten)]
        watch: Watch,
    },
    /// Save all tables as a named checkpoint, while requests continue
    #[command(
        after_help = "Examples:\n  sanderling ctl save before-upgrade\n  sanderling ctl save --delta hourly\n  # all groups of a \
                      cluster\n  sanderling ctl save before-upgrade --registry keeper://127.0.0.1:7400/ads"
    )]
    Save {
        /// Save a delta on the last save of this name: what changed since; in full if that is not possible
        #[arg(long)]
        delta: bool,
        /// Checkpoint name: letters, digits, '.', '_', '-', '/'; "latest" is restored at the next start
        name: String,
        /// Registry of a cluster: the primaries of all its groups save, in place of --server
        #[arg(long, value_name = "URL", conflicts_with = "delta")]
        registry: Option<String>,
    },
    /// Replace all tables by those of a checkpoint
    #[command(
        after_help = "Examples:\n  sanderling ctl restore before-upgrade\n  # all groups of a cluster\n  sanderling ctl restore \
                      before-upgrade --registry keeper://127.0.0.1:7400/ads"
    )]
    Restore {
        /// Checkpoint name, as shown by ctl checkpoints; NAME@2 for the state after its first 2 deltas
        name: String,
        /// Registry of a cluster: the primaries of all its groups restore, in place of --server
        #[arg(long, value_name = "URL")]
        registry: Option<String>,
    },
    /// List checkpoints of all servers with their sizes
    #[command(after_help = "Example:\n  sanderling ctl checkpoints")]
    Checkpoints,
    /// Drop tables and their rows on all named servers
    #[command(after_help = "\
Examples:
  sanderling ctl drop clicks/site
  # all tables of a run
  sanderling ctl drop 'clicks/*'
  sanderling ctl --server 10.0.0.5:7100,10.0.0.6:7100 drop --yes 'clicks/*' old")]
    Drop(Drop),
    /// Show the groups of a cluster with their servers, roles and lag
    Cluster(Cluster),
    BeginAnew(BeginAnew),
    /// Add a group of replicas to a cluster, or drain one
    #[command(subcommand)]
    Groups(Groups),
    /// Share the slots of a cluster out anew among its groups, while requests go on
    Rebalance(Rebalance),
    /// Let another replica become the primary of the group, and wait until it is
    #[command(after_help = "Example:\n  sanderling ctl --server 10.0.0.5:7100 hand-over")]
    HandOver,
    #[command(after_help = "Example:\n  sanderling ctl registry list --registry keeper://127.0.0.1:7400/ads")]
    Registry(Registry),
    /// Shut the servers down: answer pending requests, save all tables, exit
    #[command(
        after_help = "Example:\n  sanderling ctl --server db1:7100 --token-file token --ca-file ca.pem drain"
    )]
    Drain,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = crate::quantity::time(text)?;
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(86_400));
    if (least..=most).contains(&time) { Ok(time) } else { Err("must be 100ms to 24h".to_owned()) }
}

impl Order {
    fn watch(&self) -> Option<Duration> {
        match self {
            Order::Status(Watch { watch })
            | Order::Tables(Watch { watch })
            | Order::Connections(Watch { watch })
            | Order::Hot(Watch { watch })
            | Order::Cluster(Cluster { watch: Watch { watch }, .. })
            | Order::Stats { watch: Watch { watch }, .. } => *watch,
            _ => None,
        }
    }

    /// Sends the order to one server; `number` identifies a save.
    fn ask(&self, client: &mut Client, number: u64) -> Result<Answers, ControlError> {
        let url = client.url().to_owned();
        Ok(match self {
            Order::Status(_) => Answers::Status(vec![(url, client.status()?)]),
            Order::Tables(_) => Answers::Tables(vec![(url, client.tables()?)]),
            Order::Connections(_) => Answers::Connections(vec![(url, client.connections()?)]),
            Order::Hot(_) => Answers::Hot(vec![(url, client.hot()?)]),
            Order::Stats { peers, .. } => Answers::Stats(*peers, vec![(url, client.stats(*peers)?)]),
            Order::Save { name, delta, .. } => {
                Answers::Saved(name.clone(), vec![(url, client.save(name, number, *delta)?)])
            }
            Order::Restore { name, .. } => {
                Answers::Restored(name.clone(), vec![(url, client.restore(name)?)])
            }
            Order::Checkpoints => Answers::Checkpoints(vec![(url, client.checkpoints()?)]),
            Order::HandOver => Answers::HandedOver(vec![(url, client.hand_over()?)]),
            Order::Drop(_)
            | Order::Registry(_)
            | Order::Cluster(_)
            | Order::Groups(_)
            | Order::Rebalance(_)
            | Order::BeginAnew(_) => {
                unreachable!("it is not one question to each server")
            }
            Order::Drain => Answers::Draining(vec![(url, client.drain()?)]),
        })
    }
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let token = args
        .token_file
        .as_ref()
        .map(|path| read_token(path).map_err(|error| Failure::Usage(format!("--token-file {error}"))));
    if let Some(path) = &args.ca_file {
        let readable = std::fs::File::open(path);
        readable.map_err(|error| Failure::Usage(format!("--ca-file {}: {error}", path.display())))?;
    }
    let options = ClientOptions { token: token.transpose()?, ca: args.ca_file.clone() };
    if let Order::Registry(order) = &args.order {
        return order.run(options.token, args.ca_file.as_deref(), args.json);
    }
    if let Order::BeginAnew(order) = &args.order {
        return order.run(options.token.as_deref(), args.json);
    }
    if let Order::Groups(order) = &args.order {
        return order.run(options.token.as_deref(), args.json);
    }
    if let Order::Rebalance(order) = &args.order {
        return order.run(options.token.as_deref(), args.json);
    }
    let mut clients: Vec<Option<Client>> = args.server.iter().map(|_| None).collect();
    let clears = !args.json && std::io::stdout().is_terminal();
    let mut is_first = true;
    if let Order::Drop(order) = &args.order {
        return order.run(&args.server, &options, &mut clients, args.json);
    }
    let of_cluster = match &args.order {
        Order::Save { name, registry: Some(url), .. } => Some(saves::save(url, name, &options)?),
        Order::Restore { name, registry: Some(url) } => Some(saves::restore(url, name, &options)?),
        _ => None,
    };
    if let Some(answers) = of_cluster {
        print(Some(shown(&answers, args.json)?), args.json)?;
        return Ok(0);
    }
    if let Order::Restore { name, .. } = &args.order {
        check_saves(name, &args.server, &options, &mut clients)?;
    }
    // A save of a single server needs no number.
    let number = if args.server.len() > 1 { unique().max(1) } else { 0 };
    loop {
        let (shown, errors) = match &args.order {
            Order::Cluster(order) => {
                let view = order.view(&options)?;
                let json = serde_json::to_string(&view).map_err(std::io::Error::from)?;
                (Some(if args.json { json } else { cluster::text(&view) }), Vec::new())
            }
            order => {
                let order = |client: &mut Client| order.ask(client, number);
                let (answers, errors) = sort(ask_all(&args.server, &options, &mut clients, order));
                (answers.map(|answers| shown(&answers, args.json)).transpose()?, errors)
            }
        };
        let Some(every) = args.order.watch() else {
            print(shown, args.json)?;
            return fail(errors, args.server.len());
        };
        match (clears, is_first) {
            (true, _) => output::clear()?,
            (false, false) if !args.json => output::text("")?,
            (false, _) => {}
        }
        is_first = false;
        print(shown, args.json)?;
        errors.iter().for_each(|error| note_line!("error: {error}"));
        std::thread::sleep(every);
    }
}

/// Checks that all servers have one save of this name, before any restores it.
fn check_saves(
    name: &str,
    servers: &[String],
    options: &ClientOptions,
    clients: &mut [Option<Client>],
) -> Result<(), Failure> {
    if servers.len() < 2 {
        return Ok(());
    }
    let saved = |client: &mut Client| Ok((client.url().to_owned(), client.saved(name)?));
    let (mut urls, mut numbers, mut errors) = (Vec::new(), Vec::new(), Vec::new());
    for answer in ask_all(servers, options, clients, saved) {
        match answer {
            Ok((url, Some(number))) => {
                urls.push(url);
                numbers.push(number);
            }
            // An older checkpoint, without a number.
            Ok((_, None)) => {}
            Err(error) => errors.push(error),
        }
    }
    if let Some(last) = errors.pop() {
        errors.iter().for_each(|error| note_line!("error: {error}"));
        note!("nothing was restored, since not all of the servers can restore {name:?}");
        return Err(last.into());
    }
    Ok(check_same_save(name, &numbers, &urls)?)
}

/// Asks on the terminal; an answer other than yes is a failure that says so.
fn confirm(question: &str, refused: &str) -> Result<(), Failure> {
    let mut out = std::io::stderr().lock();
    let asked = write!(out, "{question} [y/N] ").and_then(|()| out.flush());
    let mut answer = String::new();
    asked.and_then(|()| std::io::stdin().read_line(&mut answer).map(|_| ())).map_err(Failure::Output)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::Run(refused.to_owned())),
    }
}

/// Sends requests to all servers in parallel.
fn ask_all<T: Send>(
    servers: &[String],
    options: &ClientOptions,
    clients: &mut [Option<Client>],
    ask: impl Fn(&mut Client) -> Result<T, ControlError> + Sync,
) -> Vec<Result<T, ControlError>> {
    let ask = &ask;
    std::thread::scope(|scope| {
        let asking: Vec<_> = servers
            .iter()
            .zip(clients)
            .map(|(server, slot)| {
                scope.spawn(move || {
                    let mut client = match slot.take() {
                        Some(client) => client,
                        None => Client::connect(server, options)?,
                    };
                    let answer = ask(&mut client)?;
                    // A failed client is not kept: the next request reconnects.
                    *slot = Some(client);
                    Ok(answer)
                })
            })
            .collect();
        let answer = |thread: std::thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(answer) => answer,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        asking.into_iter().map(answer).collect()
    })
}

fn sort(results: Vec<Result<Answers, ControlError>>) -> (Option<Answers>, Vec<ControlError>) {
    let (mut all, mut errors): (Option<Answers>, _) = (None, Vec::new());
    for result in results {
        match (result, &mut all) {
            (Ok(answers), Some(all)) => all.add(answers),
            (Ok(answers), None) => all = Some(answers),
            (Err(error), _) => errors.push(error),
        }
    }
    (all, errors)
}

fn shown(answers: &Answers, json: bool) -> Result<String, Failure> {
    Ok(if json { answers.lines()?.join("\n") } else { answers.text(width::of_stdout()) })
}

fn print(shown: Option<String>, json: bool) -> Result<(), Failure> {
    let Some(shown) = shown else { return Ok(()) };
    match json {
        true => output::text(&shown)?,
        false => output::prose(&shown)?,
    }
    Ok(())
}

/// Returns the last error and prints the others.
fn fail(mut errors: Vec<ControlError>, servers: usize) -> Result<u8, Failure> {
    let Some(last) = errors.pop() else { return Ok(0) };
    errors.iter().for_each(|error| note_line!("error: {error}"));
    if servers > errors.len() + 1 {
        note!("the other servers answered");
    }
    Err(Failure::Control(last))
}
