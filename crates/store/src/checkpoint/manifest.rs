//! `manifest.json`: the files of a checkpoint with their sizes and checksums, and the tables' configurations.
//!
//! Its records are independent of the configuration types, so that changes of these cannot silently change the
//! format.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::chain::DeltaRecord;
use crate::config::NAME_BYTES_MAX;
use crate::{Admission, Block, Dtype, Eviction, Init, Optimizer, Packing, StoreError, TableConfig, Writes};

pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const MANIFEST_NEW: &str = "manifest.json.new";
const FORMAT: &str = "sanderling-checkpoint";
/// Version of the manifest of a checkpoint without deltas.
const VERSION: u32 = 1;
/// Version of the manifest of a chain, which may have deltas.
pub(crate) const VERSION_OF_CHAIN: u32 = 2;
/// The maximum size of a manifest, which is read whole.
pub(crate) const MANIFEST_BYTES_MAX: usize = 64 << 20;

const HEAD: &str = "{\"manifest_crc32c\":\"";
const MIDDLE: &str = "\",\n\"manifest\":";
const TAIL: &str = "}\n";
const CRC_DIGITS: usize = 8;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Manifest {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) generation: u64,
    pub(crate) tables: Vec<TableRecord>,
    pub(crate) blobs: Vec<BlobRecord>,
    /// Of a chain: the generation of the full checkpoint, and the deltas after it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) base: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) deltas: Vec<DeltaRecord>,
}

/// A data file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FileRecord {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) crc32c: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableRecord {
    pub(crate) name: String,
    pub(crate) file: FileRecord,
    pub(crate) rows: u64,
    pub(crate) pushes: u64,
    pub(crate) seed: u64,
    pub(crate) budget_bytes: Option<u64>,
    pub(crate) blocks: Vec<BlockRecord>,
    // Omitted when default, so that checkpoints from before these fields remain valid.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) dtype: DtypeRecord,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) admission: AdmissionRecord,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) eviction: EvictionRecord,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) writes: WritesRecord,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) packing: PackingRecord,
    /// Epoch of the table from which deltas go on.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) epoch: Option<u64>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Declares a record that mirrors a configuration enum, with conversions in both directions.
