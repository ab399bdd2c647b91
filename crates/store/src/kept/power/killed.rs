//! Kills a process, opens its table in the same boot, and takes the power away: what the dead process has stored is in
//! memory, and perhaps not durable.

use super::*;
use crate::kept::steps::apart;
use crate::memory::persist::trace::Pending;

/// Keys that are pushed after the kill, more than there are free rows of the scripts with large rows.
const NEW_KEYS: usize = 3;

/// The memory after a kill.
struct Killed {
    files: Files,
    inodes: Vec<(u64, String)>,
    /// The stores that are not durable.
    pending: Pending,
}

/// A process that was killed before each fence of the script's first watched act.
struct Kills {
    script: Script,
    killed: Vec<Killed>,
    /// The rows before the act and after it.
    states: Vec<Rows>,
}

/// A key of an act.
fn key_of(act: &Act) -> u64 {
    match act {
        Act::Push(keys) => keys[0],
        Act::Import(key) | Act::Remove(key) | Act::Promote(key) => *key,
        Act::Elsewhere(act) => key_of(act),
        _ => 1,
    }
}

fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

fn kills(name: &str) -> Kills {
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let script = Script { watched: vec![script(name).watched.swap_remove(0)], ..script(name) };
    let folder = root.path().join(crate::kept::folder_name(&script.config.name));
    let states = states(&script).into_iter().flat_map(|state| state.after).collect();
    let killed: Arc<Mutex<Vec<Killed>>> = Arc::default();
    {
        let recording = Recording::start();
        set_boot("first");
        let kept = Table::kept_for(script.config.clone(), root.path(), "", Durability::Emulate);
        let table = kept.unwrap().0;
        script.before.iter().enumerate().for_each(|(number, act)| act_on(&table, number, act));
        let (killed, checks) = (Arc::clone(&killed), Checks::new(name, &folder, 0));
        recording.observe(Box::new(move |recorder| {
            let (image, pending) = recorder.killed();
            let files = checks.lock().unwrap().files(&image);
            let inodes = files.keys().map(|name| (inode(&folder.join(name)), name.clone())).collect();
            killed.lock().unwrap().push(Killed { files, inodes, pending });
        }));
        act_on(&table, 100, &script.watched[0]);
    }
    let killed = std::mem::take(&mut *killed.lock().unwrap());
    Kills { script, killed, states }
}

/// Opens the memory after a kill, and pushes new keys until all free rows are used.
fn use_rows(name: &str, kills: &Kills, killed: Killed, part: Option<Part>) -> Result<usize, String> {
    let Kills { script, states, .. } = kills;
    let Killed { files, inodes, pending } = killed;
    let in_root = |root: &Path| root.join(crate::kept::folder_name(&script.config.name));
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let folder = in_root(dir.path());
    copied(&files, &folder);
    let inodes: Vec<(u64, u64)> =
        inodes.iter().map(|(before, name)| (*before, inode(&folder.join(name)))).collect();
    // The rows of the new keys, by a process whose power is not lost.
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    copied(&files, &in_root(other.path()));
    let pushed = Table::kept(script.config.clone(), other.path(), "").unwrap().0;
    // A push to the bucket of the key would make its slot durable, too.
    let new_keys = apart(key_of(&script.watched[0]), NEW_KEYS);
    new_keys.iter().for_each(|&key| act_on(&pushed, 101, &Act::Push(vec![key])));
    let pushed = rows_of(&pushed);
    let checks = Checks::new(name, &folder, 0);
    let mut may_be = states.clone();
    checks.lock().unwrap().may_be.clone_from(&may_be);
    let recording = Recording::start();
    let inode = |inode| inodes.iter().find(|(before, _)| *before == inode).map(|(_, now)| *now);
    recording.inherit(pending, inode, Checks::observer(&checks));
    leave_out(part);
    let table = Table::kept(script.config.clone(), dir.path(), "").unwrap().0;
    for key in new_keys {
        let before = may_be.clone();
        may_be.iter_mut().for_each(|rows| _ = rows.insert(key, pushed[&key].clone()));
        checks.lock().unwrap().may_be = [before, may_be.clone()].concat();
        act_on(&table, 101, &Act::Push(vec![key]));
        checks.lock().unwrap().may_be.clone_from(&may_be);
        recording.show();
        Checks::result(&checks)?;
    }
    leave_out(None);
    Ok(checks.lock().unwrap().images)
}

/// Kills a process before each fence of a script's first act; returns the number of images.
fn kill(name: &str, part: Option<Part>) -> Result<usize, String> {
    leave_out(None);
    PLANTED.set(0);
    let mut kills = kills(name);
    let killed = std::mem::take(&mut kills.killed);
    let (each, mut images) = (killed.len(), 0);
    for killed in killed {
        images += use_rows(name, &kills, killed, part)?;
    }
    println!("{name}: {each} kills, {images} images");
    assert!(each > 0 && images > 10 * each, "{images} images of {each} kills show little");
    Ok(images)
}

#[test]
fn a_process_may_be_killed_before_the_loss_of_power() {
    for name in ["killed push", "killed import", "killed removal", "promotion", "clear"] {
        kill(name, None).unwrap();
    }
}

fn check_recovery_of_kills(name: &str, left_out: &[Part]) {
    for &part in left_out {
        println!("{part:?}: {}", kill(name, Some(part)).expect_err(&format!("{part:?} is not found")));
    }
}

/// Its fence alone is not shown: others follow before most rows are used.
#[test]
fn rows_of_a_killed_process_are_used_once_its_slots_are_durable() {
    check_recovery_of_kills("killed push", &[Part::Flush(Step::Inherited)]);
}

#[test]
fn the_head_of_a_killed_process_is_replaced_once_it_is_durable() {
    check_recovery_of_kills("clear", &[Part::Flush(Step::Found)]);
}

#[test]
fn records_of_a_killed_process_are_used_once_they_are_durable() {
    check_recovery_of_kills("promotion", &[Part::Flush(Step::Found), Part::Fence(Step::Found)]);
}

#[test]
fn exchanges_of_a_killed_process_end_once_they_are_durable() {
    check_recovery_of_kills("promotion", &[Part::Flush(Step::Mended), Part::Fence(Step::Mended)]);
}
