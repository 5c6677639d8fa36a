"""Arguments, errors, batches, inputs and Ctrl-C."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any, Dict

import pytest

import coplace

JOB: Dict[str, Any] = {"chip": "h100", "fabric": "nvlink4_node", "devices": 4, "global_batch": 8}


@pytest.mark.parametrize(
    ("wrong", "key", "value", "limit", "cure"),
    [
        ({"model": "llama-9b"}, "model", "llama-9b", "is neither a built-in model nor a file", "did you mean"),
        ({"chip": "tpu_v44"}, "chip", "tpu_v44", "is no built-in chip", "did you mean `tpu_v4`"),
        ({"fabric": "nvlink4"}, "fabric", "nvlink4", "is no built-in fabric", "`nvlink4_node`"),
        ({"stack": "megatronn"}, "stack", "megatronn", "is no built-in software stack", "did you mean `megatron"),
        ({"stack_option": "overlap.tnsor=1"}, "stack_option", "overlap.tnsor", "has no such option", "overlap.tensor"),
        ({"stack_option": "overlap.tensor=7"}, "stack_option", "overlap.tensor=7", "from 0 to 1", ""),
        ({"technique": "galor"}, "technique", "galor", "no such technique", "did you mean `galore`"),
        ({"technique": "galore"}, "technique", "galore", "its gradients or updates are biased", "add --allow galore"),
        ({"headroom_gib": -1}, "headroom_gib", "-1", "must be", "use a value such as 4"),
        ({"tensor": 3}, "tensor", "3", "must be a divisor", "use"),
        ({"lora_targets": ["q_proj"]}, "lora_targets", "q_proj", "no technique has adapters", "add --technique lora"),
        ({"devices": 4096, "fabric": "nvlink4_node"}, "devices", "4096", "", "use"),
    ],
)
def test_an_error_has_its_parts_as_fields(
    wrong: Dict[str, Any], key: str, value: Any, limit: str, cure: str
) -> None:
    given = {"model": "opt-350m", **JOB, **wrong}
    with pytest.raises(coplace.CoplaceError) as found:
        coplace.evaluate(**given)
    error = found.value
    assert (error.key, error.value, error.exit_code) == (key, value, 2)
    assert limit in (error.limit or "") and cure in (error.cure or ""), (error.limit, error.cure)


def test_an_error_of_a_file_names_it(here: Path) -> None:
    with pytest.raises(coplace.CoplaceError) as found:
        coplace.Chip("nowhere.toml")
    assert found.value.file == "nowhere.toml" and "cannot be read" in (found.value.limit or "")
    text = coplace.Chip("h100").text.replace("capacity_gib = 80", "capacity_gib = -80")
    with pytest.raises(coplace.CoplaceError) as found:
        coplace.Chip.from_text(text, name="mine")
    error = found.value
    assert (error.file, error.value) == ("mine.toml", "-80") and (error.key or "").endswith("capacity_gib")
    (here / "config.json").write_text('{"model_type": "llama", "hidden_size": 0}')
    with pytest.raises(coplace.CoplaceError) as found:
        coplace.Model("config.json")
    assert found.value.file == "config.json" and found.value.key and found.value.cure
    with pytest.raises(coplace.CoplaceError) as found:
        coplace.compare("nowhere", "elsewhere")
    assert found.value.file == "nowhere" and "no such file" in (found.value.limit or "")


def test_lists_are_taken_where_the_command_takes_commas() -> None:
    lora = {**JOB, "technique": "lora,rank=8", "allow": "lora", "stack": "huggingface"}
    listed = coplace.evaluate("opt-350m", lora_targets=["q_proj", "v_proj"], **lora)
    assert listed.json() == coplace.evaluate("opt-350m", lora_targets="q_proj,v_proj", **lora).json()
    by_name = {option["name"]: option["multiple"] for option in coplace.search.options}
    assert by_name["front"] and not by_name["devices"]


@pytest.mark.parametrize(
    ("wrong", "key", "value", "part"),
    [
        ({"sequence_lenth": 4}, "sequence_lenth", "4", "did you mean `sequence_length`"),
        ({"headroom_gib": "4 GB"}, "headroom_gib", "4 GB", "must be a number"),
        ({"sequence_length": "4x"}, "sequence_length", "4x", "whole number"),
        ({"devices": "many"}, "devices", "many", "whole number from 1 to 1048576"),
        ({"devices": [1, 2]}, "devices", "[1, 2]", "give one value"),
        ({"devices": -1}, "devices", "-1", "-1 is not in 1..=1048576"),
        ({"kernels": "yes"}, "kernels", "'yes'", "use True or False"),
        ({"chip": {"name": "x"}}, "chip", "{'name': 'x'}", "is no number, text or path"),
        ({"attention": "fast"}, "attention", "fast", "fused, unfused"),
        ({"tensor": []}, "tensor", "[]", "is an empty list"),
        ({"tensor": 3}, "tensor", "3", "must be a divisor"),
        ({"format": "json"}, "format", "'json'", "leave it out"),
        ({"data": 3, "pipeline": 1, "tensor": 1}, "data", "3", "use dp = 2 or 4"),
    ],
)
def test_a_wrong_argument_is_named(wrong: Dict[str, Any], key: str, value: str, part: str) -> None:
    with pytest.raises(coplace.CoplaceError) as found:
        coplace.evaluate("opt-350m", **{**JOB, **wrong})
    error = found.value
    assert (error.key, error.value, error.exit_code) == (key, value, 2)
    assert part in str(error)


def test_a_verb_takes_its_arguments_by_position_and_by_name() -> None:
    assert coplace.evaluate(model="opt-350m", **JOB) == coplace.evaluate("opt-350m", **JOB)
    with pytest.raises(coplace.CoplaceError, match="is given by position too"):
        coplace.evaluate("opt-350m", model="opt-350m", **JOB)
    with pytest.raises(coplace.CoplaceError, match="there are too many"):
        coplace.evaluate("opt-350m", "gpt2-xl", **JOB)
    with pytest.raises(coplace.CoplaceError, match="--chip"):
        coplace.evaluate("opt-350m")
    assert coplace.evaluate("opt-350m", gpus=4, **{**JOB, "devices": None}).job.cluster.devices == 4


def test_no_value_is_taken_for_an_option() -> None:
    with pytest.raises(coplace.CoplaceError, match="--help"):
        coplace.evaluate("--help", **JOB)
    with pytest.raises(coplace.CoplaceError, match="--version"):
        coplace.evaluate("opt-350m", **{**JOB, "stack": "--version"})


def test_keys_are_attributes_and_answers_stay_as_they_are() -> None:
    answer = coplace.evaluate("opt-350m", **JOB)
    assert (
        answer.result.time.step_s == answer["result"]["time"]["step_s"] == answer.to_dict()["result"]["time"]["step_s"]
    )
    assert "result" in dir(answer) and "feasible" in answer
    answer.to_dict()["result"].clear()
    assert answer.result.time.step_s > 0
    with pytest.raises(AttributeError, match="no_such_key: is no key here; it has format, job"):
        answer.no_such_key
    assert "<pre>" in answer._repr_html_() and "opt-350m" in repr(answer)
    assert json.loads(answer.json()) == answer.value


def test_a_batch_keeps_the_order_and_loses_nothing() -> None:
    batches = [8, 0, 16, 32, 24]
    asked = [coplace.evaluate.question("opt-350m", **{**JOB, "global_batch": batch}) for batch in batches]
    told = []
    answers = coplace.batch(asked, progress=told.append)
    assert isinstance(answers[1], coplace.CoplaceError) and answers[1].key == "global_batch"
    for batch, answer in zip(batches, answers):
        if batch:
            assert answer == coplace.evaluate("opt-350m", **{**JOB, "global_batch": batch})
    assert coplace.batch([{"verb": "list", "what": "chips"}])[0] == coplace.list("chips")
    assert coplace.batch([]) == []
    for threads in (1, 3):
        assert [str(answer) for answer in coplace.batch(asked, threads=threads)] == [str(answer) for answer in answers]


def test_warnings_are_python_s() -> None:
    with pytest.warns(coplace.CoplaceWarning, match="--nvme 7:960: no plan of the list"):
        answer = coplace.plan("opt-350m", **JOB, nvme="7:960")
    assert len(answer.warnings) == 1


def test_inputs_are_loaded_changed_and_passed(here: Path) -> None:
    chip = coplace.Chip("h100")
    assert (chip.hbm_gib, chip.area.hbm_stacks, str(chip)) == (80.0, 6, "h100")
    wide = chip.replace({"memory.hbm.read_gb_per_s": 4800, "memory.hbm.write_gb_per_s": 4800})
    assert (wide.hbm_gb_per_s, chip.hbm_gb_per_s) == (4800.0, 3350.0)
    slow, fast = (coplace.evaluate("llama3-8b", **{**JOB, "chip": one}) for one in (chip, wide))
    assert fast.result.time.step_s < slow.result.time.step_s
    # A changed chip gives what its file gives, and the answer carries it.
    file = wide.save("wide.toml")
    by_file = coplace.evaluate("llama3-8b", **{**JOB, "chip": file})
    assert by_file.result == fast.result and by_file.job == fast.job
    assert list(fast.asked.files) == [wide._input.word]
    assert coplace.Chip(file) == wide and coplace.Chip.from_text(wide.text, name="wide") == wide
    model = coplace.Model("llama2-7b").replace(num_hidden_layers=16)
    assert (model.layers, model.num_hidden_layers) == (16, 16)
    config = json.loads(model.text)
    assert coplace.Model(config, name="mine").parameters == model.parameters
    assert coplace.evaluate(model, **JOB).job.model.parameters == model.parameters
    fabric = coplace.Fabric("nvlink4_node")
    tier = next(iter(tier["name"] for tier in fabric.to_dict()["tier"]))
    halved = fabric.replace({f"tier.{tier}.bandwidth_gb_per_s": 100})
    half = coplace.evaluate("llama3-8b", **{**JOB, "fabric": halved})
    assert half.result.time.step_s > slow.result.time.step_s
    stack = coplace.Stack("megatron_core").replace({"overlap.tensor": 0.9})
    assert stack.overlap.tensor == 0.9
    same = coplace.evaluate("opt-350m", **JOB, stack="megatron_core", stack_option="overlap.tensor=0.9", tensor=2)
    assert coplace.evaluate("opt-350m", **JOB, stack=stack, tensor=2).result.time == same.result.time
    with pytest.raises(coplace.CoplaceError) as wrong:
        chip.replace(hbm_stcks=8)
    assert wrong.value.key == "hbm_stcks" and "hbm_stacks" in str(wrong.value)
    with pytest.raises(coplace.CoplaceError, match="did you mean"):
        coplace.Chip("h10")
    with pytest.raises(coplace.CoplaceError, match="the space has no dimension|unknown|missing"):
        coplace.Study({"name": "mine"})


def test_a_study_an_answer_and_a_run_are_passed_to_verbs(here: Path) -> None:
    study = coplace.Study("smoke")
    run = coplace.search("llama2-7b", study=study, out="run")
    again = coplace.search("llama2-7b", study=study.replace(devices=study.devices), out="again")
    assert run.best.design == again.best.design
    assert run.directory == Path("run") and len(run.designs()) > 0
    assert "<svg" in run.plot().svg and run.plot("pareto").save("front.svg").exists()
    with pytest.raises(coplace.CoplaceError, match="nothing: was not drawn; there is pareto"):
        run.plot("nothing")
    evaluated = coplace.evaluate("llama2-7b", chip=run)
    assert evaluated.job.cluster.devices == run.study.devices
    compared = coplace.compare(evaluated, coplace.evaluate("llama2-7b", chip=run, tensor=1))
    assert len(compared.entries) == 2
    assert coplace.explain(run).run == "run"
    assert "<svg" in coplace.plan("opt-350m", **JOB).plot().svg


def test_a_run_of_serve_is_kept_drawn_and_passed_to_verbs(here: Path) -> None:
    asked = {"chip": "h100", "devices": 1, "ttft": 1000}
    run = coplace.serve("llama3-8b", tpot=20, out="one", **asked)
    assert run.directory == Path("one") and run.choices[0].values.throughput == run.choices[0].tokens_per_s
    swept = coplace.serve("llama3-8b", tpot=[10, 20], **asked)
    assert [case.tpot_limit_ms for case in swept.cases] == [10, 20]
    assert swept.cases[1].answer.choices[0].tokens_per_s == run.choices[0].tokens_per_s
    assert "<svg" in run.plot().svg and "<svg" in swept.plot().svg
    assert coplace.compare(run, run).cases[0].entries[1].times_first == 1
    assert coplace.explain(run, chip="h200").chips[0].chip == "h200"
    with pytest.raises(coplace.CoplaceError, match="has no designs of chips"):
        run.designs()


INTERRUPTED = """
    import os, signal, threading, time
    import coplace

    job = dict(chip="a100_80gb", fabric="selene_hdr200x8", devices=1024, global_batch=1536, everything=True)
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    try:
        {call}
        print("ended")
    except coplace.BatchInterrupted as interrupt:
        print("interrupted", sum(answer is not None for answer in interrupt.answers) >= 1)
    except KeyboardInterrupt:
        print("interrupted")
    assert time.monotonic() - start < 40
    # Python goes on.
    assert coplace.evaluate("opt-350m", chip="h100", fabric="nvlink4_node", devices=4, global_batch=8).feasible
