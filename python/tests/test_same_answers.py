"""Python, the command line and JSON give the same answers to seeded questions of every verb.

What differs for a good reason: times of the clock (``CLOCK``), and the size of a report, which shows them. Each way
works in a directory of its own with the same files, so paths are the same, too.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
from conftest import run_program
from ways import Agent, Reply, ask_program, ask_python, words_of_question

import coplace

ROOT = Path(__file__).resolve().parents[2]
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
#: The verbs whose answers hold them. A report's size follows from the times that it shows.
TIMED = {"search", "sweep", "merge", "place", "schedule", "report"}
#: Files that questions name, by their place in the repository.
INPUTS = [
    "interop/tests/piper/small.json",
    "interop/reference/nest/exp1_bert_64_mbs1.json",
    "interop/reference/phaze/placement/instance_000.json",
    "interop/reference/phaze/placement/instance_003.json",
    "interop/reference/phaze/schedule/instance_000.json",
    "interop/reference/phaze/schedule/instance_003.json",
    "interop/reference/phaze/schedule/instance_006.json",
    "interop/tests/calculon/model.json",
    "interop/tests/calculon/execution.json",
    "interop/tests/calculon/system.json",
    "interop/tests/scale_sim/array_8x4.cfg",
    "interop/tests/scale_sim/convolutions.csv",
    "interop/tests/scale_sim/products.csv",
    "sim/tests/data/kernels.csv",
    "sim/tests/data/collectives.csv",
    "measured/reference/collectives.csv",
    "measured/reference/memory_peaks.csv",
]
PLACED, SCHEDULED = INPUTS[:4], INPUTS[4:7]
CALCULON, SCALE_SIM, MEASURED = INPUTS[7:10], INPUTS[10:13], INPUTS[13:17]


def job(draw: random.Random) -> Dict[str, Any]:
    """The options of a job, some of which cannot be."""
    chip, fabric = draw.choice(CLUSTERS)
    options: Dict[str, Any] = {
        "chip": chip,
        "fabric": fabric,
        "devices": draw.choice([1, 2, 4, 8]),
        "global_batch": draw.choice([8, 16, 32, 48]),
    }
    wanted: Dict[str, Callable[[], Any]] = {
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


def first_questions(draw: random.Random) -> List[coplace.Question]:
    """Questions that need no answer of another one."""
    asked = []
    for _ in range(64):
        kernels = {"kernels": True} if draw.random() < 0.2 else {}
        asked.append(coplace.evaluate.question(draw.choice(MODELS), **job(draw), **kernels))
    for _ in range(40):
        extra: Dict[str, Any] = draw.choice([{}, {"top": 3}, {"robust": True}, {"fit": 0.5}, {"top": 0}])
        asked.append(coplace.plan.question(draw.choice(MODELS), **job(draw), **extra))
    for _ in range(20):
        chip, _ = draw.choice(CLUSTERS)
        technique = draw.choice(["galore", ["galore", "lomo"], "nothing"])
        micro_batch = draw.choice([1, 2])
        asked.append(
            coplace.techniques.question(draw.choice(MODELS), chip=chip, technique=technique, micro_batch=micro_batch)
        )
    for _ in range(10):
        limits = {"ttft": draw.choice([500, 1000, 2000]), "tpot": draw.choice([10, 30, [20, 50]])}
        lengths = {"input": draw.choice([512, 2048]), "output": draw.choice([128, 512])}
        model, chip = draw.choice(MODELS[3:]), draw.choice(["h100", "h200"])
        asked.append(coplace.serve.question(model, chip=chip, devices=draw.choice([1, 2]), **limits, **lengths))
    kinds = ["models", "chips", "fabrics", "studies", "stacks", "engines", "techniques", "dimensions", "constants"]
    asked += [coplace.list.question(kind) for kind in kinds]
    asked += [coplace.list.question("models", family=True), coplace.list.question("dimensions", chip="h100")]
    for at in range(8):
        limits = draw.choice([{}, {"max_area": draw.randint(150, 300)}, {"max_power": draw.randint(5, 300)}])
        aims = draw.choice([{}, {"objective": "per-watt"}, {"front": ["area", "power"]}, {"robust": True}])
        given = {"study": "smoke", "out": f"made/found-{at}", "draws": 0, "seed": at}
        asked.append(coplace.search.question("gpt2-xl", **given, **limits, **aims))
    for at in range(2):
        limits = {"max_area": draw.randint(150, 300)}
        asked.append(coplace.sweep.question("gpt2-xl", study="smoke", out=f"made/swept-{at}", **limits))
    for part in ("1/2", "2/2", "3/2"):
        asked.append(coplace.sweep.question("opt-350m", study="smoke", shard=part, out=f"made/part-{part[0]}"))
    for study in ("smoke", "phaze_ici", "smok"):
        asked.append(coplace.init.question(f"made/{study}.toml", study=study))
    asked.append(coplace.validate.question(techniques=True))
    asked += [coplace.validate.question(file) for file in [*MEASURED, "nowhere.csv"]]
    for chip in ("a100_80gb_sxm", "h100", "tpu_v4", "no-such-chip"):
        asked.append(coplace.calibrate.question(chip, MEASURED[0], out=f"made/{chip}.toml"))
    asked.append(coplace.calibrate.question("nvlink3_node", MEASURED[1], out="made/fabric.toml"))
    asked += [coplace.place.question(file) for file in [*PLACED, "nowhere.json"]]
    asked.append(coplace.place.question(*PLACED[:2]))
    asked += [coplace.schedule.question(file, steps=draw.choice([100, 10_000])) for file in SCHEDULED]
    asked.append(coplace.schedule.question(*SCHEDULED))
    for topology in SCALE_SIM[1:]:
        for kind in ("conv", "gemm"):
            asked.append(coplace.scalesim.question(SCALE_SIM[0], topology, input=kind, stall_free=draw.random() < 0.5))
    for _ in range(6):
        extra = draw.choice([{}, {"vocabulary": draw.choice([1, 32_000, 51_200])}, {"stack": "megatron"}])
        asked.append(coplace.calculon.question(*CALCULON, **extra))
    asked.append(coplace.calculon.question(*reversed(CALCULON)))
    return asked


def next_questions(draw: random.Random, steps: List[str]) -> List[coplace.Question]:
    """Questions about the answers to the first ones; ``steps`` are files with answers of evaluate and plan."""
    runs = [f"made/found-{at}" for at in range(8)]
    asked = [
        coplace.merge.question("made/part-1", "made/part-2", out="made/whole"),
        coplace.search.question(question="asked.json", out="made/again", draws=0),
    ]
    for at, run in enumerate(draw.sample(runs, 4)):
        asked.append(coplace.explain.question(run))
        asked.append(coplace.report.question(run, out=f"made/run-{at}.html"))
    for at, step in enumerate(draw.sample(steps, 6)):
        asked.append(coplace.report.question(step, out=f"made/step-{at}.html"))
        asked.append(coplace.compare.question(step, draw.choice(steps)))
    for at in range(5):
        asked.append(coplace.compare.question(*draw.sample(runs, 2)))
        axes = draw.choice([{}, {"x": "power"}, {"x": "area", "y": "per-watt"}, {"x": "colour"}])
        asked.append(coplace.pareto.question(*draw.sample(runs, 2), out=f"made/front-{at}", **axes))
    asked += [coplace.explain.question("nowhere")]
    return asked


def without_clock(value: Any, verb: str) -> Any:
    if isinstance(value, dict):
        left_out = CLOCK | ({"bytes"} if verb == "report" else set())
        return {key: without_clock(entry, verb) for key, entry in value.items() if key not in left_out}
    if isinstance(value, list):
        return [without_clock(entry, verb) for entry in value]
    return value


def values_of(text: str) -> Any:
    """The JSON answer: a value, or one per line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def check_same(question: coplace.Question, mine: Reply, theirs: Reply) -> None:
    assert theirs.code == mine.code, (question, mine, theirs)
    if mine.answer != theirs.answer:
        assert question.verb in TIMED, (question, mine, theirs)
        values = [without_clock(values_of(reply.answer), question.verb) for reply in (mine, theirs)]
        assert values[0] == values[1], question
    # The program prints an error with the usage behind it; each way shows an argument's value as it is given there.
    if mine.code:
        assert mine.message.split("; use ")[0] in theirs.message, (question, mine, theirs)


