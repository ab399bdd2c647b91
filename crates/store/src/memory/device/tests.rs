//! Files of a device: their bytes, their space, and what is refused.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use super::*;

const BYTES: u64 = 1 << 20;
const PAGE: usize = SMALL_PAGE_BYTES as usize;

fn blank() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    File::create(&path).unwrap().set_len(BYTES).unwrap();
    (dir, path)
}

/// Maps a file that may have `most` bytes, and gives it `has`.
fn map(file: PageFile, has: usize, most: usize) -> io::Result<Region<AtomicU8>> {
    let region = Region::of_file(file, most)?;
    region.reserve(0..has).map(|()| region)
}

fn fill(region: &Region<AtomicU8>, bytes: usize, with: u8) {
    region[..bytes].iter().for_each(|byte| byte.store(with, Relaxed));
}

fn holds(region: &Region<AtomicU8>, bytes: usize, with: u8) -> bool {
    region[..bytes].iter().all(|byte| byte.load(Relaxed) == with)
}

fn extents(device: &Device, name: &str) -> Vec<Extent> {
    lock(&device.state).directory.files[name].extents.clone()
}

#[test]
fn files_grow_and_are_there_again() {
    let (_dir, path) = blank();
    {
        let device = Device::open(&path).unwrap();
        let one = map(device.create("a/one").unwrap(), PAGE, 20 * PAGE).unwrap();
        let other = map(device.create("a/other").unwrap(), 1, 20 * PAGE).unwrap();
        fill(&one, PAGE, 1);
        fill(&other, PAGE, 2);
        // Behind the other one.
        one.reserve(0..8 * PAGE).unwrap();
        assert_eq!(extents(&device, "a/one").len(), 2);
        assert!(holds(&one, PAGE, 1) && holds(&other, PAGE, 2));
        fill(&one, 8 * PAGE, 3);
        // By half of what it has, in the same piece.
        one.reserve(0..8 * PAGE + 1).unwrap();
        assert_eq!(
            extents(&device, "a/one").iter().map(|(_, bytes)| *bytes as usize).sum::<usize>(),
            12 * PAGE
        );
        assert_eq!(extents(&device, "a/one").len(), 2);
        assert!(one[8 * PAGE..12 * PAGE].iter().all(|byte| byte.load(Relaxed) == 0));
        device.rename("a/one", "b").unwrap();
        assert!(one.reserve(0..20 * PAGE).is_ok(), "under another name");
    }
    let device = Device::open(&path).unwrap();
    assert_eq!(
        (device.list(""), device.list("a")),
        (vec!["a".to_owned(), "b".to_owned()], vec!["other".to_owned()])
    );
    assert!(holds(&map(device.open_file("b").unwrap(), 1, 20 * PAGE).unwrap(), 8 * PAGE, 3));
    assert!(holds(&map(device.open_file("a/other").unwrap(), 1, PAGE).unwrap(), PAGE, 2));
    assert_eq!(device.open_file("a/one").unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(Arc::ptr_eq(&device, &Device::open(&path).unwrap()));
}

/// The space of a removed file is another's once no mapping has it; a new file is zero.
#[test]
fn space_is_reused_once_it_is_not_mapped() {
    let (_dir, path) = blank();
    let device = Device::open(&path).unwrap();
    let half = (BYTES / 2) as usize;
    let first = map(device.create("first").unwrap(), half, half).unwrap();
    fill(&first, half, 9);
    device.remove(&|name| name == "first").unwrap();
    let full = map(device.create("second").unwrap(), half, half).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert!(holds(&first, half, 9), "it is usable without a name");
    assert!(first.reserve(0..half).is_err());
    drop(first);
    let second = map(device.open_file("second").unwrap(), half, half).unwrap();
    assert!(holds(&second, half, 0));
    // In the place of the first one.
    let third = map(device.create("third").unwrap(), PAGE, PAGE).unwrap();
    fill(&third, PAGE, 1);
    let again = map(device.create("third").unwrap(), PAGE, PAGE).unwrap();
    assert!(holds(&again, PAGE, 0) && holds(&third, PAGE, 1));
}

/// Space in several gaps makes one file.
#[test]
fn a_file_may_have_many_pieces() {
    let (_dir, path) = blank();
    let device = Device::open(&path).unwrap();
    let pages = (0..).map_while(|at| {
        let region = map(device.create(&format!("{at}")).unwrap(), PAGE, PAGE).ok()?;
        Some((at, region))
    });
    let pages: Vec<(usize, _)> = pages.collect();
    assert!(pages.len() > 100, "{} pages", pages.len());
    let last = pages.len();
    drop(pages);
    device.remove(&|name| name.parse::<usize>().unwrap() % 2 == 0).unwrap();
    let whole = last / 2 * PAGE;
    let region = map(device.create("whole").unwrap(), whole, whole).unwrap();
    assert!(holds(&region, whole, 0));
    fill(&region, whole, 4);
    drop(region);
    drop(device);
    let device = Device::open(&path).unwrap();
    assert!(extents(&device, "whole").len() > 100);
    assert!(holds(&map(device.open_file("whole").unwrap(), 1, whole).unwrap(), whole, 4));
}

#[test]
fn wrong_directories_are_refused() {
    let entry = |extents: &[Extent]| Entry { number: 1, extents: extents.to_vec() };
    for (one, other, is_good) in [
        (vec![(8192, 4096)], vec![(12288, 4096)], true),
        (vec![(8192, 8192)], vec![(12288, 4096)], false),
        (vec![(4096, 4096)], vec![], false),
        (vec![(8192, 4097)], vec![], false),
        (vec![(8200, 4096)], vec![], false),
        (vec![(61440, 4096)], vec![], true),
        (vec![(61440, 8192)], vec![], false),
        (vec![(u64::MAX - 4095, 4096)], vec![], false),
    ] {
        let files = [("one", entry(&one)), ("other", entry(&other))];
        let files = files.map(|(name, entry)| (name.to_owned(), entry)).into();
        let directory = Directory { last_number: 1, files };
        assert_eq!(directory.check(8192..65536, 4096).is_ok(), is_good, "{one:?} {other:?}");
    }
}

#[test]
fn another_reader_sees_files_and_changes_nothing() {
    let (_dir, path) = blank();
    let device = Device::open(&path).unwrap();
    fill(&map(device.create("file").unwrap(), PAGE, PAGE).unwrap(), PAGE, 5);
    let reader =
        Device::read(File::options().read(true).write(true).open(&path).unwrap(), &path, true, false);
    let reader = Arc::new(reader.unwrap());
    assert!(holds(&map(reader.open_file("file").unwrap(), PAGE, PAGE).unwrap(), PAGE, 5));
    assert_eq!(reader.create("another").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    let more = map(reader.open_file("file").unwrap(), 2 * PAGE, 2 * PAGE).unwrap_err();
    assert_eq!(more.kind(), io::ErrorKind::ReadOnlyFilesystem);
}