"""


@pytest.mark.parametrize(
    ("call", "printed"),
    [
        ('coplace.plan("gpt3-175b", layer_split="best", **job)', "interrupted"),
        (
            'coplace.batch([coplace.list.question("chips"), coplace.plan.question("gpt3-175b", layer_split="best", **job)])',
            "interrupted True",
        ),
    ],
)
def test_ctrl_c_stops_the_work(call: str, printed: str) -> None:
    script = textwrap.dedent(INTERRUPTED.replace("{call}", call))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, printed), done.stderr


SWEPT = """
    import os, signal, sqlite3, sys, threading, time
    import coplace

    def numbers():
        try:
            store = sqlite3.connect("file:made/sweep.sqlite?mode=ro", uri=True)
            return {number for number, in store.execute("SELECT number FROM design")}
        except sqlite3.Error:
            return set()

    def interrupt(after):
        while len(numbers()) < after:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    before = set()
    for resume in (False, True):
        threading.Thread(target=interrupt, args=(len(before) + 50,), daemon=True).start()
        try:
            coplace.sweep("llama2-7b", study="phaze", out="made", resume=resume)
            print("ended")
        except KeyboardInterrupt:
            kept = numbers()
            print("interrupted", len(kept) >= len(before) + 50, before <= kept)
            before = kept
    # A wrong call afterwards takes nothing away.
    try:
        coplace.sweep("llama2-7b", study="phaze", out="made")
    except coplace.CoplaceError as error:
        print(error.key, before <= numbers())
