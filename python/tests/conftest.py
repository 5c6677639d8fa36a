"""What the tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest

#: The command: the wheel's own, or another build of it.
PROGRAM = os.environ.get("COPLACE_PROGRAM", str(Path(sys.executable).with_name("coplace")))
COLUMNS = "80"


def run_program(words: List[str], cwd: Path) -> Tuple[int, str, str]:
    """The exit code, standard output and standard error of the command."""
    env = {**os.environ, "COLUMNS": COLUMNS, "COPLACE_LOG": "off"}
    done = subprocess.run([PROGRAM, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
