//! Checks of commands that write a file: the file is whole or absent, links stay links, pipes stay pipes, and a path that
//! cannot be written is refused before any work.

use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

/// Runs a command line in a folder.
pub type Run<'a> = &'a dyn Fn(&str) -> Output;

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Names of the files in the subfolder for outputs, `out`.
pub fn output_names(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder.join("out")).unwrap();
    let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Checks a command that writes to OUT: a new file, an existing one behind a link, a pipe; and leaves nothing else.
pub fn check_output(folder: &Path, run: Run<'_>, line: &str, ending: &str) {
    let [plain, target, link, pipe] =
        ["plain", "target", "link", "pipe"].map(|name| format!("out/{name}.{ending}"));
    let write = |name: &str| {
        let line = line.replace("OUT", name);
        let done = run(&line);
        assert_eq!(done.status.code(), Some(0), "{line}: {}", errors(&done));
    };
    write(&plain);
    assert!(std::fs::metadata(folder.join(&plain)).unwrap().len() > 10, "{plain}");
    std::fs::write(folder.join(&target), "old").unwrap();
    symlink(format!("target.{ending}"), folder.join(&link)).unwrap();
    write(&link);
    assert!(std::fs::symlink_metadata(folder.join(&link)).unwrap().is_symlink(), "{link}");
    assert!(std::fs::metadata(folder.join(&target)).unwrap().len() > 10, "{target}");
    assert!(Command::new("mkfifo").arg(folder.join(&pipe)).status().unwrap().success());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| std::fs::read(folder.join(&pipe)).unwrap());
        write(&pipe);
        let kind = std::fs::symlink_metadata(folder.join(&pipe)).unwrap().file_type();
        // Otherwise the reader would wait forever for a writer.
        assert!(kind.is_fifo(), "{pipe}");
        assert!(reader.join().unwrap().len() > 10, "{pipe}");
    });
    let mut expected = [plain, target, link, pipe].map(|name| name["out/".len()..].to_owned());
    expected.sort();
    assert_eq!(output_names(folder), expected);
    output_names(folder).iter().for_each(|name| std::fs::remove_file(folder.join("out").join(name)).unwrap());
}

/// Checks that a command refuses to write to OUT where the folder is missing or the path is a folder.
pub fn check_refused_output(folder: &Path, run: Run<'_>, line: &str, ending: &str) {
    let occupied = format!("out/folder.{ending}");
    std::fs::create_dir_all(folder.join(&occupied)).unwrap();
    for (name, part) in [
        (format!("out/none/a.{ending}"), "there is no folder out/none; make it first"),
        (occupied.clone(), "it is a folder; name a file in it"),
    ] {
        let done = run(&line.replace("OUT", &name));
        assert_eq!(done.status.code(), Some(1), "{line} to {name}: {}", errors(&done));
        assert!(errors(&done).contains(&format!("{name}: {part}")), "{line}: {}", errors(&done));
    }
    std::fs::remove_dir(folder.join(occupied)).unwrap();
    assert!(output_names(folder).is_empty(), "{line}: {:?}", output_names(folder));
}

/// Checks that a command refuses to write OUT to a URL.
pub fn check_refused_url(folder: &Path, run: Run<'_>, line: &str, ending: &str) {
    std::fs::create_dir_all(folder.join("s3:/bucket")).unwrap();
    let done = run(&line.replace("OUT", &format!("s3://bucket/out.{ending}")));
    assert_eq!(done.status.code(), Some(2), "{line}: {}", errors(&done));
    assert!(errors(&done).contains("only input is read by url"), "{line}: {}", errors(&done));
    assert_eq!(std::fs::read_dir(folder.join("s3:/bucket")).unwrap().count(), 0, "{line}");
}
