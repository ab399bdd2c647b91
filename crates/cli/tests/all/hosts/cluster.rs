//! A group of replicas, its registry and its clients on three hosts: cables between them are cut one way, both ways, and
//! healed, while clients push.
#![allow(clippy::print_stdout, reason = "the process inside tells the one outside")]

use std::io::Write;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use sanderling_registry::{GroupRecord, Registry, group_name};

use super::{Cut, Host, Process, lay, must, skip};
use crate::cluster::{LONG, drill_at};
use crate::keeper::Keeper;

/// In the environment of the process that is the clients' host: its name.
const INSIDE: &str = "SANDERLING_TEST_INSIDE";
const PART: &str = "a cluster on several hosts";
/// Longer than until a replica takes over.
const CUT_FOR: Duration = Duration::from_millis(1500);

/// Cables by their ends.
const CLIENTS_TO_ONE: usize = 0;
const CLIENTS_TO_OTHER: usize = 1;
const ONE_TO_OTHER: usize = 2;

#[test]
fn a_group_on_several_hosts_loses_nothing_to_cuts() {
    let clients = match Host::new("clients") {
        Ok(clients) => clients,
        Err(reason) => return skip(PART, &reason),
    };
    // A process is in one namespace, so this test goes on in another process.
    let mut command = clients.command(std::env::current_exe().unwrap());
    command.args(["--exact", "hosts::cluster::inside", "--nocapture"]).env(INSIDE, &clients.0);
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    if let Some((_, reason)) = said.split_once("SKIPPED ") {
        return skip(PART, reason);
    }
    assert!(done.status.success() && said.contains("every push is there"), "{said}");
}

/// Not a test of its own: the process that the test before starts.
#[test]
fn inside() {
    let Ok(name) = std::env::var(INSIDE) else { return };
    // The other process removes it.
    let clients = ManuallyDrop::new(Host(name));
    match run(&clients) {
        Ok(()) => println!("every push is there"),
        Err(reason) => println!("SKIPPED {reason}"),
    }
}

/// Lets only the packets through that come from no silent end.
fn cut(wires: &mut [Process], wire: usize, silent: &str) {
    // If it has ended, its line is why.
    let _ = writeln!(wires[wire].stdin.as_mut().unwrap(), "{silent}");
    assert_eq!(wires[wire].line().as_deref(), Ok(silent));
}

/// Waits until both servers are in sync.
fn settled(registry: &dyn Registry) {
    let start = Instant::now();
    loop {
        let record = registry.get(&group_name(0), LONG).unwrap();
        let record: Option<GroupRecord> = record.map(|record| serde_json::from_value(record.value).unwrap());
        if record.as_ref().is_some_and(|record| record.group.in_sync.len() == 1) {
            return;
        }
        assert!(start.elapsed() < LONG, "{record:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `Err`: there can be no such hosts here.
fn run(clients: &Host) -> Result<(), String> {
    let folder = tempfile::tempdir().unwrap();
    let hosts = [Host::new("server")?, Host::new("server")?];
    let never = Cut { at_packet: u32::MAX, for_ms: 0 };
    let laid = [lay(0, clients, &hosts[0], never)?, lay(1, clients, &hosts[1], never)?];
    let (between, _) = lay(2, &hosts[0], &hosts[1], never)?;
    let (mut wires, names): (Vec<Process>, Vec<_>) = laid.into_iter().unzip();
    wires.push(between);
    must("ip link set lo up");
    for (number, host) in hosts.iter().enumerate() {
        must(&format!("ip -n {} link set lo up", host.0));
        // Clients' address of the other server leads over the cable between them.
        let (other, via) = (1 - number, 2 - number);
        must(&format!("ip -n {} route add 10.77.{other}.0/24 via 10.77.2.{via}", host.0));
    }
    let keeper = Keeper::start(folder.path(), "", "0.0.0.0:0 --expose --insecure");
    let port = keeper.url().trim_end_matches("/ads").rsplit(':').next().unwrap().to_owned();
    let mut servers = Vec::new();
    for (number, (host, name)) in hosts.iter().zip(&names).enumerate() {
        let line = format!(
            "ps --cluster ads --registry keeper://10.77.{number}.1:{port} --groups 1 --replicas 2 --threads 1 --no-local \
             --listen {name}:0 --expose --insecure --no-token --runtime-dir run{number}"
        );
        let mut server = Process::new(host.sanderling(folder.path(), &line));
        server.line()?;
        servers.push(server);
    }
    let registry = keeper.open();
    settled(&*registry);
    drill_at(&keeper.url(), |pushed| {
        for cuts in [
            &[(ONE_TO_OTHER, "both")][..],
            &[(ONE_TO_OTHER, "first")],
            &[(ONE_TO_OTHER, "second")],
            &[(CLIENTS_TO_ONE, "both")],
            &[(CLIENTS_TO_ONE, "both"), (ONE_TO_OTHER, "both")],
            &[(CLIENTS_TO_OTHER, "both"), (ONE_TO_OTHER, "both")],
            &[(CLIENTS_TO_ONE, "second"), (ONE_TO_OTHER, "first")],
            &[(CLIENTS_TO_OTHER, "first")],
        ] {
            println!("cut {cuts:?}");
            pushed.wait(10);
            cuts.iter().for_each(|&(wire, silent)| cut(&mut wires, wire, silent));
            std::thread::sleep(CUT_FOR);
            cuts.iter().for_each(|&(wire, _)| cut(&mut wires, wire, "none"));
            pushed.wait(10);
            settled(&*registry);
        }
    });
    Ok(())
}
