//! `sanderling watch`: shows a run from the files in its folder, printed or as a page. Changes no file.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sanderling_control::status_pages::{AskedForm, Form, Page, StatusPages};
use sanderling_control::{MetricsPage, PageAccess};
use sanderling_learner::read_record;
use sanderling_learner::report::{RunReport, exposition};
use sanderling_transport::Address;

use crate::failure::Failure;
use crate::listening::{SecurityArgs, note_unused_expose};
use crate::output;
use crate::quantity;
use crate::run_pages::render;

/// Interval between two looks at the stop flag.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Show a run from its files, also while it goes on: progress, curves, stages, tables
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling watch runs/clicks
  # again every 2 s, until the run ends
  sanderling watch runs/clicks --every 2s
  # in a browser, at http://127.0.0.1:9401
  sanderling watch runs/clicks --listen 127.0.0.1:9401
  sanderling watch runs/clicks --json | jq .under_way.share

A run writes run.json every 2 s; its final report, report.html, is the page of its end. A run that was killed is told by the age \
of its file. Of a deep model only metrics.jsonl is there until the run ends. With --listen, the page is served until Ctrl-C, \
with /metrics for Prometheus. See docs/monitoring.md.")]
pub(crate) struct Args {
    /// Folder of the run, such as runs/clicks
    run: PathBuf,
    /// Print again at this interval until the run ends, such as 2s [default: once]
    #[arg(long, value_name = "TIME", conflicts_with = "listen")]
    every: Option<String>,
    /// Print the report as a JSON object
    #[arg(long, conflicts_with = "listen")]
    json: bool,
    /// Serve the page at this address instead of printing it [default: print]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<Address>,
    #[command(flatten)]
    security: SecurityArgs,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let every = args.every.as_deref().map(quantity::time_above_0).transpose();
    let every = every.map_err(|error| Failure::Usage(format!("--every: {error}")))?;
    let first = read_record(&args.run)?;
    if let Some(address) = &args.listen {
        return serve(args, address, first);
    }
    let stop = crate::stop::flag();
    let form = if args.json { Form::Json } else { Form::Text };
    let asked = AskedForm { form, links: &[], refresh_s: None };
    let mut report = first;
    loop {
        output::text(render(&report, &asked, &[]).trim_end())?;
        let (Some(every), Some(under_way)) = (every, &report.under_way) else { return Ok(0) };
        if under_way.failure.is_some() {
            return Ok(0);
        }
        let until = Instant::now() + every;
        while Instant::now() < until {
            if stop.load(Ordering::Relaxed) {
                return Ok(0);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        output::text("")?;
        report = read_record(&args.run)?;
    }
}

/// Serves the page until a signal.
fn serve(args: &Args, address: &Address, first: RunReport) -> Result<u8, Failure> {
    let folder = args.run.clone();
    let last = Mutex::new(first);
    let read = Arc::new(move || {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        match read_record(&folder) {
            Ok(report) => last.clone_from(&report),
            Err(error) => {
                // The last record is shown with the reason, once.
                let warning = error.to_string();
                if !last.warnings.contains(&warning) {
                    last.warnings.push(warning);
                }
            }
        }
        last.clone()
    });
    let (of_front, of_metrics, noted) = (read.clone(), read.clone(), read);
    let pages = StatusPages::of("sanderling watch")
        .front(move |asked| Some(render(&of_front(), asked, &[])))
        .page("status", "The run; / shows it.", |_| Page::new("status", []))
        .start(move || exposition(&noted()));
    let pages = pages.map_err(|error| Failure::Run(format!("status pages: {error}")))?;
    let access = PageAccess {
        token: args.security.token()?,
        tls: args.security.tls(),
        expose: args.security.expose,
        insecure: args.security.insecure,
    };
    if args.security.expose {
        note_unused_expose("--expose", std::slice::from_ref(address));
    }
    let stop = crate::stop::flag();
    let page = MetricsPage::start_for(address, &access, move || exposition(&of_metrics()), Some(pages))
        .map_err(|error| Failure::Usage(format!("--listen: {error}")))?;
    output::text(&format!("the run is shown at {}", page.pages_url()))?;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(0)
}
