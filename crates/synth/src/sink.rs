//! Outputs of generated chunks: a text file, plain or compressed, standard output, or a Parquet file. It knows no
//! row.

use std::io::Write;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;

use sanderling_files::OutputFile;
use sanderling_sample::SampleError;

use super::SynthConfig;
use super::columnar::ParquetFile;
use super::text::Text;

const GZIP_LEVEL: u32 = 6;
const ZSTD_LEVEL: i32 = 3;

/// The rows of a chunk, ready to be written.
pub(super) enum Chunk {
    Text(Text),
    Batch(RecordBatch),
}

enum Output {
    Plain(OutputFile),
    Stdout(std::io::Stdout),
    Gzip(flate2::write::GzEncoder<OutputFile>),
    Zstd(zstd::Encoder<'static, OutputFile>),
    Parquet(ParquetFile),
}

/// The one output of a run.
pub(super) struct Sink {
    path: PathBuf,
    output: Output,
    /// Text bytes so far, before compression.
    text_bytes: u64,
}

impl Sink {
    /// Begins the file; `header` is the first line of a text file, `None` for Parquet.
    pub(super) fn create(
        path: &Path,
        config: &SynthConfig,
        header: Option<String>,
    ) -> Result<Self, SampleError> {
        let io = |source| SampleError::Io { path: path.to_path_buf(), source };
        let create = || OutputFile::create(path).map_err(io);
        let stdout = path.as_os_str() == "-";
        let output = match (&header, path.extension().and_then(|e| e.to_str())) {
            (None, _) if stdout => {
                return Err(SampleError::Settings("synth: Parquet needs a file, not standard output".into()));
            }
            (None, _) => Output::Parquet(ParquetFile::new(create()?, path, config)?),
            _ if stdout => Output::Stdout(std::io::stdout()),
            (_, Some("gz")) => {
                let level = flate2::Compression::new(GZIP_LEVEL);
                Output::Gzip(flate2::write::GzEncoder::new(create()?, level))
            }
            (_, Some("zst")) => Output::Zstd(zstd::Encoder::new(create()?, ZSTD_LEVEL).map_err(io)?),
            _ => Output::Plain(create()?),
        };
        let mut sink = Sink { path: path.to_path_buf(), output, text_bytes: 0 };
        sink.write_text(header.unwrap_or_default().as_bytes())?;
        Ok(sink)
    }

    /// Appends a chunk; returns the bytes so far (text before compression, Parquet as written).
    pub(super) fn write(&mut self, chunk: &Chunk) -> Result<u64, SampleError> {
        match (chunk, &mut self.output) {
            (Chunk::Batch(batch), Output::Parquet(file)) => file.write(&self.path, batch),
            (Chunk::Text(text), _) => self.write_text(text.as_bytes()),
            (Chunk::Batch(_), _) => unreachable!("batches are made for Parquet only"),
        }
    }

    fn write_text(&mut self, bytes: &[u8]) -> Result<u64, SampleError> {
        match &mut self.output {
            Output::Plain(file) => file.write_all(bytes),
            Output::Stdout(stdout) => stdout.write_all(bytes),
            Output::Gzip(encoder) => encoder.write_all(bytes),
            Output::Zstd(encoder) => encoder.write_all(bytes),
            Output::Parquet(_) => Ok(()),
        }
        .map_err(|source| SampleError::Io { path: self.path.clone(), source })?;
        self.text_bytes += bytes.len() as u64;
        Ok(self.text_bytes)
    }

    /// Completes the file and gives it its name; returns its size.
    pub(super) fn finish(self) -> Result<u64, SampleError> {
        let Sink { path, output, text_bytes } = self;
        let file = match output {
            Output::Parquet(file) => Ok(Some(file.close(&path)?)),
            Output::Plain(file) => Ok(Some(file)),
            Output::Stdout(mut stdout) => stdout.flush().map(|()| None),
            Output::Gzip(encoder) => encoder.finish().map(Some),
            Output::Zstd(encoder) => encoder.finish().map(Some),
        };
        file.and_then(|file| file.map_or(Ok(text_bytes), OutputFile::finish))
            .map_err(|source| SampleError::Io { path, source })
    }
}
