"""The verbs of the command as functions, made from the command's own table of options.

``verbs.pyi`` has their signatures for editors and type checkers; ``tools/make_stubs.py`` writes it from the same table.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List

from coplace import _core
from coplace._answers import Answer
from coplace._asking import Question


class Verb:
    """A verb. Calling it answers a question; ``question`` makes one for :func:`coplace.batch`."""

    def __init__(self, table: Dict[str, Any]) -> None:
        self.__name__ = table["name"]
        self.__qualname__ = self.__name__
        self.__doc__ = _doc(table)
        self.options: List[Dict[str, Any]] = table["options"]

    def __call__(self, *given: Any, **named: Any) -> Answer:
        return Question(self.__name__, *given, **named).ask()

    def question(self, *given: Any, **named: Any) -> Question:
        """The question of these arguments, which is not asked yet."""
        return Question(self.__name__, *given, **named)

    def __repr__(self) -> str:
        return f"<verb {self.__name__}>"


def _doc(table: Dict[str, Any]) -> str:
    lines = [f"{table['about']}.", "", "Arguments:"]
    lines += [f"    {option['name']}: {option['help']}" for option in table["options"]]
    return "\n".join(lines)


_TABLE: List[Dict[str, Any]] = json.loads(_core.options())
globals().update({table["name"]: Verb(table) for table in _TABLE})
__all__ = [table["name"] for table in _TABLE]
