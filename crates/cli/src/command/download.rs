//! `sanderling download`: the embeddings of a deep model from servers into the model's directory.

use std::path::PathBuf;

use sanderling_learner::is_deep;

use crate::deep::DeepModels;
use crate::failure::Failure;
use crate::output;
use crate::servers::ServerArgs;

/// Copy the embeddings of a deep model from parameter servers into its directory
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sanderling download runs/clicks/last --ps 127.0.0.1:7000,127.0.0.1:7001

The rows are those that the tables RUN/TABLE have now, with their optimizer state. Afterwards the model is scored and resumed \
without the servers. train --ps does this by itself when a run ends, unless train.download = false; models of lr, fm and ffm \
always have their rows. Do not train on the tables meanwhile.")]
pub(crate) struct Args {
    /// Model directory, such as runs/clicks/model or runs/clicks/last
    model: PathBuf,
    /// Suppress the summary
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    servers: ServerArgs,
}

pub(crate) fn run(args: &Args, models: Option<&dyn DeepModels>) -> Result<u8, Failure> {
    let path = &args.model;
    if !is_deep(path) {
        let text = format!(
            "{}: is no deep model; models of lr, fm and ffm have their rows in their directory already",
            path.display()
        );
        return Err(Failure::Usage(text));
    }
    let models = models.ok_or_else(|| crate::deep::not_here(path))?;
    let servers = args.servers.connect()?;
    let servers =
        servers.ok_or_else(|| Failure::Usage("give the addresses of the servers, --ps ADDR,...".into()))?;
    let rows = models.download(path, servers)?;
    if !args.quiet {
        note!("{} rows in {}", output::count(rows), path.display());
    }
    Ok(0)
}
