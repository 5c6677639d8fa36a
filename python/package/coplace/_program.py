"""The program `coplace`, as a wheel installs it."""

from __future__ import annotations

import signal
import sys

from coplace import _core


def main() -> int:
    """Runs the program with the arguments of this process."""
    # The program handles Ctrl-C itself where a verb can stop early; elsewhere it ends the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _core.run_program(sys.argv[1:])
