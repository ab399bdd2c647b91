//! Names of the functions at addresses of this process. Those of our own program come from its symbol table, which gives the
//! functions of the machine code with their whole paths; the tables of lines, which the build has too, leave the paths out.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol, ReadCache, SymbolKind};

/// Our own program, as it is mapped: the binary, or the module in Python.
#[derive(Debug)]
pub(super) struct Names {
    /// Addresses of functions, ascending, and their mangled names.
    functions: Vec<(Range<u64>, Vec<u8>)>,
}

/// A line of `/proc/self/maps` about a file.
struct Mapped {
    addresses: Range<u64>,
    offset: u64,
    path: PathBuf,
}

impl Names {
    /// Reads the symbols of the file that holds this function; or why not.
    pub(super) fn read() -> Result<Names, String> {
        let here = Names::read as *const () as u64;
        let maps = Path::new("/proc/self/maps");
        let maps = std::fs::read_to_string(maps).map_err(|error| unread(maps, &error))?;
        let maps: Vec<Mapped> = maps.lines().filter_map(mapped).collect();
        let Some(own) = maps.iter().find(|map| map.addresses.contains(&here)) else {
            return Err("the system does not say from which file this program comes".to_owned());
        };
        let start = maps
            .iter()
            .filter(|map| map.path == own.path && map.offset == 0)
            .map(|map| map.addresses.start)
            .min();
        let names = Names::of(&own.path, start)?;
        if names.functions.is_empty() {
            return Err("this program was stripped of its symbols, so that no function would have a name; build it without \
                        `strip`"
                .to_owned());
        }
        Ok(names)
    }

    /// Names of a program loaded at this address.
    fn of(path: &Path, start: Option<u64>) -> Result<Names, String> {
        let file = File::open(path).map_err(|error| unread(path, &error))?;
        let cache = ReadCache::new(file);
        let file = object::File::parse(&cache).map_err(|error| unread(path, &error))?;
        // A program that may lie anywhere counts its addresses from its start.
        let fixed = file.kind() == object::ObjectKind::Executable;
        let start =
            if fixed { 0 } else { start.ok_or_else(|| unread(path, &"its beginning is not in memory"))? };
        let mut functions: Vec<(Range<u64>, Vec<u8>)> = file
            .symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
            .filter_map(|symbol| {
                let from = start.checked_add(symbol.address())?;
                Some((from..from.checked_add(symbol.size())?, symbol.name_bytes().ok()?.to_vec()))
            })
            .collect();
        functions.sort_unstable_by_key(|(addresses, _)| addresses.start);
        Ok(Names { functions })
    }

    /// The name of the function at an address, or of its library in brackets.
    pub(super) fn name(&self, address: u64) -> String {
        let after = self.functions.partition_point(|(addresses, _)| addresses.start <= address);
        let ours = after.checked_sub(1).and_then(|at| self.functions.get(at));
        if let Some((_, name)) = ours.filter(|(addresses, _)| addresses.contains(&address)) {
            return demangled(name);
        }
        let mut found = None;
        backtrace::resolve(address as *mut std::ffi::c_void, |symbol| {
            // The last one is the function of the machine code.
            found = symbol.name().map(|name| demangled(name.as_bytes()));
        });
        found.unwrap_or_else(|| "[unknown]".to_owned())
    }
}

fn unread(path: &Path, error: &dyn std::fmt::Display) -> String {
    format!("cannot read {}: {error}", path.display())
}

fn demangled(name: &[u8]) -> String {
    format!("{:#}", backtrace::SymbolName::new(name))
}

fn mapped(line: &str) -> Option<Mapped> {
    let mut words = line.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    // The device, the number of the file, and its name, which is the rest of the line: it may have spaces of its own.
    let path = words.nth(2)?.trim_start();
    let path = Some(path).filter(|path| !path.is_empty()).map(PathBuf::from)?;
    let addresses = u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?;
    Some(Mapped { addresses, offset, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_ours_have_their_paths_and_those_of_libraries_a_name() {
        let names = Names::read().expect("the tests have symbols");
        let name = names.name(Names::read as *const () as u64 + 1);
        assert!(name.contains("sanderling_cli::profile::names::Names") && name.contains("read"), "{name}");
        assert_eq!(names.name(8), "[unknown]");
    }

    #[test]
    fn lines_about_files_are_read_whatever_the_files_are_called() {
        let check = |line: &str, expected: Option<(u64, u64, &str)>| {
            let found = mapped(line).map(|map| (map.addresses.start, map.offset, map.path));
            let expected = expected.map(|(start, offset, path)| (start, offset, PathBuf::from(path)));
            assert_eq!(found, expected, "{line}");
        };
        let line =
            |path: &str| format!("7f10-7f2a r-xp 00001000 08:02 135522                         {path}");
        check(&line("/usr/bin/sanderling"), Some((0x7f10, 0x1000, "/usr/bin/sanderling")));
        check(
            &line("/home/me/my  build/sander ling"),
            Some((0x7f10, 0x1000, "/home/me/my  build/sander ling")),
        );
        check("7f10-7f2a rw-p 00000000 00:00 0 ", None);
        check("7f10-7f2a rw-p 00000000 00:00 0", None);
        check("what else", None);
    }

    /// A program that is gone was not stripped.
    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().join("a text");
        std::fs::write(&text, "no program").expect("it is written");
        for path in [folder.path().join("not there"), text] {
            let error = Names::of(&path, Some(0)).expect_err("no program");
            assert!(error.starts_with(&format!("cannot read {}: ", path.display())), "{error}");
        }
    }
}
