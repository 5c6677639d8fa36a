"""An example that type checkers read and a test runs."""

from __future__ import annotations

import coplace


def steps_by_length(model: str, lengths: list[int]) -> dict[int, float]:
    """Seconds of a step by tokens per sequence, of those that fit."""
    chip = coplace.Chip("h100").replace({"memory.hbm.capacity_gib": 96})
    asked = [
        coplace.evaluate.question(
            model, chip=chip, fabric="nvlink4_node", devices=8, global_batch=16, sequence_length=length, tensor=[1, 2]
        )
        for length in lengths
    ]
    found: dict[int, float] = {}
    for length, answer in zip(lengths, coplace.batch(asked)):
        if isinstance(answer, coplace.CoplaceError):
            print(answer.key, answer.cure)
        elif answer.feasible:
            found[length] = answer.result.time.step_s
    return found


if __name__ == "__main__":
    print(steps_by_length("opt-350m", [512, 1024, 2048]))
