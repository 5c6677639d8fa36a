"""Measures calls from Python against a loop in Rust, and data frames.

    python tools/measure.py [CALLS]
    python tools/measure.py designs

Prints seconds: of CALLS `evaluate` calls (10,000) in a batch, of the same calls in a loop of Rust without Python, of a
table of plans, and of data frames of 1,000,000 designs with the memory that they add. It needs NumPy, pandas, Polars
and PyArrow, and a wheel that was built for release. `designs` measures the data frames alone.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import coplace
from coplace import _core

JOB = {"chip": "h100", "fabric": "nvlink4_node", "devices": 8, "global_batch": 32, "tensor": 2, "pipeline": 1}
JOB.update({"micro_batch": 1, "zero": 1, "recompute": "none"})


def seconds(work: object) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    assert callable(work)
    work()
    return time.perf_counter() - start


#: Rows of the table of designs, and of a group of its file, as a sweep writes it.
DESIGNS, GROUP = 1_000_000, 16_384


def resident_mib() -> float:
    """The memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def write_designs(file: Path) -> None:
    """Replaces a sweep's file by one of `DESIGNS` rows: its own rows again and again, with other numbers."""
    import numpy
    import pyarrow
    from pyarrow import parquet

    rows = parquet.read_table(file)
    draw = numpy.random.default_rng(37)
    table = rows.take(pyarrow.array(draw.integers(0, len(rows), DESIGNS)))
    for at, field in enumerate(rows.schema):
        if field.name == "index":
            table = table.set_column(at, field, pyarrow.array(numpy.arange(DESIGNS), field.type))
        elif pyarrow.types.is_floating(field.type):
            scaled = pyarrow.compute.multiply(table.column(at), draw.uniform(0.5, 1.5, DESIGNS))
            table = table.set_column(at, field, scaled.cast(field.type))
    parquet.write_table(table, file, row_group_size=GROUP)


#: Data frames of a table.
FRAMES = {
    "pandas, Arrow's columns": lambda table: table.to_pandas(arrow=True),
    "Polars": lambda table: table.to_polars(),
    "pandas, NumPy's columns (a copy)": lambda table: table.to_pandas(),
}


def measure_frame(name: str, directory: Path) -> str:
    """The seconds and the memory of a data frame of a sweep's designs, in this process."""
    import polars
    import pyarrow
    from coplace._answers import designs_of_run

    # The libraries are loaded.
    polars.DataFrame({"a": [1]}).to_pandas()
    before = resident_mib()
    start = time.perf_counter()
    table = designs_of_run(directory)
    read, read_mib = time.perf_counter() - start, resident_mib() - before
    frame = FRAMES[name](table)
    whole, more_mib = time.perf_counter() - start, resident_mib() - before - read_mib
    own = pyarrow.table(table).nbytes / 2**20
    return (
        f"{len(frame):,} designs of {len(frame.columns)} columns, {own:.0f} MiB, {name}: {whole:.2f} s, of them "
        f"reading {read:.2f} s; memory {read_mib:+.0f} MiB read, {more_mib:+.0f} MiB for the frame"
    )


def measure_designs() -> None:
    """Prints the measures of data frames of many designs, each in a process of its own."""
    import pyarrow.compute  # noqa: F401

    with tempfile.TemporaryDirectory(prefix="coplace-") as directory:
        sweep = coplace.sweep("llama2-7b", study="smoke", out=Path(directory) / "sweep")
        assert sweep.directory is not None
        write_designs(sweep.directory / "sweep.parquet")
        for name in FRAMES:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                print(process.submit(measure_frame, name, sweep.directory).result())


def main() -> None:
    """Prints the measures."""
    if sys.argv[1:] == ["designs"]:
        return measure_designs()
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    threads = os.cpu_count() or 1
    asked = [coplace.evaluate.question("llama3-8b", **JOB) for _ in range(calls)]
    # In turns, because a machine that others use is not equally fast all the time.
    rust = python = steps = 0.0
    rounds = 5
    for at in range(rounds):
        part = asked[at * calls // rounds : (at + 1) * calls // rounds]
        rust += _core.time_loop("evaluate", ("llama3-8b",), JOB, len(part), threads)
        start = time.perf_counter()
        answers = coplace.batch(part)
        python += time.perf_counter() - start
        start = time.perf_counter()
        assert all(isinstance(answer, coplace.Answer) and answer.result.time.step_s > 0 for answer in answers)
        steps += time.perf_counter() - start
    print(
        f"{calls} evaluate calls on {threads} threads: Rust {rust:.2f} s, Python {python:.2f} s, ratio {python / rust:.3f}"
    )
    print(f"reading the step of every answer: {steps:.2f} s")
    single = seconds(lambda: [question.ask() for question in asked[: calls // 10]])
    one = _core.time_loop("evaluate", ("llama3-8b",), JOB, calls // 10, 1)
    print(f"{calls // 10} calls one by one: Rust {one:.2f} s, Python {single:.2f} s, ratio {single / one:.3f}")
    start = time.perf_counter()
    options = {"chip": "a100_80gb", "fabric": "selene_hdr200x8", "devices": 64, "global_batch": 256}
    answer = coplace.plan("llama3-8b", top=5000, everything=True, **options)
    found = time.perf_counter() - start
    first = seconds(answer.to_pandas)
    start = time.perf_counter()
    frame = answer.to_pandas()
    again = time.perf_counter() - start
    print(
        f"{len(frame)} plans found in {found:.2f} s; {len(frame.columns)} columns in {first:.2f} s, again {again:.2f} s"
    )
    measure_designs()


if __name__ == "__main__":
    main()
