"""The native part of the package."""

from typing import Callable, Dict, List, Optional, Sequence, Tuple

__version__: str
VERBS_WITH_FILES: List[str]

class Fault:
    exit_code: int
    message: str
    file: Optional[str]
    key: Optional[str]
    value: Optional[str]
    limit: Optional[str]
    cure: Optional[str]
    def __init__(
        self,
        message: str,
        *,
        key: Optional[str] = None,
        value: Optional[str] = None,
        limit: Optional[str] = None,
        cure: Optional[str] = None,
    ) -> None: ...

class Output:
    json: str
    text: str
    warnings: List[str]
    directory: Optional[str]
    fault: Optional[Fault]

class Input:
    word: str
    name: str
    carried_text: Optional[str]
    @staticmethod
    def load(kind: str, word: str) -> Input | Fault: ...
    @staticmethod
    def from_text(kind: str, name: str, text: str) -> Input | Fault: ...
    def text(self) -> str | Fault: ...
    def facts(self) -> str | Fault: ...
    def with_value(self, key: str, value: str, chip: Optional[str] = None) -> Input | Fault: ...

class Table:
    column_names: List[str]
    @staticmethod
    def of_answers(answers: Sequence[Tuple[str, bool]], path: Optional[str] = None) -> Table: ...
    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...

def run_program(words: Sequence[str]) -> int: ...
def options() -> str: ...
def read_designs(file: str, sealed: bool) -> Table: ...
def ask(
    verb: str,
    given: Tuple[object, ...],
    named: Dict[str, object],
    texts: Dict[str, str],
    told: Optional[Callable[[str], None]] = None,
) -> Output: ...
def ask_all(
    questions: Sequence[Tuple[str, Tuple[object, ...], Dict[str, object], Dict[str, str]]],
    told: Optional[Callable[[int], None]] = None,
    threads: Optional[int] = None,
) -> Tuple[List[Optional[Output]], bool]: ...
def time_loop(
    verb: str, given: Tuple[object, ...], named: Dict[str, object], count: int, threads: int
) -> float: ...
