//! `sanderling ctl`: one question or order to running parameter servers, and their answers as tables or JSON. Knows their
//! control plane only as a client of it.

mod drop;
mod show;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use sanderling_client::check_same_save;
use sanderling_control::{Client, ClientOptions, ControlError};
use sanderling_observe::unique;

use crate::failure::Failure;
use crate::output;
use crate::token::read_token;
use drop::Drop;
use show::Answers;

/// The control plane of a server with default options.
const SERVER_DEFAULT: &str = "127.0.0.1:7100";
/// How often `--watch` asks.
const WATCH_DEFAULT_S: &str = "2";

/// Ask running parameter servers how they are, and tell them to save, restore, drop or end
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # the server of this machine, 127.0.0.1:7100
  sanderling ctl status
  # two shards, a line each
  sanderling ctl --server 10.0.0.5:7100,10.0.0.6:7100 status
  # latencies by command, again every 2 s
  sanderling ctl stats --watch
  # by peer and command
  sanderling ctl stats --peers
  # all tables of all servers named, at once
  sanderling ctl save before-upgrade
  sanderling ctl --json tables | jq .tables[].rows
  sanderling ctl --server db1:7100 --token-file token --tls-ca ca.pem drain

The address is that of the control plane, which sanderling ps prints: by default port 7100 for a server at 7000.

--json prints one object per server and line, with the server's address and what the service of the same name answers \
(docs/operations.md). A server that fails is reported on standard error, and the others are answered for nevertheless; but \
none restores a checkpoint that one of them has not, or of which they have different saves.

Exit codes: 0 all servers did it; 1 one was not reached or refused, or they have different saves; 2 wrong arguments; 4 no \
such table or checkpoint, or a damaged one.")]
pub(crate) struct Args {
    /// Control addresses of the servers: host:port, http://host:port or https://host:port
    #[arg(long, value_name = "ADDR,...", value_delimiter = ',', default_value = SERVER_DEFAULT, global = true)]
    server: Vec<String>,
    /// The servers' token is in this file
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Talk TLS, and trust servers whose certificate this one (PEM) has signed
    #[arg(long, value_name = "FILE", global = true)]
    tls_ca: Option<PathBuf>,
    /// One JSON object per server and line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    order: Order,
}

/// Ask again and again.
#[derive(Debug, Clone, Copy, clap::Args)]
struct Watch {
    /// Again every so many seconds, until Ctrl-C
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = WATCH_DEFAULT_S)]
    #[arg(value_parser = seconds)]
    watch: Option<Duration>,
}

#[derive(Debug, clap::Subcommand)]
enum Order {
    /// How the servers are: shard, uptime, connections, tables, memory, last save
    #[command(
        after_help = "Examples:\n  sanderling ctl status\n  sanderling ctl --server 10.0.0.5:7100,10.0.0.6:7100 status --watch 5"
    )]
    Status(Watch),
    /// Tables with rows, memory, and what has happened to them
    #[command(
        after_help = "Examples:\n  sanderling ctl tables\n  sanderling ctl --json tables | jq .tables[].rows"
    )]
    Tables(Watch),
    /// Who is connected
    #[command(after_help = "Example:\n  sanderling ctl connections")]
    Connections(Watch),
    /// How long requests took at the server since its start
    #[command(after_help = "Examples:\n  sanderling ctl stats --watch\n  sanderling ctl stats --peers")]
    Stats {
        /// By peer and command instead of by command
        #[arg(long)]
        peers: bool,
        #[command(flatten)]
        watch: Watch,
    },
    /// Save all tables under a name, while requests go on
    #[command(after_help = "Example:\n  sanderling ctl save before-upgrade")]
    Save {
        /// Letters, digits, '.', '_', '-', and '/' between folders; "latest" is what a server starts from
        name: String,
    },
    /// Put the tables of a checkpoint in the place of all
    #[command(after_help = "Example:\n  sanderling ctl restore before-upgrade")]
    Restore {
        /// As it was saved
        name: String,
    },
    /// Checkpoints with their bytes
    #[command(after_help = "Example:\n  sanderling ctl checkpoints")]
    Checkpoints,
    /// Drop tables and their rows, on all shards
    #[command(after_help = "\
