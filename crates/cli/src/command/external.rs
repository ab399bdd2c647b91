//! Programs of their own that are started as commands: `sanderling load` is `sanderling-load`, `sanderling bench` is
//! `sanderling-bench`. Knows nothing of what they do.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sanderling_terminal::command_tree::CommandTree;
use sanderling_terminal::program::COMMAND_TREE;

use crate::failure::Failure;

/// Names of the commands that are programs of their own.
pub(crate) const NAMES: [&str; 2] = ["load", "bench"];

/// Arguments of such a program, passed on as they are.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// The folders that hold the programs.
#[derive(Debug)]
pub(crate) struct Programs {
    folders: Vec<PathBuf>,
}

impl Programs {
    /// The folder in the name that this program was started by, the folder of its file, and those of PATH. In Python the file is
    /// the interpreter's, and the name the installed script's.
    pub(crate) fn beside(started_as: Option<&OsString>) -> Programs {
        let own = std::env::current_exe().ok();
        let named = started_as.map(PathBuf::from);
        let beside = [named, own].into_iter().flatten();
        let beside = beside.filter_map(|program| program.parent().map(Path::to_owned));
        let mut folders: Vec<PathBuf> = beside.filter(|folder| !folder.as_os_str().is_empty()).collect();
        let path = std::env::var_os("PATH").unwrap_or_default();
        folders.extend(std::env::split_paths(&path));
        Programs { folders }
    }

    fn find(&self, name: &str) -> Option<PathBuf> {
        let is_program = |path: &PathBuf| {
            std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
        };
        self.folders.iter().map(|folder| folder.join(format!("sanderling-{name}"))).find(is_program)
    }

    /// Replaces this process by the program, which takes over its signals and its exit code. Returns only if that fails.
    pub(crate) fn run(&self, name: &str, args: &Args) -> Result<u8, Failure> {
        let Some(program) = self.find(name) else {
            return Err(Failure::Run(format!(
                "sanderling {name}: the program sanderling-{name} is neither beside sanderling nor on PATH; install it from the \
                 source: cargo install --locked --path crates/{name}"
            )));
        };
        let error = Command::new(&program).args(&args.arguments).exec();
        Err(Failure::Run(format!("sanderling {name}: starting {}: {error}", program.display())))
    }

    /// The command line of a program; none if the program is missing.
    pub(crate) fn command(&self, name: &'static str) -> Option<clap::Command> {
        let mut command = Command::new(self.find(name)?);
        let output = command.arg(OsStr::new(COMMAND_TREE)).stdin(Stdio::null()).output().ok()?;
        let tree: CommandTree = serde_json::from_slice(&output.stdout).ok()?;
        Some(tree.into_command().name(name))
    }
}
