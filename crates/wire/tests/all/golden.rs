//! The committed bytes of one frame per message: whoever changes the format sees it here. Knows no server.
//!
//! `SANDERLING_WRITE_GOLDEN=1 cargo test -p sanderling-wire --test all golden` writes the files anew. To do so within a
//! version means that peers of the same version no longer understand each other: raise the version instead.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::messages::{AGREED, Parts, frame};
use sanderling_wire::{Agreed, Buffer, Frame, Kind, Parsed, Reply, Request};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn check(name: &str, found: &[u8]) {
    let path = folder().join(format!("{name}.bin"));
    if std::env::var_os("SANDERLING_WRITE_GOLDEN").is_some() {
        std::fs::create_dir_all(folder()).expect("the folder is ours");
        std::fs::write(&path, found).expect("the file is ours");
    }
    let expected = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(found, expected, "{name}: what is encoded now is not {}", path.display());
}

/// Decodes a golden file and encodes the message again.
fn reencode(bytes: &[u8], agreed: &Agreed) -> Buffer {
    let Ok(Parsed::Frame(parsed)) = Frame::parse(bytes, agreed) else { panic!("not a frame") };
    let header = parsed.header;
    if header.is_reply() {
        let reply = Reply::decode(&parsed).expect("a reply");
        frame(|out| reply.encode(agreed, header.id, out))
    } else {
        let request = Request::decode(&parsed).expect("a request");
        frame(|out| request.encode(agreed, header.id, header.deadline_or_status, out))
    }
}

#[test]
fn frames_are_those_that_were_committed() {
    let (wide, mut narrow) = (Parts::golden(), Parts::golden());
    narrow.f16 = true;
    let history_hello = Reply::Hello(wide.history_hello());
    let f16 = |(name, _): &(String, Buffer)| name == "pull.request" || name == "pull.reply";
    let narrow = narrow.frames(&AGREED).into_iter().filter(f16);
    let all: Vec<_> = wide
        .frames(&AGREED)
        .into_iter()
        .chain(narrow.map(|(name, frame)| (format!("f16_{name}"), frame)))
        .chain([(
            "history_hello.reply".to_owned(),
            frame(|out| history_hello.encode(&AGREED, wide.number, out)),
        )])
        .collect();
    for (name, frame) in &all {
        check(name, frame.bytes());
        assert_eq!(reencode(frame.bytes(), &AGREED).bytes(), frame.bytes(), "{name}");
    }

    let names: BTreeSet<_> = all.iter().map(|(name, _)| name.split('.').next().unwrap_or_default()).collect();
    assert!(Kind::ALL.iter().all(|kind| names.contains(kind.name())), "a kind without a golden frame");
}
