"""Faults as exceptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from coplace._answers import Answer
    from coplace._core import Fault


class CoplaceError(Exception):
    """A question without a complete answer. The message names what is wrong, the limit and the cure.

    ``file``, ``key``, ``value``, ``limit`` and ``cure`` are its parts, as far as it has them. ``key`` is an argument, a
    key of a file, or the kind of an unknown name (``chip``). ``exit_code`` is the
    program's: 2 for wrong input, 3 for an incomplete answer, 1 for anything else. ``answer`` is the part of the answer
    that there is.
    """

    file: Optional[str]
    key: Optional[str]
    value: Optional[str]
    limit: Optional[str]
    cure: Optional[str]
    exit_code: int
    answer: Optional[Answer]

    def __init__(self, fault: Fault, answer: Optional[Answer] = None) -> None:
        super().__init__(fault.message)
        self.file = fault.file
        self.key = fault.key
        self.value = fault.value
        self.limit = fault.limit
        self.cure = fault.cure
        self.exit_code = fault.exit_code
        self.answer = answer


class CoplaceWarning(UserWarning):
    """A warning that the program prints to standard error."""
