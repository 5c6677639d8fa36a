"""Models, chips, fabrics, stacks and studies as values that verbs take."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar, Dict, List, Mapping, Optional, Type, TypeVar, Union

from coplace import _core
from coplace._answers import Record, wrap
from coplace._errors import CoplaceError

_Own = TypeVar("_Own", bound="Input")


def _or_raise(result: Any) -> Any:
    if isinstance(result, _core.Fault):
        raise CoplaceError(result)
    return result


class Input(Record):
    """A file of the command as a value: built in, on the disk, or changed.

    The columns of ``coplace list`` and the keys of the file are attributes, with the unit in the name.
    """

    __slots__ = ("_input",)
    _kind: ClassVar[str] = ""

    def __init__(self, source: Union[str, os.PathLike[str], Mapping[str, Any]], *, name: Optional[str] = None) -> None:
        """A built-in name, the path of a file, or the keys of a file."""
        if isinstance(source, Mapping):
            text = json.dumps(dict(source)) if self._kind == "model" else _toml_text(dict(source))
            own = name or str(source.get("name", self._kind))
            self._input: _core.Input = _or_raise(_core.Input.from_text(self._kind, own, text))
        else:
            self._input = _or_raise(_core.Input.load(self._kind, os.fspath(source)))

    @classmethod
    def _of(cls: Type[_Own], own: _core.Input) -> _Own:
        value = cls.__new__(cls)
        value._input = own
        return value

    @classmethod
    def from_text(cls: Type[_Own], text: str, *, name: str) -> _Own:
        """A value from the text of a file."""
        return cls._of(_or_raise(_core.Input.from_text(cls._kind, name, text)))

    def __getattr__(self, name: str) -> Any:
        if name == "_keys":
            keys: Dict[str, Any] = json.loads(_or_raise(self._input.facts()))
            self._keys = keys
            return keys
        return super().__getattr__(name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Input) and self._kind == other._kind and self.text == other.text

    @property
    def name(self) -> str:
        """The name."""
        return self._input.name

    @property
    def text(self) -> str:
        """The text of its file."""
        text: str = _or_raise(self._input.text())
        return text

    def replace(self: _Own, changes: Optional[Mapping[str, Any]] = None, **named: Any) -> _Own:
        """The same with keys of its file changed.

        A key may be the end of its full key: ``hbm_stacks`` for ``area.hbm_stacks``. A key with dots is given in a
        dictionary: ``replace({"memory.hbm.capacity_gib": 141})``. Other keys stay as they are.
        """
        own = self._input
        for key, value in {**(changes or {}), **named}.items():
            own = _or_raise(own.with_value(key, json.dumps(value)))
        return self._of(own)

    def save(self, path: Union[str, Path]) -> Path:
        """Writes its file, which the command takes."""
        path = Path(path)
        path.write_text(self.text, encoding="utf-8")
        return path


class Model(Input):
    """A model: built in, or a Hugging Face ``config.json``."""

    __slots__ = ()
    _kind = "model"


class Chip(Input):
    """A chip: built in, or a chip's file."""

    __slots__ = ()
    _kind = "chip"


class Fabric(Input):
    """A network between devices: built in, or a fabric's file."""

    __slots__ = ()
    _kind = "fabric"


class Stack(Input):
    """A software stack: built in, or a stack's file."""

    __slots__ = ()
    _kind = "stack"


class Study(Input):
    """A study: built in, or a study's file."""

    __slots__ = ()
    _kind = "study"


def _toml_text(keys: Dict[str, Any]) -> str:
    """The keys of a file as TOML. Inline tables do, because only a program reads it."""
    return "".join(f"{json.dumps(key)} = {_toml_value(value)}\n" for key, value in keys.items() if value is not None)


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = [f"{json.dumps(key)} = {_toml_value(entry)}" for key, entry in value.items() if entry is not None]
        return "{ " + ", ".join(inner) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(entry) for entry in value) + "]"
    return json.dumps(value)


__all__: List[str] = ["Chip", "Fabric", "Input", "Model", "Stack", "Study", "wrap"]
