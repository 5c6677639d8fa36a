"""Python and the command line give the same answers to seeded questions of many verbs."""

from __future__ import annotations

import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from conftest import run_program

import coplace

#: Chips with a fabric that joins them.
CLUSTERS = [
    ("h100", "nvlink4_node"),
    ("a100_80gb", "selene_hdr200x8"),
    ("tpu_v4", "tpu_v4_ici"),
    ("tpu_v5p", "ici_3d_torus"),
]
MODELS = ["opt-350m", "gpt2-xl", "llama2-7b", "llama3-8b", "no-such-model"]
#: Keys that hold times of the clock.
CLOCK = {"seconds", "solve_seconds", "times", "this_run"}


def job(draw: random.Random) -> Dict[str, Any]:
    """The options of a job, some of which cannot be."""
    chip, fabric = draw.choice(CLUSTERS)
    options: Dict[str, Any] = {
        "chip": chip,
        "fabric": fabric,
        "devices": draw.choice([1, 2, 4, 8]),
        "global_batch": draw.choice([8, 16, 32, 48]),
    }
    wanted = {
        "sequence_length": lambda: draw.choice([512, 1024, 2048]),
        "tensor": lambda: draw.choice([1, 2, [1, 2, 4]]),
        "pipeline": lambda: draw.choice([1, [1, 2]]),
        "zero": lambda: draw.choice([0, 1, [1, 3]]),
        "micro_batch": lambda: draw.choice([1, [1, 2]]),
        "recompute": lambda: draw.choice(["none", "full", ["none", "selective"]]),
        "optimizer": lambda: draw.choice(["adam", "adafactor"]),
        "attention": lambda: draw.choice(["fused", "unfused"]),
        "precision": lambda: draw.choice(["bf16", "fp8"]),
        "stack": lambda: draw.choice(["ideal", "megatron", "maxtext"]),
        "headroom_gib": lambda: draw.choice([0.5, 4.0]),
        "sequence_parallel": lambda: draw.choice([True, False]),
        "stack_option": lambda: ["overlap.tensor=0.5"],
    }
    for name in draw.sample(sorted(wanted), draw.randint(0, 4)):
        options[name] = wanted[name]()
    return options


def questions() -> List[coplace.Question]:
    """About two hundred questions."""
    draw = random.Random(37)
    asked = []
    for _ in range(90):
        kernels = {"kernels": True} if draw.random() < 0.2 else {}
        asked.append(coplace.evaluate.question(draw.choice(MODELS), **job(draw), **kernels))
    for _ in range(60):
        extra = draw.choice([{}, {"top": 3}, {"robust": True}, {"fit": 0.5}, {"top": 0}])
        asked.append(coplace.plan.question(draw.choice(MODELS), **job(draw), **extra))
    for _ in range(30):
        chip, _ = draw.choice(CLUSTERS)
        technique = draw.choice(["galore", ["galore", "lomo"], "nothing"])
        micro_batch = draw.choice([1, 2])
        asked.append(
            coplace.techniques.question(draw.choice(MODELS), chip=chip, technique=technique, micro_batch=micro_batch)
        )
    kinds = ["models", "chips", "fabrics", "studies", "stacks", "techniques", "dimensions", "constants"]
    asked += [coplace.list.question(kind) for kind in kinds]
    asked += [coplace.list.question("models", family=True), coplace.list.question("dimensions", chip="h100")]
    asked += [coplace.search.question("llama2-7b", study="smoke", out=f"run-{seed}", seed=seed) for seed in (0, 1)]
    asked += [coplace.search.question("gpt2-xl", study="smoke", max_area=area, out="small") for area in (100, 1)]
    asked.append(coplace.validate.question(techniques=True))
    asked.append(coplace.doctor.question())
    return asked


def words(question: coplace.Question) -> List[str]:
    """The same question on a command line, by hand."""
    found = [question.verb, *map(str, question.given)]
    for name, value in question.named.items():
        flag = "--" + name.replace("_", "-")
        switch = name in ("kernels", "robust", "family", "techniques")
        if switch:
            found.append(flag)
        elif isinstance(value, bool):
            found += [flag, str(value).lower()]
        elif isinstance(value, list) and name in ("technique", "stack_option"):
            found += [word for entry in value for word in (flag, str(entry))]
        elif isinstance(value, list):
            found += [flag, (";" if name == "recompute" else ",").join(map(str, value))]
        else:
            found += [flag, str(value)]
    return found


def without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_clock(entry) for key, entry in value.items() if key not in CLOCK}
    if isinstance(value, list):
        return [without_clock(entry) for entry in value]
    return value


def test_two_hundred_questions(here: Path) -> None:
    asked = questions()
    assert len(asked) >= 190
    mine, theirs = here / "mine", here / "theirs"
    mine.mkdir()
    theirs.mkdir()

    def printed(question: coplace.Question) -> Tuple[int, str, str]:
        return run_program([*words(question), "--format", "json"], theirs)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = list(pool.map(printed, asked))
    os.chdir(mine)
    answers = coplace.batch(asked)
    failed = 0
    for question, answer, (code, out, err) in zip(asked, answers, programs):
        if isinstance(answer, coplace.CoplaceError):
            failed += 1
            assert code == answer.exit_code, (question, answer, err)
            # An error of the arguments has usage behind it.
            first = str(answer).split("; use ")[0] if code == 2 else str(answer)
            assert first in err, question
            continue
        assert code == 0, (question, err)
        if answer.json() != out:
            assert without_clock(answer.value) == without_clock(json.loads(out)), question
            assert question.verb in ("search", "place", "schedule"), question
    assert 10 < failed < 120, failed


def test_text_is_the_program_s(here: Path) -> None:
    # The package takes the width of the screen when it is imported: 80 columns here.
    for question in (
        coplace.evaluate.question("opt-350m", chip="h100", fabric="nvlink4_node", devices=4, global_batch=8),
        coplace.plan.question("opt-350m", chip="h100", fabric="nvlink4_node", devices=8, global_batch=16),
        coplace.list.question("chips"),
    ):
        code, out, _ = run_program(words(question), here)
        assert code == 0
        assert str(question.ask()) == out


def test_instances_by_file(here: Path) -> None:
    interop = Path(__file__).resolve().parents[2] / "interop"
    placed = [
        interop / "tests" / "piper" / "small.json",
        *sorted((interop / "reference" / "nest").glob("*_mbs1.json"))[:1],
    ]
    scheduled = sorted((interop / "reference" / "phaze" / "schedule").glob("*.json"))[:3]
    for verb, files in (("place", placed), ("schedule", scheduled)):
        assert files
        code, out, err = run_program([verb, *map(str, files), "--format", "json"], here)
        assert code == 0, err
        theirs = [json.loads(line) for line in out.splitlines()]
        mine = coplace.Question(verb, *files).ask()
        assert without_clock(mine.value) == without_clock(theirs)
        assert len(mine) == len(files) == len(mine.table())
    code, _, err = run_program(["place", "nowhere.json"], here)
    with pytest.raises(coplace.CoplaceError) as fault:
        coplace.place("nowhere.json")
    assert code == 2 and str(fault.value) in err