Examples:
  sanderling ctl drop clicks/site
  # all tables of a run
  sanderling ctl drop 'clicks/*'
  sanderling ctl --server 10.0.0.5:7100,10.0.0.6:7100 drop --yes 'clicks/*' old")]
    Drop(Drop),
    /// Answer what is under way, save, and end
    #[command(
        after_help = "Example:\n  sanderling ctl --server db1:7100 --token-file token --tls-ca ca.pem drain"
    )]
    Drain,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "is not a number of seconds from 0.1 to 86400".to_owned())
}

impl Order {
    fn watch(&self) -> Option<Duration> {
        match self {
            Order::Status(Watch { watch })
            | Order::Tables(Watch { watch })
            | Order::Connections(Watch { watch })
            | Order::Stats { watch: Watch { watch }, .. } => *watch,
            _ => None,
        }
    }

    /// What one server answers; by the number saves of one name are told from each other.
    fn ask(&self, client: &mut Client, number: u64) -> Result<Answers, ControlError> {
        let url = client.url().to_owned();
        Ok(match self {
            Order::Status(_) => Answers::Status(vec![(url, client.status()?)]),
            Order::Tables(_) => Answers::Tables(vec![(url, client.tables()?)]),
            Order::Connections(_) => Answers::Connections(vec![(url, client.connections()?)]),
            Order::Stats { peers, .. } => Answers::Stats(*peers, vec![(url, client.stats(*peers)?)]),
            Order::Save { name } => Answers::Saved(name.clone(), vec![(url, client.save(name, number)?)]),
            Order::Restore { name } => Answers::Restored(name.clone(), vec![(url, client.restore(name)?)]),
            Order::Checkpoints => Answers::Checkpoints(vec![(url, client.checkpoints()?)]),
            Order::Drop(_) => unreachable!("it is several questions"),
            Order::Drain => Answers::Draining(vec![(url, client.drain()?)]),
        })
    }
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let token = args
        .token_file
        .as_ref()
        .map(|path| read_token(path).map_err(|error| Failure::Usage(format!("--token-file {error}"))));
    let options = ClientOptions { token: token.transpose()?, ca: args.tls_ca.clone() };
    let mut clients: Vec<Option<Client>> = args.server.iter().map(|_| None).collect();
    let clears = !args.json && std::io::stdout().is_terminal();
    let mut is_first = true;
    if let Order::Drop(order) = &args.order {
        return order.run(&args.server, &options, &mut clients, args.json);
    }
    if let Order::Restore { name } = &args.order {
        check_saves(name, &args.server, &options, &mut clients)?;
    }
    // One that a single server makes is nobody else's.
    let number = if args.server.len() > 1 { unique().max(1) } else { 0 };
    loop {
        let order = |client: &mut Client| args.order.ask(client, number);
        let results = ask_all(&args.server, &options, &mut clients, order);
        let (answers, errors) = sort(results);
        let Some(every) = args.order.watch() else {
            show(answers, args.json)?;
            return fail(errors, args.server.len());
        };
        match (clears, is_first) {
            (true, _) => output::clear()?,
            (false, false) if !args.json => output::text("")?,
            (false, _) => {}
        }
        is_first = false;
        show(answers, args.json)?;
        errors.iter().for_each(|error| note_line!("error: {error}"));
        std::thread::sleep(every);
    }
}

/// Asks all servers which save of this name they have, before any restores it.
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
            // Of a time before saves had numbers.
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

/// Asks all servers at once, since a save of one may take as long as that of all.
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
                    // One that failed is connected anew the next time.
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

fn show(answers: Option<Answers>, json: bool) -> Result<(), Failure> {
    let Some(answers) = answers else { return Ok(()) };
    match json {
        true => answers.lines()?.iter().try_for_each(|line| output::text(line))?,
        false => output::text(&answers.text())?,
    }
    Ok(())
}

/// The last failure is the command's; the others are said before it.
fn fail(mut errors: Vec<ControlError>, servers: usize) -> Result<u8, Failure> {
    let Some(last) = errors.pop() else { return Ok(0) };
    errors.iter().for_each(|error| note_line!("error: {error}"));
    if servers > errors.len() + 1 {
        note!("the other servers have answered");
    }
    Err(Failure::Control(last))
}
