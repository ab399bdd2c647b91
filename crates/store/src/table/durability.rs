//! Events that a kept table survives: the death of its process, or the loss of power as well.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::memory::file::PageFile;
use crate::memory::persist::Persist;
use crate::memory::place::Place;
use crate::table::Table;

/// The loss that a table in files must survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// The loss of power if folder and table allow it, otherwise the death of the process.
    #[default]
    Detect,
    /// The death of the process.
    Process,
    /// The loss of power: a folder on persistent memory (DAX), and tables with copy-on-write.
    Power,
    /// The protocol of [`Durability::Power`] in any memory, for measurements and tests.
    Emulate,
}

const NAMES: [(&str, Durability); 4] = [
    ("detect", Durability::Detect),
    ("process", Durability::Process),
    ("power", Durability::Power),
    ("emulate", Durability::Emulate),
];

impl FromStr for Durability {
    type Err = String;

    fn from_str(name: &str) -> Result<Durability, String> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, durability)| *durability)
            .ok_or_else(|| format!("durability {name:?} is unknown: detect, process, power or emulate"))
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, durability)| durability == self).map_or("", |(name, _)| name);
        out.write_str(name)
    }
}

impl Durability {
    /// Whether a table is to write its cache lines back, in memory that `can_sync` or not. `was_so` is what the
    /// table in the folder does, if there is one.
    pub(super) fn writes_back(
        self,
        can_sync: bool,
        copies_on_write: bool,
        was_so: Option<bool>,
    ) -> Result<bool, String> {
        let wanted = match self {
            Durability::Detect => was_so.unwrap_or(can_sync && copies_on_write),
            Durability::Process => false,
            Durability::Power if !can_sync => return Err(NO_DAX.to_owned()),
            Durability::Power | Durability::Emulate => true,
        };
        if wanted && !copies_on_write {
            return Err("a table that survives the loss of power needs writes = \"copy_on_write\"".to_owned());
        }
        if wanted && Persist::detect().is_none() {
            return Err("this processor cannot write cache lines back".to_owned());
        }
        if was_so.is_some_and(|was_so| was_so != wanted) {
            let (is, wanted) = if wanted { ("does not survive", "does") } else { ("survives", "does not") };
            return Err(format!(
                "the kept table {is} the loss of power, wanted is one that {wanted}: drop it (--forget) and restore a checkpoint"
            ));
        }
        Ok(wanted)
    }
}

impl Table {
    /// The way to make stores durable, if the table survives the loss of power.
    pub(crate) fn persist(&self) -> Option<Persist> {
        self.kept.as_ref().and_then(|kept| kept.persist())
    }
}

const NO_DAX: &str = "its folder cannot survive the loss of power: name one on persistent memory that is mounted with dax, or a /dev/dax device";

/// Whether stores to files of this folder can survive the loss of power.
#[must_use]
pub fn can_survive_power(folder: &Path) -> bool {
    match Place::of(folder) {
        Ok(Place::FileSystem(_)) => {}
        Ok(Place::Device(device, _)) => return device.can_sync() && Persist::detect().is_some(),
        _ => return false,
    }
    let name = folder.join(format!(".dax-{}", std::process::id()));
    let file = std::fs::File::options().create(true).truncate(true).read(true).write(true).open(&name);
    let can_sync = file.is_ok_and(|file| PageFile::can_sync(&file));
    let _ = std::fs::remove_file(&name);
    can_sync && Persist::detect().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_writes_back_where_that_is_wanted_and_possible() {
        use Durability::{Detect, Emulate, Power, Process};
        for (durability, can_sync, copies, was_so, expected) in [
            (Detect, true, true, None, Some(true)),
            (Detect, true, false, None, Some(false)),
            (Detect, false, true, None, Some(false)),
            (Detect, false, true, Some(true), Some(true)),
            (Detect, true, true, Some(false), Some(false)),
            (Detect, true, false, Some(true), None),
            (Process, true, true, None, Some(false)),
            (Process, true, true, Some(true), None),
            (Power, false, true, None, None),
            (Power, true, false, None, None),
            (Power, true, true, Some(false), None),
            (Power, true, true, None, Some(true)),
            (Emulate, false, true, None, Some(true)),
            (Emulate, false, true, Some(false), None),
        ] {
            let found = durability.writes_back(can_sync, copies, was_so).ok();
            let expected = expected.filter(|&wanted| !wanted || Persist::detect().is_some());
            assert_eq!(found, expected, "{durability} {can_sync} {copies} {was_so:?}");
            assert_eq!(durability.to_string().parse(), Ok(durability));
        }
        assert!("no".parse::<Durability>().is_err());
    }
}