def test_two_hundred_questions_have_the_same_answers_three_ways(here: Path) -> None:
    ways = [here / name for name in ("python", "program", "json")]
    for way in ways:
        for file in INPUTS:
            (way / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, way / file)
        (way / "made").mkdir()
    agent = Agent(ways[2])
    tried: Counter[str] = Counter()
    answered: Counter[str] = Counter()

    def ask(questions: List[coplace.Question]) -> List[List[Reply]]:
        replies = [ask_python(questions, ways[0]), ask_program(questions, ways[1]), agent.ask(questions)]
        for question, mine, program, by_json in zip(questions, *replies):
            check_same(question, mine, program)
            check_same(question, mine, by_json)
            tried[question.verb] += 1
            answered[question.verb] += mine.code == 0
        return replies

    first = first_questions(random.Random(37))
    replies = ask(first)
    # Answers as files, which other questions name: each way keeps its own.
    steps: List[str] = []
    for at, question in enumerate(first):
        if question.verb in ("evaluate", "plan") and replies[0][at].code == 0:
            steps.append(f"{question.verb}-{at}.json")
            for way, found in zip(ways, replies):
                (way / steps[-1]).write_text(found[at].answer)
    run = next(at for at, question in enumerate(first) if question.verb == "search" and replies[0][at].code == 0)
    for way, found in zip(ways, replies):
        (way / "asked.json").write_text(json.dumps(json.loads(found[run].answer)["asked"]))
    ask(next_questions(random.Random(38), steps))
    # A merge holds its parts, so the next one has a round of its own. The doctor lists the runs that are there, so all
    # others must have ended.
    ask([coplace.merge.question("made/part-1", out="made/half")])
    ask([coplace.doctor.question(runs="made")])
    agent.end()

    assert sum(tried.values()) >= 200 and set(tried) == set(coplace.verbs.__all__), tried
    assert all(answered[verb] > 0 for verb in tried), answered
    failed = sum(tried.values()) - sum(answered.values())
    assert 20 < failed < 100, (tried, answered)


def test_text_is_the_program_s(here: Path) -> None:
    # The package takes the width of the screen when it is imported: 80 columns here.
    for question in (
        coplace.evaluate.question("opt-350m", chip="h100", fabric="nvlink4_node", devices=4, global_batch=8),
        coplace.plan.question("opt-350m", chip="h100", fabric="nvlink4_node", devices=8, global_batch=16),
        coplace.list.question("chips"),
    ):
        code, out, _ = run_program(words_of_question(question), here)
        assert code == 0
        assert str(question.ask()) == out


def test_a_table_has_a_row_per_instance(here: Path) -> None:
    for verb, files in (("place", PLACED[:2]), ("schedule", SCHEDULED)):
        answer = coplace.Question(verb, *(ROOT / file for file in files)).ask()
        assert len(answer) == len(files) == len(answer.table())
    with pytest.raises(coplace.CoplaceError, match="nowhere.json"):
        coplace.place("nowhere.json")
