//! Takes the power away while tables are on a device without a file system, for which a plain file stands: its directory
//! and the zeros of new files must be durable in time, too.

use super::*;

/// The name of the file that stands for a device, and the start of the names of scripts with one.
pub(super) const DEVICE: &str = "device";
const DEVICE_BYTES: u64 = 1 << 20;

/// The folder with the files of images, and the root of tables, which is a device if asked for. Creates the device.
pub(super) fn places(dir: &Path, script: &Script, is_device: bool) -> (PathBuf, PathBuf) {
    if !is_device {
        return (dir.join(crate::kept::folder_name(&script.config.name)), dir.to_owned());
    }
    let device = dir.join(DEVICE);
    std::fs::File::create(&device).unwrap().set_len(DEVICE_BYTES).unwrap();
    (dir.to_owned(), device)
}

/// Creates a table on a device that has another one.
fn create_beside() -> Result<usize, String> {
    leave_out(None);
    PLANTED.set(0);
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let script = script("device update");
    let (folder, root) = places(dir.path(), &script, true);
    let checks = Checks::new("device update", &folder, 0);
    let states = states(&script);
    let recording = Recording::start();
    set_boot("first");
    let open = |name: &str| {
        let config = TableConfig { name: name.to_owned(), ..script.config.clone() };
        Table::kept_for(config, &root, "", Durability::Emulate).unwrap().0
    };
    let table = open(&script.config.name);
    script.before.iter().enumerate().for_each(|(number, act)| act_on(&table, number, act));
    checks.lock().unwrap().may_be.clone_from(&states[0].after);
    recording.observe(Checks::observer(&checks));
    let beside = open("beside");
    act_on(&beside, 0, &Act::Push(vec![1]));
    recording.show();
    beside.forget_kept().unwrap();
    recording.show();
    Checks::result(&checks)?;
    Ok(checks.lock().unwrap().images)
}

#[test]
fn tables_beside_a_new_one_survive_the_loss_of_power() {
    println!("{} images", create_beside().unwrap());
}

#[test]
fn tables_on_a_device_survive_the_loss_of_power() {
    ["device update", "device keys", "device charge", "device clear twice"]
        .into_iter()
        .for_each(check_script);
}

#[test]
fn a_device_needs_each_flush_and_fence_of_its_directory() {
    check_steps("device take", &[Step::Directory]);
    let found = simulate("device clear twice", Some(Part::Flush(Step::Zeros)), 0).map(|_| ());
    println!("{}", found.expect_err("zeros that are not flushed are not found"));
}

#[test]
#[ignore = "minutes; in tests/proof.sh kept"]
fn growths_on_a_device_survive_the_loss_of_power() {
    check_script("device growth");
}
