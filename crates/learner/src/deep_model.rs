//! The directory of a deep model as far as it can be read without PyTorch: its manifest and its tables. Knows nothing
//! of the dense part but its size.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use sanderling_store::{Table, open_regular};
use serde::Deserialize;

use crate::error::LearnError;
use crate::model_diagnostics::{MANIFEST, MANIFEST_BYTES_MAX};
use crate::saved_rows::SavedRows;

/// A saved deep model without its dense part.
#[derive(Debug)]
pub struct DeepModel {
    /// Type of the model, such as `deepfm in PyTorch`.
    pub description: String,
    /// Weights of the dense part; `None` for models of earlier versions.
    pub dense_weights: Option<u64>,
    /// Size of the file of the dense part and its optimizer state, in bytes.
    pub dense_bytes: u64,
    /// Tables whose rows are in the directory.
    pub tables: Vec<Arc<Table>>,
    /// Names of tables whose rows are on servers only.
    pub server_tables: Vec<String>,
}

/// The entries of `manifest.json` that are used here.
#[derive(Deserialize)]
struct Manifest {
    dense: Dense,
    rows: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    server_tables: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Dense {
    bytes: u64,
    weights: Option<u64>,
}

impl DeepModel {
    /// Reads the manifest and the tables, whose directory is open already.
    pub fn open(path: &Path, saved: &SavedRows) -> Result<DeepModel, LearnError> {
        let manifest = path.join(MANIFEST);
        let wrong = |reason: String| LearnError::Model { path: manifest.clone(), reason };
        let mut text = Vec::new();
        open_regular(&manifest)
            .and_then(|file| file.take(MANIFEST_BYTES_MAX).read_to_end(&mut text))
            .map_err(|error| wrong(error.to_string()))?;
        let read: Manifest =
            serde_json::from_slice(&text).map_err(|error| wrong(format!("is damaged: {error}")))?;
        let Manifest { dense, rows, description, server_tables } = read;
        let tables = match &rows {
            Some(rows) if rows.contains('/') => {
                return Err(wrong(format!("is damaged: rows = {rows:?} is no name of a folder")));
            }
            _ => saved.tables()?,
        };
        let server_tables = if rows.is_some() {
            Vec::new()
        } else {
            server_tables.into_iter().map(|(name, _)| name).collect()
        };
        Ok(DeepModel {
            description: if description.is_empty() {
                "a deep model in PyTorch".to_owned()
            } else {
                description
            },
            dense_weights: dense.weights,
            dense_bytes: dense.bytes,
            tables,
            server_tables,
        })
    }
}
