//! `sanderling ps`: run a parameter server until a signal ends it.

mod balance;
mod cluster;
mod options;
mod own;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sanderling_control::ControlPlane;
use sanderling_server::{
    Config, Control, PortListener, Server, ServerError, control_address, listen_for_control, raise_limit,
    systemd,
};
use sanderling_transport::Address;

use crate::failure::{Failure, INTERRUPTED};
use crate::flags::CommandLine;
use crate::listening::{are_reached_by_others, note_unused_expose};
use crate::log;
use crate::output;
use crate::traces::Traces;
use cluster::Joined;
use options::{Options, Wanted};
use own::Own;

/// Longest wait at the end for saves and restores of the operator.
const CONTROL_FINISH_WITHIN: Duration = Duration::from_secs(10);

/// Run a parameter server that many trainers share
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # one server on this machine, without checkpoints
  sanderling ps
  sanderling ps --listen 127.0.0.1:7000 --shard 0/2 --data /var/lib/sanderling \\
      --save-every 10m
  # a server of a cluster: four of these make two groups of two replicas
  sanderling ps --cluster ads --registry keeper://127.0.0.1:7400
  # options from a file
  sanderling ps --config ps.toml
  sanderling ps --listen 0.0.0.0:7000 --expose --token-file token \\
      --cert-file cert.pem --key-file key.pem

Auth: a server that only this host reaches creates a token at each start, in $XDG_RUNTIME_DIR/sanderling/HOST-PORT.token (or \
/tmp/sanderling-UID), readable by this user only. Commands of this user find it; processes of this user on this host may also \
connect without it. --token-file uses a token of yours; --no-token disables tokens.

Addresses: host:port, tcp://host:port, unix:PATH, shm:NAME, rdma://host:port (needs a device, docs/rdma.md). Clients of this host reach a TCP server over shared memory and a \
unix socket as well, unless --no-local is given.

Cluster: servers of one --cluster find each other by its --registry (sanderling keeper, or etcd). Each group has a primary, which answers, and replicas that have every acknowledged push; one of them takes over when the primary ends. Clients name the registry, such as --ps keeper://127.0.0.1:7400/ads. A server beyond groups times replicas waits until a place is free.

Control plane (sanderling ctl, gRPC, Prometheus at /metrics, status pages at / for a browser or curl): at the host of the first TCP address, port + 100, so \
127.0.0.1:7100 by default. With --control the address must be free, or the server does not start.

The file of --config has the same options with _ instead of -, such as save_every = \"10m\"; the command line overrides it.

Prints a line per address when ready, and notifies systemd. SIGTERM or Ctrl-C drains the server: pending requests are answered, \
tables are saved, exit code 0. A second signal ends the process at once.")]
pub(crate) struct Args {
    /// Options file (TOML): these options with _ for -; the command line overrides it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Options,
}

/// Listens for the control plane, or returns why there is none. An explicit address must be free.
fn listen_as_wanted(config: &Config, wanted: &Wanted) -> Result<Result<PortListener, String>, Failure> {
    config.check().map_err(ServerError::Config)?;
    Ok(match wanted {
        Wanted::No => Err("as was asked for".to_owned()),
        Wanted::At(address) => Ok(listen_for_control(config, address)?),
        Wanted::IfPossible => match control_address(config) {
            Some(address) => listen_for_control(config, &address).map_err(|error| error.to_string()),
            None => Err("no TCP address has a port to put it beside".to_owned()),
        },
    })
}

