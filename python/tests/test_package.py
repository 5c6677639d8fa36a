"""The package: its stubs and types, its program, its notebook."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from conftest import run_program

import coplace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def run(words: List[str], cwd: Path) -> str:
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_stubs_are_up_to_date(tmp_path: Path) -> None:
    run([sys.executable, str(HERE.parent / "tools" / "make_stubs.py"), "--check"], tmp_path)
    installed = Path(coplace.__file__).parent
    assert (installed / "py.typed").exists()
    assert (installed / "verbs.pyi").read_text() == (HERE.parent / "package" / "coplace" / "verbs.pyi").read_text()


def test_the_example_runs(tmp_path: Path) -> None:
    printed = run([sys.executable, str(HERE / "example.py")], tmp_path)
    assert re.match(r"\{512: 0\.\d+, 1024: 0\.\d+, 2048: 0\.\d+\}", printed)


@pytest.mark.parametrize(
    ("checker", "options"), [("mypy", ["--strict"]), ("pyright", ["--pythonpath", sys.executable])]
)
def test_the_example_passes_type_checkers(checker: str, options: List[str], tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name(checker))
    if shutil.which(program) is None:
        pytest.skip(f"{checker} is not installed")
    # pyright fetches a JavaScript runtime on its first call.
    if subprocess.run([program, "--version"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{checker} does not start here")
    run([program, *options, str(HERE / "example.py")], tmp_path)


def test_a_wrong_argument_fails_the_type_checker(tmp_path: Path) -> None:
    checker = Path(sys.executable).with_name("mypy")
    if not checker.exists():
        pytest.skip("mypy is not installed")
    wrong = tmp_path / "wrong.py"
    calls = ['coplace.plan("opt-350m", chip="h100", sequence_lenth=4)', 'coplace.plan("x", chip="y", top="3")']
    wrong.write_text("\n".join(["import coplace", *calls, ""]))
    words = [str(checker), "--strict", str(wrong)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.count("error:") == 2, done.stdout


def test_the_wheel_has_the_program(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("coplace")
    assert run([str(program), "--version"], tmp_path) == f"coplace {coplace.__version__}\n"
    assert run([sys.executable, "-m", "coplace", "--version"], tmp_path) == f"coplace {coplace.__version__}\n"
    done = subprocess.run([str(program), "evaluate", "opt-350m"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--chip" in done.stderr
    head = subprocess.run(
        f"'{program}' list constants | head -1", shell=True, capture_output=True, text=True, check=True
    )
    assert head.stderr == ""


#: A model of a user's own, as Hugging Face writes it.
CONFIG = {
    "model_type": "llama",
    "vocab_size": 64000,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


@pytest.mark.parametrize("page", ["python/README.md", "docs/src/python.md"])
def test_the_python_of_a_page_runs(page: str, here: Path) -> None:
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    (here / "config.json").write_text(json.dumps(CONFIG))
    # The blocks of a page belong together.
    assert code and run([sys.executable, "-c", "".join(code)], here).strip()


def test_ten_lines_lead_from_a_config_and_an_area_to_a_front_a_plan_and_a_report(here: Path) -> None:
    page = (ROOT / "README.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    (here / "config.json").write_text(json.dumps(CONFIG))
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    shown = "\nprint(len(run.front.designs), len(designs), run.best.design.area_mm2, run.plot(), len(answer.plans))"
    last = run([sys.executable, "-c", code + shown], here).splitlines()[-1]
    front, designs, area, rest = last.split(" ", 3)
    assert 1 < int(front) < int(designs) and 200 < float(area) <= 400, last
    assert re.fullmatch(r"<figure pareto: \d+ bytes of SVG> [1-9]\d*", rest), last
    assert (here / "report.html").stat().st_size > 1_000_000
    # The commands of the first screen are those that .ci/run tries in an environment without anything else.
    start = page.split("## Quick start")[1].split("**")[0]
    commands = [line.split("  #")[0].strip() for line in start.splitlines() if line.startswith("    ")]
    assert commands == ["pip install coplace-*.whl", "coplace search llama2-7b --study smoke"]


def test_every_verb_has_help() -> None:
    code, text, _ = run_program(["--help"], HERE)
    verbs = re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE)
    # The verbs that serve are the program's alone.
    callable_verbs = set(verbs) - {"help", "mcp", "page"}
    assert code == 0 and callable_verbs == {verb for verb in dir(coplace) if verb in verbs}
    for verb in callable_verbs:
        assert len(getattr(coplace, verb).__doc__) > 50


@pytest.mark.parametrize("notebook", sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_gives_its_outputs_again(notebook: Path, here: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    stored = nbformat.read(notebook, as_version=4)
    fresh = nbformat.read(notebook, as_version=4)
    nbclient.NotebookClient(
        fresh, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(here)}}
    ).execute()

    def texts(cell: object) -> str:
        # What one cell prints may come in one piece or in several.
        found: List[str] = []
        for output in getattr(cell, "outputs", []):
            if output["output_type"] == "stream" and output["name"] == "stdout":
                found.append(output["text"])
            elif output["output_type"] in ("execute_result", "display_data"):
                data = output["data"]
                found.append(data.get("text/plain", "") + data.get("image/svg+xml", ""))
        return "".join(found)

    code = [(old, new) for old, new in zip(stored.cells, fresh.cells) if old.cell_type == "code"]
    assert len(code) > 3
    for old, new in code:
        assert texts(old), f"a cell shows nothing: {old.source}"
        assert texts(new) == texts(old), old.source
