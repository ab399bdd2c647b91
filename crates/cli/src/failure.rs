//! Why a command failed, and which exit code says so.

use sanderling_client::ClientError;
use sanderling_control::{Code, ControlError, ControlPlaneError};
use sanderling_hub::service::ServiceError;
use sanderling_job::JobError;
use sanderling_keeper::KeeperError;
use sanderling_learner::LearnError;
use sanderling_registry::RegistryError;
use sanderling_sample::SampleError;
use sanderling_serve::StartError;
use sanderling_server::ServerError;
use sanderling_store::StoreError;
use sanderling_terminal::failure as terminal;
pub(crate) use sanderling_terminal::failure::{FAILED, INTERRUPTED, USAGE};

use crate::deep::DeepError;

/// Input that cannot be read as what it should be.
pub(crate) const BAD_DATA: u8 = 3;
/// A model that is damaged or does not fit.
pub(crate) const BAD_MODEL: u8 = 4;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Learn(#[from] LearnError),
    #[error(transparent)]
    Sample(#[from] SampleError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Plane(#[from] ControlPlaneError),
    #[error(transparent)]
    Serve(#[from] StartError),
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Keeper(#[from] KeeperError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Hub(ServiceError),
    #[error(transparent)]
    Deep(#[from] DeepError),
    #[error("{0}")]
    Run(String),
    #[error("{0}")]
    Usage(String),
    #[error("stopped before there was a result")]
    Stopped,
    #[error("writing the result: {0}")]
    Output(#[from] std::io::Error),
}

impl From<terminal::Failure> for Failure {
    fn from(failure: terminal::Failure) -> Failure {
        match failure {
            terminal::Failure::Usage(text) => Failure::Usage(text),
            terminal::Failure::Run(text) => Failure::Run(text),
            terminal::Failure::Client(error) => Failure::Client(error),
            terminal::Failure::Stopped => Failure::Stopped,
            terminal::Failure::Output(error) => Failure::Output(error),
        }
    }
}

impl Failure {
    /// Whether whoever read our output has gone, as `head` does when it has seen enough.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        let source = match self {
            Failure::Output(source) => source,
            Failure::Learn(
                LearnError::Io { source, .. } | LearnError::Sample(SampleError::Io { source, .. }),
            )
            | Failure::Sample(SampleError::Io { source, .. }) => source,
            _ => return false,
        };
        source.kind() == std::io::ErrorKind::BrokenPipe
    }

    /// Message for a user of the command line: clients in programs open their tables again, a command is
    /// started again.
    pub(crate) fn words(&self) -> String {
        let words = self.to_string();
        match self {
            Failure::Learn(LearnError::RowsLost(_)) => words.replace("; open the table again", ""),
            _ => terminal::for_commands(&words),
        }
    }

    /// Which options help, where a crate has refused that knows no command line.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match self {
            Failure::Server(ServerError::Transport(_) | ServerError::Config(_))
            | Failure::Serve(StartError::Transport(_))
            | Failure::Keeper(KeeperError::Transport(_))
            | Failure::Hub(ServiceError::Transport(_)) => advice_on_listening(&self.to_string()),
            Failure::Client(_)
            | Failure::Learn(LearnError::Client(_))
            | Failure::Hub(ServiceError::Feed { .. }) => terminal::advice_on_servers(&self.to_string()),
            Failure::Control(ControlError::Refused { code: Code::Unauthenticated, .. }) => {
                Some("give its file with --token-file")
            }
            Failure::Control(ControlError::Unreachable { url, .. }) if url.starts_with("http://") => {
                Some("a server with TLS needs --ca-file")
            }
            Failure::Control(ControlError::Unreachable { .. }) => {
                Some("a server without TLS needs no --ca-file")
            }
            _ => None,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Server(error) if error.is_of_options() => USAGE,
            Failure::Hub(ServiceError::Transport(error))
            | Failure::Serve(StartError::Transport(error))
            | Failure::Keeper(KeeperError::Transport(error))
                if error.is_of_options() =>
            {
                USAGE
            }
            Failure::Usage(_)
            | Failure::Serve(StartError::Config(_) | StartError::Tls(_))
            | Failure::Keeper(KeeperError::Tls(_))
            | Failure::Registry(RegistryError::Invalid(_))
            | Failure::Control(
                ControlError::Address { .. } | ControlError::Refused { code: Code::InvalidArgument, .. },
            )
            | Failure::Hub(ServiceError::Position { .. })
            | Failure::Learn(
                LearnError::Config { .. }
                | LearnError::Store(StoreError::Config { .. })
                | LearnError::Job(JobError::Options(_)),
            ) => USAGE,
            Failure::Sample(error) | Failure::Learn(LearnError::Sample(error)) => of_sample(error),
            Failure::Learn(LearnError::NoRows { .. }) | Failure::Hub(ServiceError::NoRows { .. }) => BAD_DATA,
            Failure::Server(ServerError::Restore(_))
            | Failure::Control(ControlError::Refused { code: Code::NotFound | Code::DataLoss, .. })
            | Failure::Keeper(KeeperError::Damaged { .. })
            | Failure::Learn(LearnError::Model { .. }) => BAD_MODEL,
            Failure::Store(error) | Failure::Learn(LearnError::Store(error)) => of_store(error),
            Failure::Stopped
            | Failure::Learn(
                LearnError::Stopped
                | LearnError::Unsaved(_)
                | LearnError::JobStopped { .. }
                | LearnError::JobUnsaved { .. }
                | LearnError::Job(JobError::Interrupted { .. }),
            ) => INTERRUPTED,
            Failure::Deep(error) => error.exit_code,
            Failure::Output(_)
            | Failure::Hub(_)
            | Failure::Learn(_)
            | Failure::Client(_)
            | Failure::Run(_)
            | Failure::Server(_)
            | Failure::Plane(_)
            | Failure::Serve(_)
            | Failure::Keeper(_)
            | Failure::Registry(_)
            | Failure::Control(_) => FAILED,
        }
    }
}

/// Reasons of a server or hub for not listening, and the options that mend them.
const OF_LISTENING: [(&str, &str); 4] = [
    ("not a loopback address", "give --expose, --cert-file, --key-file and --token-file"),
    ("exposed without TLS and a token", "give --cert-file, --key-file and --token-file, or --insecure"),
    ("the token must have", "it is the content of the --token-file"),
    ("need a checkpoint directory", "name one with --data"),
];

fn advice_on_listening(text: &str) -> Option<&'static str> {
    OF_LISTENING.iter().find(|(said, _)| text.contains(said)).map(|(_, advice)| *advice)
}

/// Neither a disk that is full nor rows that are not saved say anything about the model.
fn of_store(error: &StoreError) -> u8 {
    match error {
        StoreError::Diverged { .. } | StoreError::NotFinite { .. } => FAILED,
        StoreError::Io { source, .. } if source.kind() != std::io::ErrorKind::NotFound => FAILED,
        _ => BAD_MODEL,
    }
}

fn of_sample(error: &SampleError) -> u8 {
    match error {
        SampleError::Spec(_) | SampleError::Settings(_) => USAGE,
        SampleError::Io { .. } | SampleError::Unwanted => FAILED,
        _ => BAD_DATA,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_the_command_line_has_no_table_to_open() {
        let restarted = || ClientError::Restarted { server: "s:1".to_owned(), table: "t".to_owned() };
        for failure in [Failure::Client(restarted()), Failure::Learn(LearnError::RowsLost(restarted()))] {
            let words = failure.words();
            assert!(words.contains("s:1") && !words.contains("open the table"), "{words}");
            assert!(words.contains("start this command again") || words.contains("--resume"), "{words}");
        }
    }
}
