//! Options of a training for the port of its pages. Listens at nothing itself.

use std::path::PathBuf;

use clap::Args;
use sanderling_control::{MetricsPage, PageAccess};
use sanderling_learner::LiveRun;
use sanderling_transport::Address;

use crate::failure::Failure;
use crate::flags::CommandLine;
use crate::listening::note_unused_expose;
use crate::run_pages;
use crate::token::read_token;

/// The port of the pages of this process, and who may look at them.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Status pages")]
pub(crate) struct StatusArgs {
    /// Address of the run's page, status pages and /metrics (Prometheus), such as 127.0.0.1:9400 [default: none]
    #[arg(long, value_name = "HOST:PORT")]
    status_listen: Option<Address>,
    /// File with the auth token of the pages [default: no token]
    #[arg(long, value_name = "FILE", requires = "status_listen")]
    status_token_file: Option<PathBuf>,
    /// Certificate chain of the pages (PEM); enables TLS
    #[arg(long, value_name = "FILE", requires_all = ["status_listen", "status_key_file"])]
    status_cert_file: Option<PathBuf>,
    /// Private key of --status-cert-file (PEM)
    #[arg(long, value_name = "FILE", requires = "status_cert_file")]
    status_key_file: Option<PathBuf>,
    /// Allow a --status-listen address that other machines reach; needs TLS and a token
    #[arg(long, requires = "status_listen")]
    status_expose: bool,
    /// Allow --status-expose without TLS and token: any machine that reaches the port sees the run
    #[arg(long, requires = "status_expose")]
    status_insecure: bool,
}

impl StatusArgs {
    /// Shows the run, if the options say so, until the result is dropped.
    pub(crate) fn show(
        &self,
        live: &LiveRun,
        line: &CommandLine<'_>,
    ) -> Result<Option<MetricsPage>, Failure> {
        let Some(address) = &self.status_listen else { return Ok(None) };
        let token = self.status_token_file.as_deref().map(read_token).transpose();
        let token = token.map_err(|error| Failure::Usage(format!("--status-token-file: {error}")))?;
        let access = PageAccess {
            token,
            tls: self.status_cert_file.clone().zip(self.status_key_file.clone()),
            expose: self.status_expose,
            insecure: self.status_insecure,
        };
        if self.status_expose {
            note_unused_expose("--status-expose", std::slice::from_ref(address));
        }
        let options = line.pages(&toml::Table::new(), true, "sanderling train");
        let page = run_pages::show_run(live, address, &access, options)
            .map_err(|error| Failure::Usage(format!("--status-listen: {error}")))?;
        note_line!("the run is shown at {}", page.pages_url());
        Ok(Some(page))
    }
}
