"""Figures, as the command draws them."""

from __future__ import annotations

import html
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Optional, Tuple, Union

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

#: The charts of a report by the figure's name: the chart's name in the page, and the key of the page's data behind it.
_CHARTS: Dict[str, Tuple[str, str]] = {
    "pareto": ("pareto", "designs"),
    "tornado": ("tornado", "decision"),
    "timeline": ("timeline", "timeline"),
    "memory": ("memory-time", "timeline"),
    "roofline": ("roofline", "roofline"),
    "stages": ("stages", "stages_over_a_step"),
    "time": ("time", "shares"),
    "decisions": ("decisions", "decisions"),
    "comparison": ("comparison", "comparison"),
    "dies": ("dies", "dies"),
}
#: Pixels of an interactive figure in a notebook: of one chart, and of the whole page.
_CHART_HEIGHT, _PAGE_HEIGHT = 480, 800


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


class InteractiveFigure:
    """A chart of a report, or the whole report, as a page without network. A notebook shows it; the page has 1.2 MB."""

    def __init__(self, name: Optional[str], page: str) -> None:
        self.name = name
        self.html = page

    def _repr_html_(self) -> str:
        height = _PAGE_HEIGHT if self.name is None else _CHART_HEIGHT
        page = html.escape(self.html)
        return f'<iframe srcdoc="{page}" style="width: 100%; height: {height}px; border: 0"></iframe>'

    def __repr__(self) -> str:
        return f"<interactive figure {self.name or 'report'}: {len(self.html)} letters of HTML>"

    def save(self, path: Union[str, Path]) -> Path:
        """Writes the page."""
        path = Path(path)
        path.write_text(self.html, encoding="utf-8")
        return path


def draw_interactive(answer: Answer, name: Optional[str]) -> InteractiveFigure:
    """The charts of the answer's report; with a name that one alone."""
    from coplace._asking import Question

    if name is not None and name not in _CHARTS:
        raise _refuse(name, "is no chart of a report", f"these are: {', '.join(_CHARTS)}")
    with tempfile.TemporaryDirectory(prefix="coplace-") as directory:
        file = Path(directory) / "report.html"
        Question("report", answer, out=file).ask()
        page = file.read_text(encoding="utf-8")
    if name is None:
        return InteractiveFigure(None, page)
    chart, key = _CHARTS[name]
    data = json.loads(page.split('id="data">', 1)[1].split("</script>", 1)[0])
    if not data[key]:
        there = ", ".join(known for known, (_, key) in _CHARTS.items() if data[key]) or "none"
        raise _refuse(name, f"is not in the report of this {answer.question.verb}", f"there is {there}")
    others = f"main > section:not(:has(#chart-{chart})), main > section > :not(:has(#chart-{chart})), header, footer"
    return InteractiveFigure(name, page.replace("</style>", f"{others} {{ display: none }}</style>", 1))


def _refuse(name: Optional[str], limit: str, cure: str) -> CoplaceError:
    from coplace._answers import fault

    return CoplaceError(fault(f"{name or 'figure'}: {limit}; {cure}", key="name", value=name, limit=limit, cure=cure))


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
        known = ", ".join(file.stem for file in found) or "none"
        raise _refuse(name, "was not drawn", f"there is {known}; interactive=True draws more")
    return Figure(named[0].stem, named[0].read_text(encoding="utf-8"))
