//! Exit codes, and the errors of what the programs share.

use std::io::ErrorKind;

use sanderling_client::ClientError;

use crate::program::Ending;

/// Any failure that has no exit code of its own.
pub const FAILED: u8 = 1;
/// Wrong arguments or configuration.
pub const USAGE: u8 = 2;
/// Ended by Ctrl-C or SIGTERM.
pub const INTERRUPTED: u8 = 130;

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Wrong arguments.
    #[error("{0}")]
    Usage(String),
    /// The work failed.
    #[error("{0}")]
    Run(String),
    /// A parameter server failed or refused.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A signal stopped the program before there was a result.
    #[error("stopped before there was a result")]
    Stopped,
    /// The result could not be written.
    #[error("writing the result: {0}")]
    Output(#[from] std::io::Error),
}

impl Failure {
    /// The error line and exit code; neither is an error when the reader of the output has gone, as `head` does.
    pub fn ending(&self) -> Ending {
        let text = self.to_string();
        match self {
            Failure::Output(source) if source.kind() == ErrorKind::BrokenPipe => Ending::of_code(0),
            Failure::Usage(_) => Ending::of_error(&text, None, USAGE),
            Failure::Stopped => Ending::of_error(&text, None, INTERRUPTED),
            Failure::Output(_) => Ending::of_error(&text, None, FAILED),
            Failure::Run(_) | Failure::Client(_) => {
                Ending::of_error(&for_commands(&text), advice_on_servers(&text), FAILED)
            }
        }
    }
}

/// An error text for a command line: a program that uses the library opens its table again, a command is started again.
pub fn for_commands(text: &str) -> String {
    text.replace("; open the table again", "; start this command again")
}

/// Refusals of parameter servers, and the options of the command line that help.
const OF_SERVERS: [(&str, &str); 4] = [
    ("the token is missing or wrong", "name its file with --ps-token-file"),
    ("it talks TLS, and this connection does not", "pass its CA bundle with --ps-ca-file"),
    (
        "it does not talk TLS, and this connection does",
        "leave out --ps-ca-file, or start the server with --cert-file and --key-file",
    ),
    (
        "raise budget_bytes",
        "of a run it is table.NAME.budget or model.table_budget, of a server --table-budget",
    ),
];

/// Which options help against an error of parameter servers.
pub fn advice_on_servers(text: &str) -> Option<&'static str> {
    OF_SERVERS.iter().find(|(refusal, _)| text.contains(refusal)).map(|(_, advice)| *advice)
}
