"""Answers: objects with attributes, text, JSON and tables."""

from __future__ import annotations

import difflib
import html
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Literal, Optional, Tuple, Union, overload

from coplace import _core

if TYPE_CHECKING:
    import pandas
    import polars

    from coplace._asking import Question
    from coplace._figures import Figure, InteractiveFigure

#: The texts of an object that can be shown in a line.
_SHOWN = 4


class Record:
    """An object of an answer. Its keys are attributes; the unit is in the key."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Dict[str, Any]) -> None:
        self._keys = keys

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return wrap(self._keys[name])
        except KeyError:
            near = difflib.get_close_matches(name, self._keys, n=1)
            hint = f"did you mean {near[0]}? It has" if near else "it has"
            raise AttributeError(f"{name}: is no key here; {hint} {', '.join(self._keys)}") from None

    def __getitem__(self, name: str) -> Any:
        return wrap(self._keys[name])

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __dir__(self) -> List[str]:
        return [*super().__dir__(), *self._keys]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self._keys == other._keys

    def __repr__(self) -> str:
        shown = [f"{key}={value!r}" for key, value in self._keys.items() if not isinstance(value, (dict, list))]
        more = len(self._keys) - len(shown[:_SHOWN])
        return f"Record({', '.join(shown[:_SHOWN])}{f', and {more} more' if more else ''})"

    def to_dict(self) -> Dict[str, Any]:
        """The object as a dictionary. Changes of it do not change the answer."""
        copy: Dict[str, Any] = json.loads(json.dumps(self._keys))
        return copy


def wrap(value: Any) -> Any:
    """A value of JSON with attributes for keys."""
    if isinstance(value, dict):
        return Record(value)
    if isinstance(value, list):
        return [wrap(entry) for entry in value]
    return value


class Table:
    """A table in Arrow's format. pandas, Polars, DuckDB and PyArrow read it without a copy of their own."""

    def __init__(self, columns: _core.Table) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Table({len(self)} rows: {', '.join(self.column_names)})"

    @property
    def column_names(self) -> List[str]:
        """The names of the columns."""
        return self._columns.column_names

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._columns.__arrow_c_stream__(requested_schema)

    def to_pandas(self, *, arrow: bool = False) -> pandas.DataFrame:
        """The table as a data frame of pandas. It needs ``pip install coplace[pandas]``.

        Columns are of NumPy, copied from Arrow's. With ``arrow`` they are Arrow's own (``pandas.ArrowDtype``): nothing
        is copied.
        """
        import pandas
        import pyarrow

        columns = pandas.ArrowDtype if arrow else None
        frame: pandas.DataFrame = pyarrow.table(self).to_pandas(types_mapper=columns)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """The table as a data frame of Polars. It needs ``pip install coplace[polars]``."""
        import polars

        return polars.DataFrame(self)


