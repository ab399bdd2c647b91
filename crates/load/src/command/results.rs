//! `sanderling load show`, `plot` and `list`: what is kept in files, and what workloads there are.

use std::path::{Path, PathBuf};

use sanderling_load::plot;
use sanderling_load::result::{ResultFile, RunResult, hdr_log};
use sanderling_load::script::Program;
use sanderling_load::show;

use super::many::{CUT, compared};
use crate::failure::Failure;
use crate::output;
use crate::width;

/// Show one result, or two side by side
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling load show run.json
  # a star marks a significant difference
  sanderling load show yesterday.json today.json
  # for tools that read HdrHistogram logs
  sanderling load show run.json --hdr-log run.hlog

To compare training runs, use sanderling compare.")]
pub(super) struct ShowArgs {
    /// Result file of sanderling load run, sweep, search or ab
    result: PathBuf,
    /// Second result file, to show beside the first; both of one run
    other: Option<PathBuf>,
    /// HdrHistogram log to write, with the histograms over time [default: none]
    #[arg(long, value_name = "FILE", conflicts_with = "other")]
    hdr_log: Option<PathBuf>,
}

/// Draw results as SVG
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  # latency as a function of throughput
  sanderling load plot sweep.json -o sweep.svg
  # throughput and latencies over time
  sanderling load plot run.json --kind time -o run.svg
  sanderling load plot a.json b.json --kind percentiles -o ab.svg")]
pub(super) struct PlotArgs {
    /// Result files of sanderling load run, sweep, search or ab
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Figure: latency by throughput (curve), one run over time, or by percentile [default: by number of runs]
    #[arg(long)]
    kind: Option<Kind>,
    /// SVG file to write, with the ending .svg
    #[arg(short, long = "output", value_name = "FILE")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Kind {
    Curve,
    Time,
    Percentiles,
}

/// List the built-in workloads, or describe one
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling load list
  sanderling load list ctr
  # a script to start from
  sanderling load list serve --source > my.rn")]
pub(super) struct ListArgs {
    /// Workload to describe: a built-in name or the path of a script
    workload: Option<String>,
    /// Print the source of the script instead
    #[arg(long, requires = "workload")]
    source: bool,
}

fn read(path: &Path) -> Result<ResultFile, Failure> {
    ResultFile::load(path).map_err(|error| Failure::Run(error.to_string()))
}

pub(super) fn show(args: &ShowArgs) -> Result<u8, Failure> {
    let file = read(&args.result)?;
    if let Some(other) = &args.other {
        let other = read(other)?;
        let alone = |file: &ResultFile, path: &Path| match &file.runs[..] {
            [run] => Ok(run.clone()),
            runs => {
                let (path, count) = (path.display(), runs.len());
                Err(Failure::Usage(format!(
                    "{path} holds {count} runs; only single runs are shown side by side"
                )))
            }
        };
        let path = args.other.as_deref().unwrap_or(&args.result);
        output::part(&show::two(&alone(&file, &args.result)?, &alone(&other, path)?))?;
        return Ok(0);
    }
    if let Some(path) = &args.hdr_log {
        output::not_a_url("--hdr-log", path)?;
        output::not_over("--hdr-log", path, std::iter::once(args.result.as_path()))?;
        let logs: Vec<String> = file.runs.iter().map(hdr_log::hdr_log).collect();
        output::save(path, logs.concat().as_bytes())?;
    }
    match &file.runs[..] {
        [run] => output::part(&show::one(run))?,
        runs => output::part(&show::list(runs))?,
    }
    if file.cut && file.command != "run" {
        output::text(CUT)?;
    } else if file.command == "ab" {
        output::part(&compared(&file)?)?;
    }
    Ok(0)
}

pub(super) fn plot(args: &PlotArgs) -> Result<u8, Failure> {
    output::not_a_url("--output", &args.out)?;
    let files = args.results.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let several = files.iter().any(|file| file.runs.len() > 1);
    let single = files.len() == 1;
    let mut runs: Vec<RunResult> = Vec::new();
    for (file, path) in files.into_iter().zip(&args.results) {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        runs.extend(file.runs.into_iter().map(|mut run| {
            if run.label.is_empty() || !single {
                run.label =
                    if run.label.is_empty() { name.clone() } else { format!("{name}, {}", run.label) };
            }
            run
        }));
    }
    let kind = args.kind.unwrap_or(match (several, runs.len()) {
        (true, _) => Kind::Curve,
        (false, 1) => Kind::Time,
        (false, _) => Kind::Percentiles,
    });
    let figure = match (kind, &runs[..]) {
        (Kind::Curve, runs) => plot::curve(runs),
        (Kind::Time, [run]) => plot::time_series(run),
        (Kind::Time, runs) => {
            let count = runs.len();
            return Err(Failure::Usage(format!(
                "--kind time draws one run, not {count}; choose another kind"
            )));
        }
        (Kind::Percentiles, runs) if runs.len() > plot::OVERLAID_MAX => {
            return Err(Failure::Usage(format!(
                "--kind percentiles draws at most {} runs, not {}; name fewer files",
                plot::OVERLAID_MAX,
                runs.len()
            )));
        }
        (Kind::Percentiles, runs) => plot::percentiles(runs),
    };
    let bytes = match args.out.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => plot::svg(&figure).into_bytes(),
        _ => {
            let out = args.out.display();
            return Err(Failure::Usage(format!(
                "--output {out}: figures are written as .svg; for pixels, convert that with rsvg-convert"
            )));
        }
    };
    output::save(&args.out, &bytes)?;
    Ok(0)
}

pub(super) fn list(args: &ListArgs) -> Result<u8, Failure> {
    let wrong = |error: sanderling_load::script::ScriptError| Failure::Usage(error.to_string());
    if let Some(name) = &args.workload {
        let program = Program::find(name).map_err(wrong)?;
        if args.source {
            output::part(&program.source)?;
            return Ok(0);
        }
        let about = program.describe().map_err(wrong)?;
        let mut text = format!("{}\n\nparameters (-P name=value)\n", about.about.trim());
        for param in &about.params {
            text += &format!("  {} = {}   {}\n", param.name, param.value, param.help);
        }
        text += "\nfunctions (-f name:weight,...)\n";
        let weight = |name: &str| {
            let parts = about.mix.as_ref().map_or(&[][..], |mix| mix.parts());
            parts.iter().find(|(other, _)| other == name).map_or(0.0, |(_, weight)| *weight)
        };
        for function in &about.workloads {
            text += &format!("  {}:{}   {}\n", function.name, weight(&function.name), function.about);
        }
        output::part(&text)?;
        return Ok(0);
    }
    let mut rows = Vec::new();
    for name in Program::builtins() {
        let about = Program::builtin(name).and_then(|program| program.describe()).map_err(wrong)?;
        let parts = about.mix.as_ref().map_or(&[][..], |mix| mix.parts());
        let mix: Vec<String> = parts.iter().map(|(name, weight)| format!("{name}:{weight}")).collect();
        rows.push(vec![name.to_owned(), mix.join(","), beginning(&about.about)]);
    }
    let header = ["workload", "functions", "description"];
    output::prose(&output::columns_within(&header, &rows, &[0, 2], width::of_stdout()))?;
    Ok(0)
}

/// As much of a text as fits a line, in whole words.
fn beginning(text: &str) -> String {
    const CHARS_MAX: usize = 66;
    let mut line = String::new();
    for word in text.split_whitespace() {
        if line.chars().count() + word.chars().count() > CHARS_MAX {
            return line + " ...";
        }
        line += if line.is_empty() { "" } else { " " };
        line += word;
    }
    line
}
