//! `sanderling ps --kept fdstore:` under a service manager that keeps its memory files, as systemd does.

use std::collections::BTreeMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use sanderling_testkit::{LONG, RawClient};
use sanderling_wire::Request;

use super::log::{Sent, TABLE, keys_of, load};
use crate::process::Process;

const CLIENTS: u64 = 3;
const ROUNDS: u64 = 4;
/// Between two looks at whether the manager ends.
const LOOK: Duration = Duration::from_millis(20);
/// Files that the manager keeps: history and pushes of the server, and those of a table while its index grows.
const FILES_MAX: usize = 8;
const OF_SERVER: [&str; 2] = ["sanderling/shard-0-of-1/history", "sanderling/shard-0-of-1/pushes"];

/// Receives messages, and keeps files by name.
struct Manager {
    files: Arc<Mutex<BTreeMap<String, OwnedFd>>>,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Manager {
    fn new(folder: &Path) -> Manager {
        let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
        socket.set_read_timeout(Some(LOOK)).unwrap();
        let (files, is_ending) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let (kept, ends) = (Arc::clone(&files), Arc::clone(&is_ending));
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                receive(&socket, &kept);
            }
        });
        Manager { files, is_ending, thread: Some(thread) }
    }

    /// The words of a shell that start a process with the files.
    fn before(&self, files_max: usize) -> String {
        let files = self.files.lock().unwrap();
        assert!(files.len() <= FILES_MAX, "{:?}", files.keys());
        let names = files.keys().cloned().collect::<Vec<_>>().join(":");
        let (here, count) = (std::process::id(), files.len());
        let redirected: Vec<String> = files
            .values()
            .zip(3..)
            .map(|(file, number)| format!("exec {number}<>/proc/{here}/fd/{};", file.as_raw_fd()))
            .collect();
        format!(
            "{} export FDSTORE={files_max} LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES='{names}';",
            redirected.concat()
        )
    }

    fn names(&self) -> Vec<String> {
        self.files.lock().unwrap().keys().cloned().collect()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Receives a message, if there is one.
fn receive(socket: &UnixDatagram, files: &Mutex<BTreeMap<String, OwnedFd>>) {
    let mut bytes = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags);
    let Ok(got) = got else { return };
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fds.last();
        }
    }
    let text = std::str::from_utf8(&bytes[..got.bytes]).unwrap();
    let name = text.lines().find_map(|line| line.strip_prefix("FDNAME=")).map(str::to_owned);
    match (text.lines().next().unwrap_or_default(), name) {
        ("FDSTORE=1", Some(name)) => {
            let before = files.lock().unwrap().insert(name.clone(), fd.expect("a file"));
            assert!(before.is_none(), "{name} is there twice");
        }
        ("FDSTOREREMOVE=1", Some(name)) => {
            let removed = files.lock().unwrap().remove(&name);
            assert!(removed.is_some(), "{name} is not there");
        }
        // Its descriptor is closed: all messages before it were received.
        _ => drop(fd),
    }
}

#[test]
fn the_next_process_has_every_push_that_a_killed_one_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::new(folder.path());
    let mut clients: Vec<Mutex<Sent>> = Vec::new();
    for round in 0..ROUNDS {
        let process = Process::start(folder.path(), &manager.before(FILES_MAX), "--kept fdstore:");
        let address = process.addresses[0].clone();
        let mut peer = RawClient::new(&address);
        let table = peer.create("t", TABLE).unwrap();
        for (client, sent) in (0..).zip(&clients) {
            let sent = sent.lock().unwrap();
            let most = sent.applied + u64::from(sent.is_open);
            let (values, _) = peer.pull(table, &keys_of(client)).unwrap();
            for value in values {
                let found = (value * -2.0) as u64;
                assert!((sent.applied..=most).contains(&found), "round {round}: {found} of {sent:?}");
            }
        }
        let before = clients.len() as u64;
        clients.extend((0..CLIENTS).map(|_| Mutex::default()));
        std::thread::scope(|scope| {
            for (client, sent) in (before..).zip(&clients[before as usize..]) {
                let address = &address;
                scope.spawn(move || load(address, client, sent));
            }
            let is_under_way =
                || clients[before as usize..].iter().all(|sent| sent.lock().unwrap().applied > 3);
            let deadline = Instant::now() + LONG;
            while !is_under_way() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            // The moment of the kill is any.
            std::thread::sleep(Duration::from_millis(round * 37 % 100));
            process.signal("KILL");
        });
        let (_, errors) = process.end();
        assert_eq!(errors.contains("table t: attached from fdstore:/shard-0-of-1/t"), round > 0, "{errors}");
    }
    assert!(clients.iter().all(|sent| sent.lock().unwrap().applied > 3));
    let is_later_index = |name: &String| name.contains("/t/index-") && !name.ends_with("/index-1");
    assert!(manager.names().iter().any(is_later_index), "the index has not grown: {:?}", manager.names());

    // A dropped table is in no later process, and `--forget` removes one.
    for (options, drops, attaches) in
        [("", true, true), ("", false, false), ("", false, true), (" --forget", false, false)]
    {
        let before = manager.before(FILES_MAX);
        let process = Process::start(folder.path(), &before, &format!("--kept fdstore:{options}"));
        let mut peer = RawClient::new(&process.addresses[0]);
        peer.create("t", TABLE).unwrap();
        if drops {
            peer.ask(&Request::Drop("t"), |_| ()).unwrap();
        }
        process.signal("TERM");
        let (status, errors) = process.end();
        assert!(status.success(), "{errors}");
        assert_eq!(errors.contains("attached"), attaches, "{options}: {errors}");
        let deadline = Instant::now() + LONG;
        while drops && manager.names().len() > OF_SERVER.len() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        assert_eq!(manager.names() == OF_SERVER, drops, "{:?}", manager.names());
    }
}

#[test]
fn a_start_without_room_in_a_service_manager_says_what_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let manager = Manager::new(folder.path());
    let notify = folder.path().join("notify");
    for (variables, reason) in [
        (vec![], "FileDescriptorStoreMax=4096: NOTIFY_SOCKET is not set"),
        (vec![("NOTIFY_SOCKET", notify.to_str().unwrap())], "FDSTORE is not set"),
        (vec![("NOTIFY_SOCKET", notify.to_str().unwrap()), ("FDSTORE", "0")], "FDSTORE is not set"),
        (vec![("NOTIFY_SOCKET", "/nowhere"), ("FDSTORE", "9")], "NOTIFY_SOCKET /nowhere"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
        let command = command.args("ps --listen 127.0.0.1:0 --runtime-dir run --kept fdstore:".split(' '));
        let ended = command
            .env_remove("NOTIFY_SOCKET")
            .envs(variables.iter().copied())
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(!ended.status.success() && said.contains(reason), "{variables:?}: {said}");
    }
    // Room for three files of a table.
    let process = Process::start(folder.path(), &manager.before(OF_SERVER.len() + 3), "--kept fdstore:");
    let (_, refusal) = RawClient::new(&process.addresses[0]).create("t", TABLE).unwrap_err();
    assert!(refusal.contains("raise FileDescriptorStoreMax"), "{refusal}");
    process.signal("KILL");
    process.end();
    assert!(!folder.path().join("fdstore:").exists());
}
