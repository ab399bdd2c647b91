//! `sanderling keeper`: run the registry of clusters until a signal ends it.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sanderling_keeper::{Keeper, KeeperConfig};
use sanderling_server::raise_limit;
use sanderling_transport::Address;

use crate::command::ps::tell_manager;
use crate::failure::Failure;
use crate::flags::CommandLine;
use crate::listening::{SecurityArgs, note_unused_expose};
use crate::log;
use crate::output;

/// Interval between two looks at the stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Run the registry of clusters: which server is the primary of which group
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling keeper --data /var/lib/sanderling-keeper
  # for other machines, with TLS and a token
  sanderling keeper --data keeper --listen 0.0.0.0:7400 --expose \\
      --token-file token --cert-file cert.pem --key-file key.pem
  # the records of a cluster
  sanderling ctl registry list --registry keeper://127.0.0.1:7400/ads

A keeper is one process with small records, and an alternative to etcd. Each change is on disk before it is answered. While no \
keeper runs, servers and trainers go on, and only failovers and moves wait. Two keepers must not have the same clients.

Clients name it as keeper://HOST:PORT/CLUSTER. Metrics for Prometheus are at /metrics, health is at \
/healthz, status pages for a browser or curl are at /. docs/operations.md describes the records.

Prints the address when ready, and notifies systemd. SIGTERM or Ctrl-C ends it: pending requests are answered, exit code 0. A \
full disk ends nothing: changes are refused, and records are still read. Exit code 4: the records are damaged.")]
pub(crate) struct Args {
    /// Directory of the records; created if its parent exists
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Address to listen on, host:port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7400")]
    listen: Address,
    #[command(flatten)]
    security: SecurityArgs,
    /// Host names that a keeper without a token also accepts, comma-separated
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Security")]
    allow_host: Vec<String>,
    /// Show status pages although other machines reach --listen; they need the token [default: hidden there]
    #[arg(long, help_heading = "Security")]
    status_pages: bool,
}

pub(crate) fn run(args: &Args, line: &CommandLine<'_>) -> Result<u8, Failure> {
    log::start();
    output::not_a_url("--data", &args.data)?;
    let config = KeeperConfig {
        data: args.data.clone(),
        listen: args.listen.clone(),
        expose: args.security.expose,
        insecure: args.security.insecure,
        token: args.security.token()?,
        tls: args.security.tls(),
        hosts: args.allow_host.clone(),
        pages: line.pages(&toml::Table::new(), args.status_pages, "sanderling keeper"),
    };
    raise_limit();
    let stop = crate::stop::flag();
    let keeper = Keeper::start(&config, |line| note_line!("{line}"))?;
    if config.expose {
        note_unused_expose("--expose", std::slice::from_ref(&config.listen));
    }
    note!("keeper {} has {} records", keeper.number(), output::count(keeper.records_at_start() as u64));
    // Earlier notes appear before the ready line.
    log::finish();
    output::text(&format!("listening at {}", keeper.url()))?;
    tell_manager("READY=1");
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK_EVERY);
    }
    tell_manager("STOPPING=1");
    keeper.stop();
    Ok(0)
}
