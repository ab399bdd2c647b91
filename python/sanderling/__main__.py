"""The `sanderling` command as pip installs it: the same program as the Rust binary, called in this process.

`sanderling train` of a deep model is the exception: that is `sanderling.torch.command`, and torch is imported only
then.
"""

import signal
import sys
import sysconfig
import tomllib
from pathlib import Path

from sanderling._native import DEEP_MODELS, cli_main

# No file of more bytes is looked into for `model.type`.
_CONFIG_BYTES_MAX = 1 << 20


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    # Python's own handlers only take note of a signal until Python code runs again, which is when the command is over.
    # The command brings handlers where it wants them; until then a signal does what it does to any program.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["train"] and _is_deep(sys.argv[2:]):
        return _train_deep(sys.argv[2:])
    # Commands that are programs of their own, such as `load`, are looked for beside the installed script.
    program = Path(sysconfig.get_path("scripts")) / "sanderling"
    return cli_main([str(program), *sys.argv[1:]])


def _is_deep(arguments: list[str]) -> bool:
    """Whether the arguments after `train` ask for a deep model: by `--model`, or by a configuration that they name."""
    for argument, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--model" or argument.startswith("--model="):
            return (argument.partition("=")[2] or value) in DEEP_MODELS
    for argument in arguments:
        try:
            file = Path(argument)
            # Data may be named, too, and pipes can be read only once.
            is_config = file.is_file() and file.stat().st_size <= _CONFIG_BYTES_MAX
            config = tomllib.loads(file.read_text()) if is_config else {}
        except (OSError, ValueError):
            continue  # the native command says what is wrong with it
        model = config.get("model")
        if isinstance(model, dict) and model.get("type") in DEEP_MODELS:
            return True
    return False


def _train_deep(arguments: list[str]) -> int:
    """Runs the trainer for deep models, if torch is there."""
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