pub(crate) fn run(args: Args, line: &CommandLine<'_>) -> Result<u8, Failure> {
    log::start();
    raise_limit();
    let (file, entries) = args.config.as_deref().map(Options::read).transpose()?.unwrap_or_default();
    let options = args.options.or(file);
    let mut pages = line.pages(&entries, options.status_pages, "sanderling ps");
    let wanted = options.control()?;
    options.data.as_ref().map_or(Ok(()), |folder| output::not_a_url("--data", folder))?;
    let has_no_token = options.token_file.is_none() && !options.no_token;
    let cluster = options.cluster_options();
    // The clients say which requests are traced, and --sample-every.
    let traces = options.otlp.as_deref().map(|url| Traces::new(url, 0)).transpose()?;
    let mut config = options.config()?;
    config.spans = traces.as_ref().map(|traces| Arc::clone(&traces.spans));
    // Clients on other machines cannot read a token file of this one.
    let makes_token = has_no_token && !(config.expose && are_reached_by_others(&config.listen));
    let mut own = makes_token.then(|| Own::give(&mut config)).transpose()?;
    let joined = cluster.join(&mut config)?;
    // Before anything is restored, which may take long.
    let listener = listen_as_wanted(&config, &wanted)?;
    let control_port = listener.as_ref().ok().map(|port| port.address.clone());
    let server = match &joined {
        Some(joined) => {
            let (records, placement) = (joined.records(), Some(joined.placement()));
            Server::start_replica(&config, records, placement, |event| note_line!("{event}"))?
        }
        None => Server::start(&config, |event| note_line!("{event}"))?,
    };
    if config.expose {
        note_unused_expose("--expose", &config.listen);
    }
    let exporter = traces.map(|traces| traces.export("sanderling-ps", &config.name)).transpose()?;
    on_signal(server.control());
    if let Some(own) = &mut own {
        own.publish(control_port, server.addresses());
    }
    pages.more.extend(joined.iter().flat_map(|joined| joined.pages(&server.control())));
    let plane = match listener {
        Ok(listener) => Some(ControlPlane::start(listener, server.control(), pages)?),
        Err(reason) => {
            note!("no control plane, so sanderling ctl cannot reach this server: {reason}; see --control");
            None
        }
    };
    let presence = joined.as_ref().map(|joined| {
        let url = plane.as_ref().map(|plane| plane.url().to_owned());
        joined.keep(server.control(), advertised(&config, server.addresses()), url)
    });
    let presence = presence.transpose()?;
    let balance = joined.as_ref().map(|joined| joined.balance(server.control())).transpose()?;
    let lines = server.addresses().iter().map(|address| format!("listening at {address}"));
    let lines = lines.chain(plane.iter().map(|plane| format!("control at {}", plane.url())));
    let lines = lines.chain(joined.iter().map(Joined::line));
    // Earlier notes appear before the ready lines.
    log::finish();
    // In one write: a reader may stop after the first line.
    output::text(&lines.collect::<Vec<_>>().join("\n"))?;
    tell_manager("READY=1");
    server.wait();
    if let Some(plane) = &plane {
        plane.draining();
    }
    tell_manager("STOPPING=1");
    let finished = server.finish();
    // From here on the place in the cluster is free.
    drop((balance, presence));
    if let Some(plane) = plane {
        plane.stop(CONTROL_FINISH_WITHIN);
    }
    drop(exporter);
    finished?;
    Ok(0)
}

/// The address at which others reach this server.
fn advertised(config: &Config, addresses: &[Address]) -> Vec<String> {
    let given = config.replica.as_ref().map(|replica| replica.advertise.clone());
    let tcp = || addresses.iter().find(|address| matches!(address, Address::Tcp(_)));
    let first = || tcp().or_else(|| addresses.iter().find(|address| matches!(address, Address::Rdma(_))));
    let first = || first().map(Address::to_string);
    given.filter(|text| !text.is_empty()).or_else(first).into_iter().collect()
}

/// The first signal drains the server, the second ends the process.
fn on_signal(control: Control) {
    let seen = AtomicBool::new(false);
    let installed = ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(INTERRUPTED));
        }
        control.drain();
    });
    // Another program, such as Python, may own the signals: then they end the process.
    drop(installed);
}

/// Tells the service manager a state.
pub(crate) fn tell_manager(state: &str) {
    if let Err(error) = systemd::notify(state) {
        note!("cannot tell the service manager {state}: {error}");
    }
}