"""


def test_an_interrupted_sweep_is_kept_and_goes_on(here: Path) -> None:
    script = textwrap.dedent(SWEPT)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["interrupted True True", "interrupted True True", "out True"], done.stdout


@pytest.mark.parametrize("filtered", ["default", "error"])
def test_an_exception_of_progress_loses_no_answer(filtered: str) -> None:
    called = []

    def progress(count: int) -> None:
        called.append(count)
        raise ZeroDivisionError("mine")

    asked = [coplace.plan.question("llama3-8b", **{**JOB, "devices": 8, "global_batch": 8 * at}) for at in (1, 2, 3)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter(filtered, coplace.CoplaceWarning)  # type: ignore[arg-type]
        answers = coplace.batch(asked, progress=progress)
    assert len(answers) == 3 and all(isinstance(answer, coplace.Answer) for answer in answers)
    assert len(called) == 1
    assert filtered == "error" or "progress raised ZeroDivisionError: mine" in str(said[0].message)


def test_charts_of_the_report_are_shown_alone_or_together(here: Path) -> None:
    answer = coplace.plan("opt-350m", **JOB)
    timeline = answer.plot("timeline", interactive=True)
    assert timeline._repr_html_().startswith("<iframe srcdoc=") and ":has(#chart-timeline)" in timeline.html
    assert timeline.save(here / "timeline.html").stat().st_size > 1_000_000
    assert "display: none" not in answer.plot(interactive=True).html.split("<script")[0]
    run = coplace.search("llama2-7b", study="smoke", out="run")
    for name in ("pareto", "memory", "roofline"):
        assert f":has(#chart-{name}" in run.plot(name, interactive=True).html
    for asked, name, part in (
        (answer, "timelin", "is no chart of a report"),
        (answer, "pareto", "is not in the report of this plan; there is timeline, memory"),
        (coplace.list("chips"), "timeline", "run"),
    ):
        with pytest.raises(coplace.CoplaceError, match=part):
            asked.plot(name, interactive=True)
    with pytest.raises(coplace.CoplaceError, match="there is .*interactive=True draws more"):
        answer.plot("timeline")
