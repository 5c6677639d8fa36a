"""Figures, as the command draws them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Optional, Union

from coplace._errors import CoplaceError

if TYPE_CHECKING:
    from coplace._answers import Answer

#: The option that lets a verb draw into a directory.
_DRAWS = {
    "plan": "memory",
    "evaluate": "memory",
    "techniques": "out",
    "validate": "plot",
    "pareto": "out",
    "serve": "out",
}


class Figure:
    """A figure in SVG. A notebook shows it."""

    def __init__(self, name: str, svg: str) -> None:
        self.name = name
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<figure {self.name}: {len(self.svg)} bytes of SVG>"

    def save(self, path: Union[str, Path]) -> Path:
        """Writes the SVG."""
        path = Path(path)
        path.write_text(self.svg, encoding="utf-8")
        return path


def draw(answer: Answer, name: Optional[str]) -> Figure:
    """The figure of an answer. A plan is asked for again, with the option that draws."""
    if answer.directory is not None:
        return _read(answer.directory, name or "pareto")
    option = _DRAWS.get(answer.question.verb)
    if option is None:
        from coplace._answers import fault

        verbs = ", ".join([*_DRAWS, "search"])
        limit, cure = "draws no figure", f"these do: {verbs}"
        raise CoplaceError(fault(f"{answer.question.verb}: {limit}; {cure}", limit=limit, cure=cure))
    with tempfile.TemporaryDirectory(prefix="coplace-") as directory:
        answer.question.with_values(**{option: directory}).ask()
        return _read(Path(directory), name)


def _read(directory: Path, name: Optional[str]) -> Figure:
    found = sorted(directory.glob("*.svg"))
    named = [file for file in found if name is None or file.stem == name]
    if not named:
        from coplace._answers import fault

        known = ", ".join(file.stem for file in found) or "none"
        message = f"{name or 'figure'}: was not drawn; there is {known}"
        raise CoplaceError(fault(message, key="name", value=name, limit="was not drawn", cure=f"there is {known}"))
    return Figure(named[0].stem, named[0].read_text(encoding="utf-8"))
