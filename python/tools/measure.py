"""Measures calls from Python against a loop in Rust, and data frames.

    python tools/measure.py [CALLS]

Prints seconds: of CALLS `evaluate` calls (10,000) in a batch, of the same calls in a loop of Rust without Python, and
of a table of plans.
"""

from __future__ import annotations

import os
import sys
import time

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


def main() -> None:
    """Prints the measures."""
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


if __name__ == "__main__":
    main()
