"""Writes `package/coplace/verbs.pyi` from the command's table of options.

python tools/make_stubs.py            # writes it
python tools/make_stubs.py --check    # fails if it is not up to date
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any, Dict, List

from coplace import _core

STUBS = Path(__file__).resolve().parent.parent / "package" / "coplace" / "verbs.pyi"
COLUMNS = 120

#: The values that stand for files, by the names of arguments.
VALUES = {"model": "Model", "models": "Model", "chip": "Chip", "fabric": "Fabric", "stack": "Stack", "study": "Study"}
#: Arguments that take answers and runs.
OF_ANSWERS = {"compare", "report", "explain", "pareto", "merge"}
TYPES = {"int": "int", "float": "float", "path": "_Path", "scalar": "_Scalar", "text": "_Scalar"}


def type_of(verb: str, option: Dict[str, Any]) -> str:
    """The type of an argument's value."""
    if option["kind"] == "flag":
        return "bool"
    if option["choices"]:
        one = f"Literal[{', '.join(json.dumps(choice) for choice in option['choices'])}]"
    else:
        one = TYPES[option["kind"]]
        own = VALUES.get(option["name"])
        if own is not None:
            one = f"_Path | {own}"
        if option["positional"] and verb in OF_ANSWERS:
            one = f"{one} | Answer"
    return f"{one} | Sequence[{one}]" if option["multiple"] else one


def parameters(verb: Dict[str, Any]) -> List[str]:
    """The parameters of a verb in order: by position, then by name."""
    first = [option for option in verb["options"] if option["positional"]]
    named = [option for option in verb["options"] if not option["positional"]]
    found = []
    for option in first:
        kind = type_of(verb["name"], option)
        if option["multiple"]:
            found.append(f"*{option['name']}: {kind.split(' | Sequence[')[0]}")
        elif option["required"]:
            found.append(f"{option['name']}: {kind}")
        else:
            found.append(f"{option['name']}: {kind} | None = None")
    if named and not any(parameter.startswith("*") for parameter in found):
        found.append("*")
    for option in sorted(named, key=lambda option: not option["required"]):
        kind = type_of(verb["name"], option)
        found.append(f"{option['name']}: {kind}" if option["required"] else f"{option['name']}: {kind} | None = None")
    return found


def stub_of(verb: Dict[str, Any]) -> str:
    """The class of a verb, and its instance."""
    name = verb["name"]
    listed = "".join(f"        {parameter},\n" for parameter in ["self", *parameters(verb)])
    doc = textwrap.fill(verb["about"] + ".", COLUMNS - 11, subsequent_indent="        ")
    return (
        f"class _{name.capitalize()}Verb:\n"
        f"    options: _List[Dict[str, Any]]\n"
        f'    def __call__(\n{listed}    ) -> Answer:\n        """{doc}"""\n'
        f"    def question(\n{listed}    ) -> Question: ...\n\n"
        f"{name}: _{name.capitalize()}Verb\n"
    )


def stubs() -> str:
    """The whole file."""
    verbs: List[Dict[str, Any]] = json.loads(_core.options())
    head = (
        '"""The signatures of the verbs. `tools/make_stubs.py` writes this file from the command\'s table of options."""\n\n'
        "import os\n"
        "from typing import Any, Dict, List as _List, Literal, Sequence, Union\n\n"
        "from coplace._answers import Answer\n"
        "from coplace._asking import Question\n"
        "from coplace._inputs import Chip, Fabric, Model, Stack, Study\n\n"
        "_Path = Union[str, os.PathLike[str]]\n"
        "_Scalar = Union[str, int, float]\n\n"
        f"__all__ = {json.dumps([verb['name'] for verb in verbs])}\n\n"
    )
    return head + "\n".join(stub_of(verb) for verb in verbs)


def main() -> int:
    """Writes or checks the file."""
    text = stubs()
    if "--check" not in sys.argv:
        STUBS.write_text(text, encoding="utf-8")
        return 0
    if STUBS.read_text(encoding="utf-8") != text:
        print(f"{STUBS}: is not up to date; run python tools/make_stubs.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
