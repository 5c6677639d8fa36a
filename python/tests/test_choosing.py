"""Functions of the user's own over the designs of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

import coplace

pandas = pytest.importorskip("pandas")


def per_dollar(frame: "pandas.DataFrame") -> "pandas.Series[float]":
    return frame["throughput_tokens_per_s"] / (frame["cost_usd"] + 20 * frame["area_mm2"])


def test_a_search_and_a_sweep_choose_the_same_design(here: Path) -> None:
    run = coplace.search("llama2-7b", study="smoke")
    sweep = coplace.sweep("llama2-7b", study="smoke")
    one, all_of_them = coplace.choose(run, per_dollar, monotone=True), coplace.choose(sweep, per_dollar, monotone=True)
    assert one.proven and all_of_them.proven and one.value == pytest.approx(all_of_them.value, rel=1e-12)
    # By hand, over every design.
    file = pandas.read_parquet(sweep.directory / "sweep.parquet")
    assert all_of_them.value == per_dollar(file).max() and len(all_of_them.frame) == per_dollar(file).notna().sum()
    assert all_of_them.best["index"] == file["index"][per_dollar(file).idxmax()]
    # The search of that design alone finds its step.
    again = coplace.search("llama2-7b", study=one.study("smoke"))
    assert again.best.design.step_time_s == one.best["step_time_s"]
    assert "92 more are worse at the bound" in one.certificate and "proven" in repr(one)


def test_what_is_not_declared_monotone_has_no_certificate(here: Path) -> None:
    sweep = coplace.sweep("llama2-7b", study="smoke")
    choice = coplace.choose(sweep, lambda frame: frame["throughput_tokens_per_s"] / frame["mean_power_w"])
    assert not choice.proven and "no certificate" in choice.certificate and "no certificate" in choice._repr_html_()
    # Energy is not known of designs that the search rejected: they stay open.
    run = coplace.search("llama2-7b", study="smoke")
    left = coplace.choose(run, lambda frame: 1 / frame["energy_per_token_j"], monotone=True)
    assert not left.proven and "give a sweep instead" in left.certificate


def test_dimensions_and_limits_are_the_users(here: Path) -> None:
    sweep = coplace.sweep("llama2-7b", study="smoke")

    def lifetime(frame: "pandas.DataFrame") -> "pandas.Series[float]":
        energy = frame["peak_power_w"] / 1e3 * 8760 * 4 * frame["price"]
        return frame["throughput_tokens_per_s"] / (frame["cost_usd"] + energy)

    prices = [0.05, 0.2]
    choice = coplace.choose(
        sweep, lifetime, dimensions={"price": prices}, limits=[lambda frame: frame["area_mm2"] < 200], monotone=True
    )
    assert choice.best["price"] == 0.05 and choice.best["area_mm2"] < 200
    assert choice.frame.groupby("price").size().tolist() == [len(choice.frame) // 2] * 2


def test_a_large_space_says_what_the_search_left_out(here: Path) -> None:
    cut = {f"space.dimensions.{key}": values for key, values in {"tensor.cores": [1, 2], "vmem_mib": [16, 32]}.items()}
    study = coplace.Study("tpu").replace(cut)
    run = coplace.search("llama3-8b", study=study, sequence_length=4096, node="n7")
    choice = coplace.choose(run, lambda frame: frame["throughput_tokens_per_s"] / frame["area_mm2"], monotone=True)
    assert not choice.proven and "which the search rejected" in choice.certificate


def test_wrong_functions_are_refused_with_their_name(here: Path) -> None:
    run = coplace.search("llama2-7b", study="smoke")
    for function in (lambda frame: [1.0], lambda frame: "fast", lambda frame: ["a"] * len(frame)):
        with pytest.raises(coplace.CoplaceError, match="one number per row") as refused:
            coplace.choose(run, function)
        assert refused.value.key == "objective"
    with pytest.raises(coplace.CoplaceError, match="is a column of the designs"):
        coplace.choose(run, per_dollar, dimensions={"cost_usd": [1]})
    with pytest.raises(coplace.CoplaceError, match="within the limits"):
        coplace.choose(run, per_dollar, limits=[lambda frame: frame["area_mm2"] < 0])
    with pytest.raises(coplace.CoplaceError, match="give a run"):
        coplace.choose("nowhere", per_dollar)
    with pytest.raises(coplace.CoplaceError, match="has no run directory"):
        coplace.choose(coplace.list("chips"), per_dollar)
    for wrong, key in [
        ({"limits": [lambda frame: frame["area_mm2"]]}, "limits"),
        ({"limits": [lambda frame: frame["mfu"] * float("nan")]}, "limits"),
        ({"limits": per_dollar}, "limits"),
        ({"monotone": "no"}, "monotone"),
        ({"dimensions": [1]}, "dimensions"),
        ({"dimensions": {"x": []}}, "dimensions.x"),
        ({"dimensions": {"objective": [1, 2]}}, "dimensions"),
        ({"dimensions": {"x": range(100_000)}}, "dimensions"),
    ]:
        with pytest.raises(coplace.CoplaceError) as refused:
            coplace.choose(run, per_dollar, **wrong)  # type: ignore[arg-type]
        assert refused.value.key == key, wrong
    with pytest.raises(coplace.CoplaceError, match="no number for any design"):
        coplace.choose(run, lambda frame: frame["mfu"] * float("nan"))
    with pytest.raises(coplace.CoplaceError, match="is no function"):
        coplace.choose(run, 3)  # type: ignore[arg-type]
    with pytest.raises(coplace.CoplaceError, match="has no run directory"):
        coplace.choose(None, per_dollar)  # type: ignore[arg-type]


def test_a_function_that_writes_changes_no_answer(here: Path) -> None:
    run = coplace.search("llama2-7b", study="smoke")

    def writes(frame: "pandas.DataFrame") -> "pandas.Series[float]":
        value = frame["throughput_tokens_per_s"].copy()
        frame["throughput_tokens_per_s"] = 0
        return value

    assert coplace.choose(run, writes, monotone=True).best["throughput_tokens_per_s"] > 0


def test_a_step_that_is_not_proven_leaves_its_design_open(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coplace import _choosing

    sweep = coplace.sweep("llama2-7b", study="smoke")
    frame, swept = _choosing._designs(sweep.directory)
    second = per_dollar(frame).sort_values(ascending=False).index[1]
    frame.loc[second, "bound_sequences_per_s"] *= 2
    monkeypatch.setattr(_choosing, "_designs", lambda directory: (frame, swept))
    assert not coplace.choose(sweep, per_dollar, monotone=True).proven
