//! Names of the functions at addresses of this process. Those of our own program come from its symbol table, which gives the
//! functions of the machine code with their whole paths; the tables of lines, which the build has too, leave the paths out.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;

use object::{Object, ObjectSymbol, ReadCache, SymbolKind};

/// Our own program, as it is mapped: the binary, or the module in Python.
#[derive(Debug, Default)]
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
    /// Reads the symbols of the file that holds this function.
    pub(super) fn read() -> Names {
        let here = Names::read as *const () as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let maps: Vec<Mapped> = maps.lines().filter_map(mapped).collect();
        let Some(own) = maps.iter().find(|map| map.addresses.contains(&here)) else {
            return Names::default();
        };
        let start = maps
            .iter()
            .filter(|map| map.path == own.path && map.offset == 0)
            .map(|map| map.addresses.start)
            .min();
        let functions = File::open(&own.path).ok().and_then(|file| {
            let cache = ReadCache::new(file);
            let file = object::File::parse(&cache).ok()?;
            // A program that may lie anywhere counts its addresses from its start.
            let start = if file.kind() == object::ObjectKind::Executable { 0 } else { start? };
            let mut functions: Vec<(Range<u64>, Vec<u8>)> = file
                .symbols()
                .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0)
                .filter_map(|symbol| {
                    let from = start.checked_add(symbol.address())?;
                    Some((from..from.checked_add(symbol.size())?, symbol.name_bytes().ok()?.to_vec()))
                })
                .collect();
            functions.sort_unstable_by_key(|(addresses, _)| addresses.start);
            Some(functions)
        });
        Names { functions: functions.unwrap_or_default() }
    }

    /// Whether the program has no symbols (it was stripped): nothing of ours would have a name.
    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty()
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

fn demangled(name: &[u8]) -> String {
    format!("{:#}", backtrace::SymbolName::new(name))
}

fn mapped(line: &str) -> Option<Mapped> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    // The device, the number of the file, and its name.
    let path = PathBuf::from(words.nth(2)?);
    let addresses = u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?;
    Some(Mapped { addresses, offset, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_ours_have_their_paths_and_those_of_libraries_a_name() {
        let names = Names::read();
        let name = names.name(Names::read as *const () as u64 + 1);
        assert!(name.contains("sanderling_cli::profile::names::Names") && name.contains("read"), "{name}");
        assert_eq!(names.name(8), "[unknown]");
    }
}
