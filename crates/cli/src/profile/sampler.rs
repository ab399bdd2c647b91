//! Takes the stacks, by the crate `pprof`: a timer of processor time interrupts whichever thread is running, and its stack is
//! unwound there and then by what the compiler wrote down for that, without frame pointers. Knows no part of the work.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(super) use here::{Sampler, flame_graph};
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub(super) use nowhere::{Sampler, flame_graph};

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod here {
    use std::collections::HashMap;

    use super::super::Stack;
    use super::super::names::Names;

    /// In the names of this module's functions.
    const OWN: &str = "profile::sampler::here";

    pub(crate) struct Sampler {
        guard: pprof::ProfilerGuard<'static>,
        names: Names,
    }

    impl Sampler {
        #[inline(never)] // The name is looked for below.
        pub(crate) fn start(samples_per_s: u32) -> Result<Sampler, String> {
            // Found out now, not when the run is over.
            let names = Names::read()?;
            let guard = pprof::ProfilerGuardBuilder::default().frequency(samples_per_s as i32).build();
            let guard = guard.map_err(|error| error.to_string())?;
            // The first signal prepares the unwinder, which allocates: that must not be in the middle of an allocation, as
            // it might be when the timer sends it. (pprof 0.15.0; its next version prepares before.)
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGPROF).map_err(|error| error.to_string())?;
            Ok(Sampler { guard, names })
        }

        /// The stacks of all threads.
        pub(crate) fn finish(self) -> Result<Vec<Stack>, String> {
            let Sampler { guard, names } = self;
            let report = guard.report().build_unresolved();
            let report = report.map_err(|error| format!("the profile cannot be read: {error}"))?;
            drop(guard);
            let mut known: HashMap<u64, String> = HashMap::new();
            let mut name = |address: u64| known.entry(address).or_insert_with(|| names.name(address)).clone();
            let stacks = report.data.iter().map(|(seen, &samples)| {
                let frames = seen.frames.iter().enumerate().map(|(depth, frame)| {
                    // Of a caller it is the address to return to, perhaps already in the next function.
                    let address = frame.ip as u64;
                    name(if depth == 0 { address } else { address.saturating_sub(1) })
                });
                let mut functions: Vec<String> = frames.collect();
                functions.reverse();
                let thread =
                    String::from_utf8_lossy(&seen.thread_name[..seen.thread_name_length]).into_owned();
                Stack { thread, functions, samples: u64::try_from(samples).unwrap_or(0) }
            });
            // The first signal comes from the setup, not from the run.
            let first = |stack: &Stack| stack.functions.iter().any(|function| function.contains(OWN));
            let mut stacks: Vec<Stack> =
                stacks.filter(|stack| !stack.functions.is_empty() && !first(stack)).collect();
            stacks.sort_unstable_by(|a, b| (&a.thread, &a.functions).cmp(&(&b.thread, &b.functions)));
            Ok(stacks)
        }
    }

    /// A flame graph, SVG.
    pub(crate) fn flame_graph(stacks: &[Stack], of: &str) -> Result<Vec<u8>, String> {
        use pprof::flamegraph;
        let mut options = flamegraph::Options::default();
        options.title = format!("CPU profile of {of}");
        options.count_name = "samples".to_owned();
        // In the text of the stacks a semicolon divides functions.
        let plain = |name: &str| name.replace([';', '\n'], ",");
        let lines: Vec<String> = stacks
            .iter()
            .map(|Stack { thread, functions, samples }| {
                let mut line = plain(thread);
                for function in functions {
                    line.push(';');
                    line += &plain(function);
                }
                format!("{line} {samples}")
            })
            .collect();
        let mut svg = Vec::new();
        let drawn = flamegraph::from_lines(&mut options, lines.iter().map(|line| &line[..]), &mut svg);
        match drawn {
            // Without samples the drawing says so itself.
            Err(_) if stacks.is_empty() => Ok(svg),
            drawn => drawn.map(|()| svg).map_err(|error| error.to_string()),
        }
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod nowhere {
    use super::super::Stack;

    const WHERE: &str = "profiles are taken on Linux on x86-64 only; leave it out here";

    pub(crate) struct Sampler;

    impl Sampler {
        pub(crate) fn start(_: u32) -> Result<Sampler, String> {
            Err(WHERE.to_owned())
        }

        pub(crate) fn finish(self) -> Result<Vec<Stack>, String> {
            Err(WHERE.to_owned())
        }
    }

    pub(crate) fn flame_graph(_: &[Stack], _: &str) -> Result<Vec<u8>, String> {
        Err(WHERE.to_owned())
    }
}
