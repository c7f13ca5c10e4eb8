"""The ``expost`` command, also as ``python -m expost``."""

from __future__ import annotations

import sys


def start() -> None:
    """Run the command. Ctrl-C ends it with exit code 130, also while modules are loaded."""
    try:
        from expost.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    start()
