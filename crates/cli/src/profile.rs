//! `train --profile` and `/profile` of servers: what the processor did, as a flame graph and a table of functions. Samples the stacks of all
//! threads of this process, by the processor time that they use; servers are other processes and are not in it.

use std::path::{Path, PathBuf};

use sanderling_control::status_pages::{self, Profiler};

use crate::failure::Failure;

mod names;
mod parts;
mod sampler;
mod shares;

/// Samples per second of processor time; no divisor of what programs do in a regular beat. The kernel's clock may allow no
/// more than 250.
const SAMPLES_PER_S: u32 = 199;
/// Functions in the table.
const FUNCTIONS_MAX: usize = 40;

/// Stacks that were seen so many times.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stack {
    thread: String,
    /// From the outermost to the one that ran. Each is a function of the machine code: what was inlined belongs to it.
    functions: Vec<String>,
    samples: u64,
}

/// A profile under way.
pub(crate) struct Profile(sampler::Sampler);

/// Written files.
pub(crate) struct Written {
    /// The flame graph.
    pub(crate) svg: PathBuf,
    /// In words, the share of what messages to servers cost.
    pub(crate) rpc: String,
}

impl Profile {
    /// Samples from now on.
    pub(crate) fn start() -> Result<Profile, Failure> {
        let usage = |error| Failure::Usage(format!("--profile: {error}"));
        sampler::Sampler::start(SAMPLES_PER_S).map(Profile).map_err(usage)
    }

    /// Ends it and writes `profile.svg` and `profile.txt` into a run's directory.
    pub(crate) fn finish(self, run_dir: &Path, run: &str) -> Result<Written, Failure> {
        let stacks = self.0.finish().map_err(Failure::Run)?;
        let failed = |path: &Path, error: &dyn std::fmt::Display| {
            Failure::Run(format!("writing the profile {}: {error}", path.display()))
        };
        let text = run_dir.join("profile.txt");
        let of = format!("run {run}");
        let said = shares::text(&stacks, &of, SAMPLES_PER_S, FUNCTIONS_MAX);
        std::fs::write(&text, said).map_err(|error| failed(&text, &error))?;
        let svg = run_dir.join("profile.svg");
        let drawn = sampler::flame_graph(&stacks, &of).map_err(|error| failed(&svg, &error))?;
        std::fs::write(&svg, drawn).map_err(|error| failed(&svg, &error))?;
        Ok(Written { svg, rpc: shares::rpc(&stacks) })
    }
}

/// Profiles this process for its status pages.
pub(crate) fn profiler(process: &'static str) -> Profiler {
    Profiler::new(move |time| {
        let sampler = sampler::Sampler::start(SAMPLES_PER_S)?;
        std::thread::sleep(time);
        let stacks = sampler.finish()?;
        let text = shares::text(&stacks, process, SAMPLES_PER_S, FUNCTIONS_MAX);
        Ok(status_pages::Profile { text, svg: sampler::flame_graph(&stacks, process)? })
    })
}
