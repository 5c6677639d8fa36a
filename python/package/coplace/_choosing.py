"""The best design by a function of the user's own."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from coplace._answers import Answer, designs_of_run, fault
from coplace._errors import CoplaceError
from coplace._inputs import Study

if TYPE_CHECKING:
    import pandas

#: Designs that the functions see at a time.
BATCH = 65_536
#: Columns that a plan's throughput decides.
_SPEED = ("throughput_sequences_per_s", "throughput_tokens_per_s", "step_time_s")
#: The columns of PHAZE's spaces by the key of a study; those of other spaces have the dimension's name.
_PHAZE = {
    "tensor_cores": "tensor_cores",
    "vector_cores": "vector_cores",
    "array_widths": "array_width",
    "array_depths": "array_depth",
    "global_buffer_mib": "global_buffer_mib",
    "hbm_gib": "hbm_gib",
}


class Choice:
    """The best design by a function, and what is known of the others.

    ``best`` is its row, ``value`` what the function gave it, ``frame`` every design that was judged, best first.
    """

    __slots__ = ("_open", "_rejected", "frame", "monotone", "swept")

    def __init__(self, frame: pandas.DataFrame, rejected: int, undecided: int, monotone: bool, swept: bool) -> None:
        self.frame = frame
        self.monotone = monotone
        self.swept = swept
        self._rejected = rejected
        self._open = undecided

    @property
    def best(self) -> Dict[str, Any]:
        """The best design's row."""
        return {str(key): value for key, value in self.frame.iloc[0].items()}

    @property
    def value(self) -> float:
        """The best design's value."""
        return float(self.frame["objective"].iloc[0])

    @property
    def proven(self) -> bool:
        """True if no design of the space has a higher value."""
        return self.monotone and self._open == 0

    @property
    def certificate(self) -> str:
        """What the answer is best of."""
        judged = f"best of {len(self.frame)} designs, each under its fastest plan"
        if not self.monotone:
            left = "" if self._open == 0 else f"; {self._open} more that the search left out were not judged"
            return f"{judged}{left}; no certificate: a slower plan, or a design left out, may be better by this function"
        rejected = f", {self._rejected} more are worse at the bound on their step" if self._rejected else ""
        if self._open:
            return f"{judged}{rejected}; {self._open} designs may be better, which the search rejected: give a sweep instead"
        return f"proven, if the function is monotone: {judged}{rejected}"

    def study(self, name: str) -> Study:
        """The built-in study ``name`` cut to the best design: a search of it plans for that design alone."""
        study, values = Study(name), self._values()
        table = "space.dimensions" if values else "space"
        values = values or {key: self.best[column] for key, column in _PHAZE.items()}
        return study.replace({f"{table}.{key}": [_plain(value)] for key, value in values.items()})

    def _values(self) -> Dict[str, Any]:
        """The values of a space's dimensions: columns of a sweep, one text in a search; PHAZE's spaces have none."""
        if self.swept:
            columns = list(self.frame.columns)
            own = columns[columns.index("reason") + 1 : columns.index("tensor_cores")]
            return {str(column).replace("dimension.", ""): self.best[column] for column in own}
        text = self.best.get("dimensions")
        return dict(entry.rsplit(" ", 1) for entry in text.split(", ")) if isinstance(text, str) else {}

    def __repr__(self) -> str:
        return f"Choice(value={self.value:.6g}, design={self.best['index']}, {self.certificate!r})"

    def _repr_html_(self) -> str:
        shown = self.frame.head(10).dropna(axis="columns", how="all")
        return f"<p>{self.certificate}</p>{shown.to_html(index=False)}"


def choose(
    run: Union[Answer, str, Path],
    objective: Callable[[pandas.DataFrame], Any],
    *,
    limits: Sequence[Callable[[pandas.DataFrame], Any]] = (),
    dimensions: Optional[Mapping[str, Sequence[Any]]] = None,
    monotone: bool = False,
) -> Choice:
    """The design of a search or a sweep for which a function is highest.

    ``objective`` gets a data frame with a row per design (the columns of ``designs.parquet`` or ``sweep.parquet``) and
    returns a number per row; a missing number leaves the design out. ``limits`` are functions that return true for the
    rows that are allowed. ``dimensions`` adds columns of your own: every design is judged with every combination of
    their values. Needs pandas.

    This is slower than an objective of a study, and each design has its fastest plan. ``monotone=True`` declares that,
    all other columns equal, a faster step never makes the function lower nor a limit false. Then the fastest plan is
    the best one, designs that a search rejected by a bound are judged at the bound, and the answer is proven where none
    of them is higher. Without it there is no certificate.
    """
    for name, function in [("objective", objective), *(("limits", limit) for limit in _listed("limits", limits))]:
        if not callable(function):
            raise _refusal(name, repr(function), "is no function", "give a function of a data frame")
    if not isinstance(monotone, bool):
        raise _refusal("monotone", repr(monotone), "must be True or False", "say whether the function is monotone")
    values = _combinations(dimensions or {})
    directory = run.directory if isinstance(run, Answer) else Path(run) if isinstance(run, (str, Path)) else None
    if directory is None:
        raise _refusal("run", repr(run), "has no run directory", "give a search or a sweep, or its directory")
    frame, swept = _designs(directory)
    decided = frame["step_time_s"].notna()
    bound, speed = frame["bound_sequences_per_s"], frame["throughput_sequences_per_s"]
    # A design with a step may still have a faster plan, where its schedule is not proven.
    pruned = bound.notna() & (~decided | (bound > speed * (1 + 1e-9)))
    judged = _judge(frame[decided], objective, limits, values)
    if judged.empty:
        limit = "gives no number for any design within the limits"
        raise _refusal("objective", getattr(objective, "__name__", "function"), limit, "loosen the limits, or mend it")
    open_count, rejected = int(pruned.sum()), 0
    if monotone and open_count:
        optimistic = _at_bounds(frame[pruned], frame[decided])
        hopes = _judge(optimistic, objective, limits, values, missing=float("inf"))
        better = hopes[hopes["objective"] > judged["objective"].max()]["index"].nunique()
        open_count, rejected = int(better), open_count - int(better)
    open_count += _unseen(directory, int((decided | pruned).sum()))
    judged = judged.sort_values("objective", ascending=False, kind="stable").reset_index(drop=True)
    return Choice(judged, rejected, open_count, monotone, swept)