macro_rules! mirror {
    (
        $(#[$on_record:meta])*
        $record:ident of $config:ident {
            $($(#[$on_name:meta])* $name:ident $({ $($field:ident: $type:ty),+ })?),+ $(,)?
        }
    ) => {
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case", deny_unknown_fields)]
        $(#[$on_record])*
        pub(crate) enum $record {
            $($(#[$on_name])* $name $({ $($field: $type),+ })?),+
        }

        impl From<$config> for $record {
            fn from(config: $config) -> $record {
                match config {
                    $($config::$name $({ $($field),+ })? => $record::$name $({ $($field),+ })?),+
                }
            }
        }

        impl From<$record> for $config {
            fn from(record: $record) -> $config {
                match record {
                    $($record::$name $({ $($field),+ })? => $config::$name $({ $($field),+ })?),+
                }
            }
        }
    };
}

mirror!(#[derive(Default)] DtypeRecord of Dtype { #[default] F32, F16, Bf16 });
mirror!(
    #[derive(Default)]
    AdmissionRecord of Admission {
        #[default]
        Always,
        Sightings { sightings: u8, filter_bytes: u64 },
        Probability { probability: f32 },
    }
);
mirror!(
    #[derive(Default)]
    EvictionRecord of Eviction { #[default] Never, Clock, Age { pushes: u32 }, Norm { below: f32 } }
);
mirror!(#[derive(Default)] WritesRecord of Writes { #[default] InPlace, CopyOnWrite });
mirror!(#[derive(Default)] PackingRecord of Packing { #[default] Fast, Compact });
mirror!(InitRecord of Init { Zero, Normal { std: f32 }, Uniform { bound: f32 } });
mirror!(
    OptimizerRecord of Optimizer {
        Sgd { lr: f32, l2: f32 },
        Momentum { lr: f32, momentum: f32, l2: f32 },
        Adagrad { lr: f32, eps: f32, initial: f32, l2: f32 },
        RowAdagrad { lr: f32, eps: f32, initial: f32, l2: f32 },
        Adam { lr: f32, beta1: f32, beta2: f32, eps: f32, l2: f32 },
        #[serde(rename = "adamw")]
        AdamW { lr: f32, beta1: f32, beta2: f32, eps: f32, decay: f32 },
        Ftrl { alpha: f32, beta: f32, l1: f32, l2: f32 },
    }
);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlobRecord {
    pub(crate) name: String,
    pub(crate) file: FileRecord,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BlockRecord {
    dims: usize,
    init: InitRecord,
    optimizer: OptimizerRecord,
}

/// A table of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct TableEntry {
    /// Name of the table.
    pub name: String,
    /// Weights per row.
    pub dim: usize,
    /// Number of rows; with deltas that of the table when the last one was written, beside pushes not exact.
    pub rows: u64,
    /// Size of the table's files.
    pub bytes: u64,
    /// The table's number of pushes.
    pub pushes: u64,
    /// The table's configuration.
    pub config: TableConfig,
}

/// A blob of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobEntry {
    /// Name of the blob.
    pub name: String,
    /// Size of the blob.
    pub bytes: u64,
}

impl Manifest {
    pub(crate) fn new(generation: u64) -> Manifest {
        Manifest {
            format: FORMAT.to_string(),
            version: VERSION,
            generation,
            tables: Vec::new(),
            blobs: Vec::new(),
            base: None,
            deltas: Vec::new(),
        }
    }

    /// Makes this checkpoint one that deltas can follow.
    pub(crate) fn begin_chain(&mut self) {
        (self.version, self.base) = (VERSION_OF_CHAIN, Some(self.generation));
    }

    /// All data files, those of a chain in its order.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FileRecord> {
        let base =
            self.tables.iter().map(|table| &table.file).chain(self.blobs.iter().map(|blob| &blob.file));
        base.chain(self.deltas.iter().flat_map(DeltaRecord::files))
    }

    /// Encodes the manifest file. The checksum covers the inner object as written.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, serde_json::Error> {
        let body = serde_json::to_string_pretty(self)?;
        let crc = crc_fast::crc32_iscsi(body.as_bytes());
        Ok(format!("{HEAD}{crc:08x}{MIDDLE}{body}{TAIL}").into_bytes())
    }

    pub(crate) fn decode(path: &Path, bytes: &[u8]) -> Result<Manifest, StoreError> {
        let damaged =
            |reason: &str| StoreError::Damaged { path: path.to_path_buf(), reason: reason.to_string() };
        let (crc, body) =
            split(bytes).ok_or_else(|| damaged("it does not look like a checkpoint manifest"))?;
        if format!("{:08x}", crc_fast::crc32_iscsi(body)).as_bytes() != crc {
            return Err(damaged("its checksum does not match; restore the directory from a copy"));
        }
        // The checksum is right, so an unknown version is newer, not damaged.
        #[derive(Deserialize)]
        struct Outline {
            format: String,
            version: u32,
        }
        let unreadable = |error: serde_json::Error| damaged(&error.to_string());
        let outline: Outline = serde_json::from_slice(body).map_err(unreadable)?;
        if outline.format != FORMAT {
            return Err(damaged(&format!("its format is {:?}, not {FORMAT:?}", outline.format)));
        }
        if ![VERSION, VERSION_OF_CHAIN].contains(&outline.version) {
            return Err(StoreError::Version {
                path: path.to_path_buf(),
                found: outline.version,
                supported: VERSION_OF_CHAIN,
            });
        }
        let manifest: Manifest = serde_json::from_slice(body).map_err(unreadable)?;
        if let Some(file) = manifest.files().find(|file| parse_file_name(&file.name).is_none()) {
            return Err(damaged(&format!("it names the file {:?}, which no checkpoint has", file.name)));
        }
        manifest.check().map_err(|reason| damaged(&reason))?;
        Ok(manifest)
    }

    /// Checks the content, which another program may have written.
    fn check(&self) -> Result<(), String> {
        for table in &self.tables {
            table.config().check().map_err(|error| error.to_string())?;
        }
        let tables = self.tables.iter().map(|table| table.name.as_str()).collect();
        let blobs = self.blobs.iter().map(|blob| blob.name.as_str()).collect();
        check_names("table", tables)?;
        check_names("blob", blobs)?;
        self.check_chain()
    }
}

/// Checks that names are unique and have a valid length.
pub(super) fn check_names(kind: &str, mut names: Vec<&str>) -> Result<(), String> {
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("it has two {kind}s named {:?}", twice[0]));
    }
    match names.iter().find(|name| name.is_empty() || name.len() > NAME_BYTES_MAX) {
        Some(name) => Err(format!(
            "the name of a {kind} has {} bytes, and 1 to {NAME_BYTES_MAX} are possible",
            name.len()
        )),
        None => Ok(()),
    }
}

/// Splits a manifest file into checksum digits and inner object.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = bytes.strip_prefix(HEAD.as_bytes())?;
    let (crc, rest) = rest.split_at_checked(CRC_DIGITS)?;
    let body = rest.strip_prefix(MIDDLE.as_bytes())?.strip_suffix(TAIL.as_bytes())?;
    Some((crc, body))
}

/// The name of a data file: kind and number within the generation, never a table's name.
pub(crate) fn file_name(generation: u64, number: usize, kind: &str) -> String {
    format!("g{generation}-{number}.{kind}")
}

/// The generation of a data file's name; `None` for other names.
pub(crate) fn parse_file_name(name: &str) -> Option<u64> {
    let stem = [".table", ".blob", ".delta"].iter().find_map(|kind| name.strip_suffix(kind))?;
    let (generation, number) = stem.strip_prefix('g')?.split_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if digits(number) && digits(generation) { generation.parse().ok() } else { None }
}

impl TableRecord {
    pub(crate) fn new(config: &TableConfig, file: FileRecord, rows: u64, pushes: u64) -> TableRecord {
        let blocks = config.blocks.iter().map(BlockRecord::from).collect();
        let (name, seed, budget_bytes) = (config.name.clone(), config.seed, config.budget_bytes);
        TableRecord {
            name,
            file,
            rows,
            pushes,
            seed,
            budget_bytes,
            blocks,
            dtype: config.dtype.into(),
            admission: config.admission.into(),
            eviction: config.eviction.into(),
            writes: config.writes.into(),
            packing: config.packing.into(),
            epoch: None,
        }
    }

    pub(crate) fn config(&self) -> TableConfig {
        TableConfig {
            name: self.name.clone(),
            blocks: self.blocks.iter().map(Block::from).collect(),
            seed: self.seed,
            budget_bytes: self.budget_bytes,
            dtype: self.dtype.into(),
            admission: self.admission.into(),
            eviction: self.eviction.into(),
            writes: self.writes.into(),
            packing: self.packing.into(),
        }
    }
}

/// A table's configuration as JSON, like in a manifest.
pub(crate) fn config_to_json(config: &TableConfig) -> serde_json::Value {
    let file = FileRecord { name: String::new(), bytes: 0, crc32c: 0 };
    let mut json = serde_json::to_value(TableRecord::new(config, file, 0, 0)).unwrap_or_default();
    if let Some(fields) = json.as_object_mut() {
        ["file", "rows", "pushes"].into_iter().for_each(|field| _ = fields.remove(field));
    }
    json
}

/// The configuration that [`config_to_json`] wrote.
pub(crate) fn config_from_json(mut json: serde_json::Value) -> Result<TableConfig, String> {
    if let Some(fields) = json.as_object_mut() {
        fields.insert("file".into(), serde_json::json!({ "name": "", "bytes": 0, "crc32c": 0 }));
        ["rows", "pushes"].into_iter().for_each(|field| _ = fields.insert(field.into(), 0.into()));
    }
    let record: TableRecord = serde_json::from_value(json).map_err(|error| error.to_string())?;
    Ok(record.config())
}

impl From<&Block> for BlockRecord {
    fn from(&Block { dims, init, optimizer }: &Block) -> BlockRecord {
        BlockRecord { dims, init: init.into(), optimizer: optimizer.into() }
    }
}

impl From<&BlockRecord> for Block {
    fn from(&BlockRecord { dims, init, optimizer }: &BlockRecord) -> Block {
        Block { dims, init: init.into(), optimizer: optimizer.into() }
    }
}
