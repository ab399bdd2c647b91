"""The `sanderling` command as pip installs it: the same program as the Rust binary, called in this process."""

import signal
import sys

from sanderling._native import cli_main


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    # Python's own handlers only take note of a signal until Python code runs again, which is when the command is over.
    # The command brings handlers where it wants them; until then a signal does what it does to any program.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return cli_main(["sanderling", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
