"""Entry point of the `sanderling` command that pip installs: runs the Rust command line in this process.

`sanderling train` of a deep model runs `sanderling.torch.command` instead. Only this case imports torch.
"""

import signal
import sys
import sysconfig
import tomllib
from pathlib import Path

from sanderling._native import DEEP_MODELS, cli_main

# Size limit of a file that is searched for `model.type`.
_CONFIG_BYTES_MAX = 1 << 20


def main() -> int:
    """Run the command line of this process; returns the exit code."""
    # Python's SIGINT handler only sets a flag while native code runs, so Ctrl-C would have no effect until the command
    # has ended. The default action ends the process; the command installs its own handlers where it needs them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["train"] and _is_deep(sys.argv[2:]):
        return _train_deep(sys.argv[2:])
    # The command searches separate programs, such as `load`, next to the installed script.
    program = Path(sysconfig.get_path("scripts")) / "sanderling"
    return cli_main([str(program), *sys.argv[1:]])


def _is_deep(arguments: list[str]) -> bool:
    """Return whether the arguments after `train` select a deep model, by `--model`, `--set` or a configuration file."""
    for argument, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--model" or argument.startswith("--model="):
            return (argument.partition("=")[2] or value) in DEEP_MODELS
        entry, _, kind = (value if argument == "--set" else argument.removeprefix("--set=")).partition("=")
        if argument.startswith("--set") and entry.strip() == "model.type":
            return kind.strip().strip("\"'") in DEEP_MODELS
    for argument in arguments:
        try:
            file = Path(argument)
            # An argument may be a data file, and a pipe can be read only once.
            is_config = file.is_file() and file.stat().st_size <= _CONFIG_BYTES_MAX
            config = tomllib.loads(file.read_text()) if is_config else {}
        except (OSError, ValueError):
            continue  # the native command reports the error
        model = config.get("model")
        if isinstance(model, dict) and model.get("type") in DEEP_MODELS:
            return True
    return False


def _train_deep(arguments: list[str]) -> int:
    """Run the trainer of deep models; returns the exit code, 1 if PyTorch is not installed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        from sanderling.torch import command
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        sys.stderr.write("error: deep models need PyTorch: pip install 'sanderling[torch]'\n")
        return 1
    return command.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