#: The most combinations of values of dimensions.
MOST_COMBINATIONS = 10_000


def _listed(name: str, values: Any) -> List[Any]:
    if isinstance(values, (list, tuple)):
        return list(values)
    raise _refusal(name, repr(values)[:60], "must be a list", "give a list, also of one")


def _combinations(dimensions: Any) -> List[Dict[str, Any]]:
    """Every combination of the dimensions' values; one empty one without dimensions."""
    if not isinstance(dimensions, Mapping):
        raise _refusal("dimensions", repr(dimensions)[:60], "must be a dictionary", "give lists of values by name")
    count = 1
    for name, values in dimensions.items():
        if not hasattr(values, "__len__") or isinstance(values, str) or len(values) == 0:
            raise _refusal(f"dimensions.{name}", repr(values)[:60], "must be a list of values", "give one at least")
        count *= len(values)
    if count > MOST_COMBINATIONS:
        limit = f"are more than {MOST_COMBINATIONS:,} combinations"
        raise _refusal("dimensions", f"{count:,}", limit, "give fewer values")
    return [dict(zip(dimensions, values)) for values in product(*dimensions.values())]


def _designs(directory: Path) -> Any:
    """The designs of a run, and whether it is a sweep."""
    try:
        return designs_of_run(directory).to_pandas(), (directory / "sweep.parquet").is_file()
    except ValueError as why:
        limit, cure = "holds no designs", "give a run that coplace.search or coplace.sweep finished"
        raise CoplaceError(fault(str(why), key="run", value=str(directory), limit=limit, cure=cure)) from None


def _unseen(directory: Path, rows: int) -> int:
    """Designs of the space without a row: a search rejects whole groups of large spaces, or stops before its end."""
    certificate = json.loads((directory / "record.json").read_text(encoding="utf-8"))["certificate"]
    out = sum(certificate[key] for key in ("over_area", "over_power", "over_cost", "no_chip", "infeasible"))
    return max(0, int(certificate["designs"]) - int(out) - rows)


def _at_bounds(pruned: pandas.DataFrame, decided: pandas.DataFrame) -> pandas.DataFrame:
    """Rejected designs with the throughput of their bound. A sequence has the same tokens, and a step the same
    sequences, in all of a run."""
    first = decided.iloc[0]
    bound = pruned["bound_sequences_per_s"]
    tokens = first["throughput_tokens_per_s"] / first["throughput_sequences_per_s"]
    sequences = first["throughput_sequences_per_s"] * first["step_time_s"]
    columns = dict(zip(_SPEED, (bound, bound * tokens, sequences / bound)))
    return pruned.assign(**columns)


def _judge(
    frame: pandas.DataFrame,
    objective: Callable[[pandas.DataFrame], Any],
    limits: Sequence[Callable[[pandas.DataFrame], Any]],
    combinations: Sequence[Mapping[str, Any]],
    missing: Optional[float] = None,
) -> pandas.DataFrame:
    """The designs within the limits with their objective; ``missing`` stands in for a number that is not there."""
    import pandas

    for name in combinations[0]:
        if name in frame.columns or name == "objective":
            raise _refusal("dimensions", name, "is a column of the designs", "give another name")
    parts: List[pandas.DataFrame] = []
    for values in combinations:
        own = frame.assign(**values)
        for start in range(0, len(own), BATCH):
            part = own.iloc[start : start + BATCH]
            # The functions get copies: what they write into them changes no answer.
            for limit in limits:
                part = part[_truths(limit(part.copy()), part)]
            numbers = _numbers(objective(part.copy()), part)
            part = part.assign(objective=numbers if missing is None else numbers.fillna(missing))
            parts.append(part[part["objective"].notna()])
    kept = [part for part in parts if len(part)]
    return pandas.concat(kept, ignore_index=True) if kept else frame.iloc[:0].assign(objective=[])


def _truths(given: Any, part: pandas.DataFrame) -> Any:
    import pandas

    truths = pandas.Series(given, index=part.index) if not hasattr(given, "__len__") or len(given) == len(part) else None
    if truths is None or truths.dtype != bool:
        raise _refusal("limits", repr(given)[:60], "must be true or false for every row", "compare a column with a number")
    return truths


def _numbers(given: Any, part: pandas.DataFrame) -> Any:
    import pandas

    try:
        if hasattr(given, "__len__") and len(given) != len(part):
            raise ValueError(f"{len(given)} numbers for {len(part)} designs")
        numbers = pandas.Series(given, index=part.index)
        if numbers.dtype.kind == "c":
            raise ValueError("complex numbers")
        return numbers.astype(float)
    except (TypeError, ValueError) as why:
        raise _refusal("objective", str(why), "must be one number per row", "return a column of the frame's length") from why


def _plain(value: Any) -> Any:
    """A cell as a study's file has it: whole numbers without a point."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return value
    number = float(value) if not isinstance(value, bool) else value
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _refusal(key: str, value: str, limit: str, cure: str) -> CoplaceError:
    return CoplaceError(fault(f"{key} = {value}: {limit}; {cure}", key=key, value=value, limit=limit, cure=cure))
