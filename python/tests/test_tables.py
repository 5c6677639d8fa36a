"""Tables as data frames."""

from __future__ import annotations

from pathlib import Path

import pytest

import coplace

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

JOB = {"chip": "h100", "fabric": "nvlink4_node", "devices": 8, "global_batch": 64}


def test_plans_are_rows() -> None:
    answer = coplace.plan("llama3-8b", **JOB)
    frame, other = answer.to_pandas(), answer.to_polars("plans")
    plans = answer.to_dict()["plans"]
    assert len(frame) == len(other) == len(plans) > 1
    for column, values in {
        "step_s": [plan["step_s"] for plan in plans],
        "plan.layout.tensor": [plan["plan"]["layout"]["tensor"] for plan in plans],
        "plan.activations": [plan["plan"]["activations"] for plan in plans],
        "parts_s.forward": [plan["parts_s"]["forward"] for plan in plans],
    }.items():
        assert frame[column].tolist() == other[column].to_list() == values
    assert frame["plan.layout.tensor"].dtype == "int64" and frame["step_s"].dtype == "float64"
    assert frame["plan.layout.sequence_parallel"].dtype == "bool"
    # Columns stand in the order of the answer's keys.
    assert list(frame.columns).index("step_s") < list(frame.columns).index("peak_gib")


def test_many_answers_are_a_row_each() -> None:
    asked = [coplace.evaluate.question("opt-350m", **{**JOB, "global_batch": batch}) for batch in (8, 16, 0, 32)]
    answers = coplace.batch(asked)
    table = coplace.table(answers, "result.plan")
    steps = [answer.result.plan.step_s for answer in answers if isinstance(answer, coplace.Answer)]
    frame = table.to_pandas()
    assert len(table) == len(table.to_polars()) == len(frame) == 4
    # A question that failed keeps its row, with the reason.
    assert frame.columns[-1] == "error" and frame["error"].isna().tolist() == [True, True, False, True]
    assert frame["error"][2] == str(answers[2]) and frame["step_s"].isna()[2]
    answered = frame[frame["error"].isna()]
    assert answered["step_s"].tolist() == steps
    whole = coplace.table(answers).to_pandas()
    assert whole["job.cluster.global_batch_sequences"].dropna().tolist() == [8, 16, 32]
    assert "error" not in coplace.table([answers[0]]).column_names
    with pytest.raises(coplace.CoplaceError, match=r"answers\[1\] = 3: is no answer"):
        coplace.table([answers[0], 3])
    with pytest.raises(coplace.CoplaceError, match="nothing: is no key"):
        coplace.table([answers[0]], "nothing")
    assert len(coplace.table([])) == 0


def test_a_job_that_does_not_fit_has_a_row_with_the_reason() -> None:
    asked = [coplace.evaluate.question("llama3-70b", **{**JOB, "devices": devices}) for devices in (8, 64)]
    small = coplace.plan.question("llama3-70b", **JOB)
    fabric = {"fabric": "selene_hdr200x8", "chip": "a100_80gb"}
    frame = coplace.table(coplace.batch([asked[0].with_values(**fabric), asked[1].with_values(**fabric)]), "result.plan")
    errors = frame.to_pandas()["error"]
    assert "no plan fits" in errors[0] and errors.isna()[1]
    plans = small.ask().table("plans").to_pandas()
    assert len(plans) == 1 and "use at least 16 devices" in plans["error"][0]


def test_lists_and_designs_are_tables(here: Path) -> None:
    chips = coplace.list("chips")
    assert len(chips.to_pandas()) == len(chips)
    run = coplace.search("llama2-7b", study="smoke")
    frame = run.designs().to_pandas()
    file = pandas.read_parquet(run.directory / "designs.parquet")
    assert list(frame.columns) == list(file.columns) and len(frame) == len(file)
    for column in frame.columns:
        assert frame[column].equals(file[column]) or frame[column].isna().eq(file[column].isna()).all()
    best = frame[frame["index"] == run.best.design["index"]]
    assert best["step_time_s"].iloc[0] == run.best.design.step_time_s


def test_a_table_is_read_without_a_copy_of_its_own() -> None:
    import pyarrow

    table = coplace.list("chips").table()
    one, other = pyarrow.table(table), pyarrow.table(table)
    addresses = [part.column("hbm_gib").chunk(0).buffers()[1].address for part in (one, other)]
    assert addresses[0] == addresses[1]
