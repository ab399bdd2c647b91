//! Kept tables: opens the table of a folder, or creates it there, and mends what the death of its last process has
//! interrupted ([`crate::kept`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::checkpoint::config_to_json;
use crate::index::Index;
use crate::index::bucket::SLOTS;
use crate::index::directory::{Directory, STRIPES};
use crate::index::fill::Fill;
use crate::index::growth::{Moves, PARTS};
use crate::index::hash::HashKey;
use crate::index::recover::{recover, recover_power};
use crate::kept::head::{HEAD_BYTES, Head, HeadFile, IndexName};
use crate::kept::live::{LIVE_BYTES, Live};
use crate::kept::{Folder, HEAD, Kept, LANES, STATES, UNDO, WEIGHTS, folder_name, index_file};
use crate::memory::Region;
use crate::memory::budget::Budget;
use crate::memory::file::PageFile;
use crate::memory::persist::{Persist, boot_id};
use crate::policy::clock::UseClock;
use crate::rows::allocator::RowAllocator;
use crate::rows::layout::Layout;
use crate::rows::placement::HEADER_WORDS;
use crate::rows::slab::{NoSpace, Slab};
use crate::rows::undo::UndoSlots;
use crate::sync::lock;
use crate::table::durability::Durability;
use crate::table::free_rows::FreeRowSearch;
use crate::table::kept_folders::pages_cost;
use crate::table::{Memory, NO_SPACE, no_address_space};
use crate::{StoreError, Table, TableConfig, Writes};

/// Changes of layout or protocol that a program of before cannot know.
const LAYOUT: &str = "1";
/// An index of at most this size is searched for free rows before the table is used.
const SEARCHED_AT_ONCE_BYTES: usize = 32 << 20;

/// The state of a kept table's folder when it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The folder of the table.
    pub folder: PathBuf,
    /// There was no table.
    pub is_new: bool,
    /// Rows found; up to a few thousand too many while [`Attached::is_searching`].
    pub rows: u64,
    /// Changes in hand when the last process died, which were undone or completed.
    pub repaired: usize,
    /// Free rows are still searched, by [`crate::Maintenance`].
    pub is_searching: bool,
    /// The cost of the folder's pages, unless they are huge.
    pub pages: Option<&'static str>,
    /// The table survives the loss of power: memory and protocol are made for it.
    pub survives_power: bool,
}

impl Attached {
    /// Describes it in a line.
    #[must_use]
    pub fn summary(&self) -> String {
        let survives = if self.survives_power { "; survives the loss of power" } else { "" };
        let folder = self.folder.display();
        let found = match (self.is_new, self.repaired) {
            (true, _) => return format!("created in {folder}{survives}"),
            (false, 0) => "nothing was interrupted".to_owned(),
            (false, 1) => "1 interrupted change repaired".to_owned(),
            (false, repaired) => format!("{repaired} interrupted changes repaired"),
        };
        let about = if self.is_searching { "about " } else { "" };
        format!("attached from {folder}: {about}{} rows, {found}{survives}", self.rows)
    }
}

impl Table {
    /// Opens the table that `root` keeps under the name of `config`, or creates it there.
    ///
    /// Its rows outlive the process, also when that is killed: every push that returned is there again. On persistent
    /// memory (a file system mounted with DAX), those of a table with copy-on-write survive the loss of power. Only one
    /// process at a time can use it. Budget, admission, eviction, writes and the
    /// settings of optimizers may differ from those that it was created with. `note` is a text of the owner, which
    /// [`crate::kept_tables`] returns; it replaces the former one.
    ///
    /// # Errors
    ///
    /// [`StoreError::Config`] if the table has other rows, another seed or another layout. [`StoreError::Io`] if
    /// another process uses it, or its file system has no space.
    pub fn kept(config: TableConfig, root: &Path, note: &str) -> Result<(Table, Attached), StoreError> {
        Table::kept_for(config, root, note, Durability::Detect)
    }