class Answer(Record):
    """The answer to a question.

    The keys of the JSON answer are attributes (``docs/json.md`` describes each). ``str(answer)`` is the text that the
    command prints. An answer that is a list (of :func:`coplace.list`, :func:`coplace.place`) has entries instead.
    """

    __slots__ = ("_output", "_question", "_value")

    def __init__(self, question: Question, output: _core.Output) -> None:
        self._question = question
        self._output = output
        self._value: Any = None

    # The JSON is read when a key is first needed.
    @property
    def value(self) -> Any:
        """The JSON answer as dictionaries and lists."""
        if self._value is None and self._output.json:
            self._value = _read(self._output.json)
        return self._value

    def __getattr__(self, name: str) -> Any:
        if name == "_keys":
            value = self.value
            if not isinstance(value, dict):
                raise AttributeError("this answer has no keys" if value is None else "this answer is a list: index it")
            return value
        return super().__getattr__(name)

    def __getitem__(self, at: Any) -> Any:
        return wrap(self.value[at])

    def __iter__(self) -> Iterator[Any]:
        value = self.value
        return iter(value) if isinstance(value, dict) else (wrap(entry) for entry in value or [])

    def __len__(self) -> int:
        return len(self.value or [])

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and self.value == other.value

    def __dir__(self) -> List[str]:
        return [*object.__dir__(self), *(self.value if isinstance(self.value, dict) else [])]

    def __str__(self) -> str:
        return self._output.text

    def __repr__(self) -> str:
        return f"<answer of {self._question.verb}: {self.text.strip().splitlines()[0] if self.text.strip() else ''}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.text)}</pre>"

    @property
    def question(self) -> Question:
        """The question."""
        return self._question

    @property
    def text(self) -> str:
        """The answer as the command prints it."""
        return self._output.text

    @property
    def warnings(self) -> List[str]:
        """The warnings that the command prints to standard error."""
        return self._output.warnings

    @property
    def directory(self) -> Optional[Path]:
        """The run directory of a search, a sweep or ``serve(..., out=...)``."""
        return Path(self._output.directory) if self._output.directory is not None else None

    def json(self) -> str:
        """The answer as the command prints it under ``--format json``."""
        return self._output.json

    def to_dict(self) -> Dict[str, Any]:
        """The JSON answer as a dictionary of its own."""
        value = _read(self._output.json) if self._output.json else {}
        return value if isinstance(value, dict) else {"entries": value}

    def table(self, path: Optional[str] = None) -> Table:
        """The list under ``path`` (keys joined by dots) as a table with a row per entry.

        Without a path it is the answer's first list of objects, as ``plans`` of a plan; without such a list the answer
        is one row. Objects in objects become columns ``outer.inner``; lists of objects are left out.
        """
        if path is None:
            path = self._list_of_objects()
        return table([self], path)

    def _list_of_objects(self) -> Optional[str]:
        if isinstance(self.value, dict):
            for key, value in self.value.items():
                if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
                    return str(key)
        return None

    def designs(self) -> Table:
        """The designs of a search or a sweep."""
        from coplace._errors import CoplaceError

        if self.directory is None or self._question.verb == "serve":
            limit, cure = "has no designs of chips", "designs are of search and sweep; serve has choices"
            raise CoplaceError(fault(f"{self._question.verb}: {limit}; {cure}", limit=limit, cure=cure))
        return designs_of_run(self.directory)

    def to_pandas(self, path: Optional[str] = None, *, arrow: bool = False) -> pandas.DataFrame:
        """The same as ``table(path).to_pandas()``."""
        return self.table(path).to_pandas(arrow=arrow)

    def to_polars(self, path: Optional[str] = None) -> polars.DataFrame:
        """The same as ``table(path).to_polars()``."""
        return self.table(path).to_polars()

    @overload
    def plot(self, name: Optional[str] = None, *, interactive: Literal[False] = False) -> Figure: ...

    @overload
    def plot(self, name: Optional[str] = None, *, interactive: Literal[True]) -> InteractiveFigure: ...

    def plot(self, name: Optional[str] = None, *, interactive: bool = False) -> Union[Figure, InteractiveFigure]:
        """The figure that the command draws: a plan's memory, a search's front (``pareto``) or ``tornado``, or the
        front of deployments.

        With ``interactive`` it is a chart of the report to zoom and point at: ``timeline``, ``memory``, ``roofline``,
        ``stages``, ``time``, ``decisions`` of a plan, an evaluation or a search; ``pareto``, ``tornado``,
        ``comparison``, ``dies`` of a search. Without a name it is the whole report.
        """
        from coplace._figures import draw, draw_interactive

        return draw_interactive(self, name) if interactive else draw(self, name)

    def save(self, path: Union[str, Path]) -> Path:
        """Writes the JSON answer, which ``compare``, ``report`` and ``chip=`` take."""
        path = Path(path)
        path.write_text(self.json(), encoding="utf-8")
        return path


def designs_of_run(directory: Path) -> Table:
    """The designs in a search's or a sweep's directory."""
    sweep = directory / "sweep.parquet"
    of_search = not sweep.is_file()
    return Table(_core.read_designs(str(directory / "designs.parquet" if of_search else sweep), of_search))


def _read(text: str) -> Any:
    """One JSON value, or a list of those of several lines."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]


def fault(message: str, **parts: Optional[str]) -> _core.Fault:
    """A fault of a call that was never made, with the parts that it has."""
    return _core.Fault(message, **parts)


def table(answers: Iterable[Any], path: Optional[str] = None) -> Table:
    """A table of many answers: a row per answer, or per entry of the list under ``path`` in each.

    Nothing is left out. An exception among the answers, as :func:`coplace.batch` returns them, and an answer without
    anything under ``path``, as that of a job that does not fit, have a row whose last column, ``error``, has the reason.
    ``frame[frame["error"].isna()]`` leaves them out; without such rows there is no such column.
    """
    from coplace._errors import CoplaceError

    lines: List[Tuple[str, bool]] = []
    for at, answer in enumerate(answers):
        if isinstance(answer, CoplaceError):
            lines.append((str(answer), True))
        elif answer is None:
            lines.append(("was not answered: the batch was interrupted", True))
        elif isinstance(answer, Answer):
            text = answer.json()
            value = [text] if text.startswith(("{\n", "[\n")) else text.splitlines()
            lines.extend((line, False) for line in value)
        else:
            limit, cure = "is no answer", "give what a verb or coplace.batch returned"
            message = f"answers[{at}] = {answer!r}: {limit}; {cure}"
            raise CoplaceError(fault(message, key=f"answers[{at}]", value=repr(answer), limit=limit, cure=cure))
    try:
        return Table(_core.Table.of_answers(lines, path))
    except ValueError as why:
        raise CoplaceError(fault(str(why), key="path", value=path, limit="is no key of the answer")) from None