    /// Opens or creates a table like [`Table::kept`] that survives what `durability` says.
    ///
    /// # Errors
    ///
    /// The errors of [`Table::kept`], and [`StoreError::Config`] if folder, table or processor do not allow it.
    pub fn kept_for(
        config: TableConfig,
        root: &Path,
        note: &str,
        durability: Durability,
    ) -> Result<(Table, Attached), StoreError> {
        config.check()?;
        let folder = Folder::lock(&root.join(folder_name(&config.name)))?;
        let path = folder.path().to_path_buf();
        let can_sync = folder.can_sync();
        let pages = pages_cost(&path).filter(|_| !can_sync);
        let is_new = !folder.has(HEAD);
        let mut repaired = 0;
        let table = Table::build(config, |config, layout, budget| {
            let mut files = Files { config, layout, budget, folder, note, persist: None };
            files.choose(durability, is_new)?;
            if is_new { files.create() } else { files.attach(&mut repaired) }
        })?;
        let rows = table.row_allocator.charged();
        *lock(&table.search) = FreeRowSearch::new(rows, table.len() as u64);
        if table.index_bytes() <= SEARCHED_AT_ONCE_BYTES {
            table.find_free_rows();
        }
        let (rows, is_searching) = (table.len() as u64, table.row_allocator.inherited().is_some());
        let survives_power = table.persist().is_some() && can_sync;
        Ok((table, Attached { folder: path, is_new, rows, repaired, is_searching, pages, survives_power }))
    }

    fn index_bytes(&self) -> usize {
        self.directory.pin(crate::sync::lanes::lane()).view().latest().bytes()
    }

    /// The folder that keeps the table, if it outlives the process.
    #[must_use]
    pub fn kept_in(&self) -> Option<&Path> {
        self.kept.as_ref().map(|kept| kept.folder().path())
    }
}

impl Table {
    /// Replaces the text that [`Table::kept`] took. Does nothing for a private table.
    pub fn set_kept_note(&self, note: &str) {
        if let Some(kept) = &self.kept {
            kept.change(|head| head.note = note.to_owned());
        }
    }

    /// An index of its own file if the table is kept, otherwise in private memory.
    pub(super) fn new_index(&self, bytes: usize) -> Option<Index> {
        let Some(kept) = &self.kept else { return Index::with_bytes(bytes) };
        kept.note_space(true);
        let (number, file) = kept.new_index(bytes)?;
        let index = Index::of_file(file, bytes, number, kept.persist())
            .and_then(|index| index.reserve().map(|()| index));
        kept.note_space(index.is_err());
        if index.is_err() {
            kept.remove_index(number);
        }
        index.ok()
    }

    /// Removes the folder of a kept table, whose rows end with this process from then on.
    ///
    /// # Errors
    ///
    /// The folder cannot be moved away or removed.
    pub fn forget_kept(&self) -> Result<(), StoreError> {
        self.kept.as_ref().map_or(Ok(()), |kept| kept.forget())
    }
}

/// Everything that the memory of a kept table depends on.
fn layout_of(config: &TableConfig, layout: &Layout) -> BTreeMap<String, String> {
    let placement = layout.placement;
    let order = if cfg!(target_endian = "little") { "little-endian" } else { "big-endian" };
    let blocks = config.blocks.iter();
    let blocks = blocks.map(|block| format!("{} x {}", block.dims, block.optimizer.state_name()));
    let inits = config.blocks.iter().map(|block| format!("{:?}", block.init)).collect::<Vec<_>>();
    let place = match placement.is_split {
        false => format!("{}+{} words every {}", placement.weights, placement.rest, placement.weights_stride),
        true => format!(
            "{} words every {}, {} every {}",
            placement.weights, placement.weights_stride, placement.rest, placement.rest_stride
        ),
    };
    let entries = [
        ("layout", LAYOUT.to_owned()),
        ("order of bytes", order.to_owned()),
        ("row", place),
        ("header words", HEADER_WORDS.to_string()),
        ("dtype", format!("{:?}", config.dtype).to_lowercase()),
        ("blocks", blocks.collect::<Vec<_>>().join(" + ")),
        ("init", inits.join(" + ")),
        ("seed", config.seed.to_string()),
        ("slots of a bucket", SLOTS.to_string()),
        ("locks", format!("{PARTS} x {STRIPES}")),
    ];
    entries.into_iter().map(|(what, value)| (what.to_owned(), value)).collect()
}

/// The files of a table that is created or attached.
struct Files<'a> {
    config: &'a TableConfig,
    layout: &'a Layout,
    budget: &'a Budget,
    folder: Folder,
    note: &'a str,
    /// If the table survives the loss of power.
    persist: Option<Persist>,
}

impl Files<'_> {
    fn refused<T>(&self, reason: String) -> Result<T, StoreError> {
        Err(StoreError::Config { table: self.config.name.clone(), reason })
    }

    /// Decides whether the table writes its cache lines back.
    fn choose(&mut self, durability: Durability, is_new: bool) -> Result<(), StoreError> {
        let was_so = if is_new { None } else { Some(self.head_file()?.1.boot.is_some()) };
        let copies = self.config.writes == Writes::CopyOnWrite;
        let can_sync = self.folder.can_sync();
        match durability.writes_back(can_sync, copies, was_so) {
            Ok(writes_back) => {
                self.persist = Persist::detect().filter(|_| writes_back);
                self.folder.set_synced(writes_back && can_sync);
                Ok(())
            }
            Err(reason) => self.refused(reason),
        }
    }

    /// The head of the table in the folder.
    fn head_file(&self) -> Result<(HeadFile, Head), StoreError> {
        let file = self.folder.open(HEAD)?;
        let mut head_file =
            HeadFile::new(file, self.persist).map_err(|error| self.folder.failed(HEAD, "map", error))?;
        let head = head_file.read(&self.folder.file(HEAD))?;
        Ok((head_file, head))
    }

    fn boot(&self) -> Option<String> {
        self.persist.map(|_| boot_id())
    }

    fn layout(&self) -> BTreeMap<String, String> {
        layout_of(self.config, self.layout)
    }

    fn create(self) -> Result<Memory, StoreError> {
        let (head_file, head, live, slab, index) = match self.create_files() {
            Ok(created) => created,
            Err(error) => {
                // They take space, perhaps the last.
                let _ = self.folder.forget();
                return Err(error);
            }
        };
        self.assemble(head_file, head, live, slab, index, None)
    }

    /// Creates all files, the head last: without it there is no table.
    fn create_files(&self) -> Result<(HeadFile, Head, Live, Slab, Index), StoreError> {
        self.folder.forget()?;
        let name = IndexName { number: 1, buckets: Index::NEW_BUCKETS };
        self.folder.create(&index_file(name.number), Index::NEW_BYTES as u64)?;
        let index = self.index(name)?;
        index.reserve().map_err(|error| self.folder.failed(&index_file(name.number), "reserve", error))?;
        self.folder.create(LANES, LIVE_BYTES as u64)?;
        self.folder.create(UNDO, self.undo_bytes())?;
        let split = [STATES].into_iter().filter(|_| self.layout.placement.is_split);
        for name in [WEIGHTS].into_iter().chain(split) {
            self.folder.create(name, 0)?;
        }
        // Its space, too, though copy-on-write needs none: opening a table must not need more.
        self.undo()?;
        let live = self.live()?;
        let slab = self.slab(0)?;
        #[cfg(not(test))]
        let hash_key = HashKey::get();
        // Tests need fixed buckets.
        #[cfg(test)]
        let hash_key = HashKey::of_numbers(TEST_HASH_KEY);
        let head = Head {
            layout: self.layout(),
            config: config_to_json(self.config),
            note: self.note.to_owned(),
            hash_key: hash_key.numbers(),
            index: name,
            next_index: None,
            last_index: name.number,
            boot: self.boot(),
        };
        // Complete before it has its name.
        let new = self.folder.create(HEAD_NEW, HEAD_BYTES as u64)?;
        let mut head_file =
            HeadFile::new(new, self.persist).map_err(|error| self.folder.failed(HEAD_NEW, "map", error))?;
        head_file.write(&head);
        self.folder.rename(HEAD_NEW, HEAD).map_err(|error| self.folder.failed(HEAD, "create", error))?;
        Ok((head_file, head, live, slab, index))
    }

    fn live(&self) -> Result<Live, StoreError> {
        Live::new(self.folder.open(LANES)?, self.persist)
            .map_err(|error| self.folder.failed(LANES, "map", error))
    }

    fn undo_bytes(&self) -> u64 {
        (UndoSlots::words(self.layout.words()) * size_of::<u32>()) as u64
    }

    fn undo(&self) -> Result<UndoSlots, StoreError> {
        let words = self.layout.words();
        let region = Region::of_file(self.folder.open(UNDO)?, UndoSlots::words(words));
        let region = region.and_then(|region| region.reserve(0..UndoSlots::words(words)).map(|()| region));
        region
            .map(|region| UndoSlots::new(region, words))
            .map_err(|error| self.folder.failed(UNDO, "map", error))
    }

    /// The rows' memory, of which the first `used` are in use.
    fn slab(&self, used: u64) -> Result<Slab, StoreError> {
        let placement = self.layout.placement;
        let (rows, _reserving) = match Slab::rows_to_reserve(placement, self.config.budget_bytes) {
            Ok(wanted) => wanted,
            Err(NoSpace::Budget { bytes, room }) => {
                return self.refused(no_address_space(bytes as u64, room as u64));
            }
            Err(NoSpace::Share) => return self.refused(NO_SPACE.to_owned()),
        };
        let map = |name: &str, stride: usize| {
            let file = self.folder.open(name)?;
            self.check_bytes(&file, name, used.saturating_mul((stride * size_of::<u32>()) as u64))?;
            Region::of_file(file, rows * stride).map_err(|error| self.folder.failed(name, "map", error))
        };
        let words = map(WEIGHTS, placement.weights_stride)?;
        let rests = placement.is_split.then(|| map(STATES, placement.rest_stride)).transpose()?;
        Slab::of(placement, words, rests).map_or_else(|| self.refused(NO_SPACE.to_owned()), Ok)
    }

    fn index(&self, IndexName { number, buckets }: IndexName) -> Result<Index, StoreError> {
        let name = index_file(number);
        let bytes = buckets.saturating_mul(Index::NEW_BYTES / Index::NEW_BUCKETS);
        let file = self.folder.open(&name)?;
        self.check_bytes(&file, &name, bytes as u64)?;
        Index::of_file(file, bytes, number, self.persist)
            .map_err(|error| self.folder.failed(&name, "map", error))
    }

    /// Refuses a file that is shorter than the head and the counts say.
    fn check_bytes(&self, file: &PageFile, name: &str, bytes: u64) -> Result<(), StoreError> {
        let has = file.bytes().map_err(|error| self.folder.failed(name, "read the size of", error))?;
        if has >= bytes {
            return Ok(());
        }
        let reason =
            format!("it has {has} bytes, of {bytes} that are in use; remove the table's folder (--forget)");
        Err(StoreError::Damaged { path: file.path().to_path_buf(), reason })
    }

    /// Opens the files and mends what was interrupted.
    fn attach(self, repaired: &mut usize) -> Result<Memory, StoreError> {
        let (mut head_file, mut head) = self.head_file()?;
        self.check(&head)?;
        let live = self.live()?;
        let slab = self.slab(live.rows())?;
        if live.rows() > slab.rows_max() {
            return self.refused(format!(
                "its {} rows do not fit: raise budget_bytes, or restore a checkpoint",
                live.rows()
            ));
        }
        let mut index = self.index(head.index)?;
        let mut next = head.next_index.map(|name| self.index(name)).transpose()?;
        let moves = next.as_ref().map(|next| Moves::resumed(&index, |part| live.moved(next.number, part)));
        // Rows first, then the index: no thread uses either.
        let undo = self.undo()?;
        let interrupted = undo.interrupted(live.rows());
        *repaired = interrupted.len() + live.in_hand(STRIPES).len();
        for (row, words) in &interrupted {
            slab.write_unpublished(*row, words);
        }
        undo.clear();
        let growth = next.as_ref().zip(moves.as_ref());
        if head.boot == self.boot() {
            recover(&index, growth, &live, STRIPES);
        } else {
            *repaired = recover_power(&index, growth, &live, STRIPES)
                .map_err(|reason| StoreError::Damaged { path: self.folder.path().to_path_buf(), reason })?;
        }
        // Tests plant faults, and a search of an index that is not whole would wait for ever.
        #[cfg(test)]
        if let Some(defect) = [Some(&index), next.as_ref()].into_iter().flatten().find_map(Index::defect) {
            return self.refused(defect);
        }
        if let Some(grown) = next.take_if(|_| moves.as_ref().is_some_and(Moves::is_complete)) {
            (head.index, head.next_index) = (grown.name(), None);
            index = grown;
        }
        (head.config, head.note, head.boot) =
            (config_to_json(self.config), self.note.to_owned(), self.boot());
        head_file.write(&head);
        self.remove_others(&head);
        self.assemble(head_file, head, live, slab, index, next.zip(moves))
    }

    /// Refuses a table of another layout.
    fn check(&self, head: &Head) -> Result<(), StoreError> {
        let here = self.layout();
        let names = here.keys().chain(head.layout.keys());
        let none = "none".to_owned();
        let of = |layout: &BTreeMap<String, String>, what: &String| layout.get(what).unwrap_or(&none).clone();
        let differing = names.map(|what| (what, of(&head.layout, what), of(&here, what)));
        let Some((what, there, here)) = differing.into_iter().find(|(_, there, here)| there != here) else {
            return Ok(());
        };
        let cut = |text: String| text.chars().take(60).collect::<String>();
        self.refused(format!(
            "the kept table's {what} is {}, wanted is {}: open it as it is, or drop it (--forget) and restore a checkpoint",
            cut(there),
            cut(here)
        ))
    }

    /// Removes the files of indexes that are not the table's any more, or were not yet.
    fn remove_others(&self, head: &Head) {
        let names = [Some(head.index), head.next_index].into_iter().flatten();
        let used: Vec<String> = names.map(|name| index_file(name.number)).collect();
        for name in self.folder.names().unwrap_or_default() {
            if name.starts_with("index-") && !used.contains(&name) {
                let _ = self.folder.remove(&name);
            }
        }
    }

    fn assemble(
        self,
        head_file: HeadFile,
        head: Head,
        live: Live,
        mut slab: Slab,
        index: Index,
        next: Option<(Index, Moves)>,
    ) -> Result<Memory, StoreError> {
        if self.config.writes == Writes::InPlace {
            slab.undo = Some(self.undo()?);
        }
        let latest_bytes = next.as_ref().map_or(index.bytes(), |(next, _)| next.bytes());
        let rows = live.rows();
        let hash_key = HashKey::of_numbers(head.hash_key);
        let too_small = |what: &str| {
            format!(
                "budget_bytes is too small for the {what} that the table has: raise it, or restore a checkpoint"
            )
        };
        if !self.budget.take(latest_bytes - Index::NEW_BYTES.min(latest_bytes)) {
            return self.refused(too_small("index"));
        }
        let (config, budget) = (self.config.clone(), self.budget);
        let kept = Arc::new(Kept::new(self.folder, head_file, head, live));
        let Some(allocator) = RowAllocator::of_kept(&slab, budget, Arc::clone(&kept), rows) else {
            return Err(StoreError::Config {
                table: config.name,
                reason: too_small(&format!("{rows} rows")),
            });
        };
        let fill = Fill::of(config.packing);
        let next = next.map(|(next, moves)| (next.with_fill(fill), moves));
        let directory = Directory::of_kept(index.with_fill(fill), next, Arc::clone(&kept));
        let clock = UseClock::of_kept(Arc::clone(&kept));
        Ok(Memory { directory, slab, rows: allocator, clock, hash_key, kept: Some(kept) })
    }
}

/// The secret of kept tables in tests.
#[cfg(test)]
pub(crate) const TEST_HASH_KEY: [u64; 2] = [1, 2];
/// The head of a table that is being created.
const HEAD_NEW: &str = "head.new";
