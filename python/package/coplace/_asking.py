"""Questions: one, or many side by side."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Tuple, Union

from coplace import _core
from coplace._answers import Answer
from coplace._errors import CoplaceError, CoplaceWarning
from coplace._inputs import Input

#: Seconds without progress at the start.
_QUIET = 2.0
#: Seconds between two lines of progress.
_EVERY = 0.5


class Question:
    """A verb with its arguments. ``ask`` answers it; :func:`batch` answers many side by side."""

    __slots__ = ("given", "named", "verb")

    def __init__(self, verb: str, *given: Any, **named: Any) -> None:
        self.verb = verb
        self.given = given
        self.named = named

    def __repr__(self) -> str:
        words = [repr(value) for value in self.given] + [f"{key}={value!r}" for key, value in self.named.items()]
        return f"{self.verb}({', '.join(words)})"

    def with_values(self, **named: Any) -> Question:
        """The same question with other values by name."""
        return Question(self.verb, *self.given, **{**self.named, **named})

    def ask(self) -> Answer:
        """The answer. Ctrl-C stops the work."""
        with contextlib.ExitStack() as files, _Progress() as told:
            given, named, texts = _plain(self, files)
            return _answer(self, _core.ask(self.verb, given, named, texts, told.line), stacklevel=4)


def _answer(question: Question, output: _core.Output, stacklevel: int) -> Answer:
    answer = Answer(question, output)
    for warning in output.warnings:
        warnings.warn(warning.strip(), CoplaceWarning, stacklevel=stacklevel)
    if output.fault is not None:
        raise CoplaceError(output.fault, answer if output.json or output.text else None)
    return answer


_Plain = Tuple[Tuple[Any, ...], Dict[str, Any], Dict[str, str]]


def _plain(question: Question, files: contextlib.ExitStack) -> _Plain:
    """The arguments with words for values, and the texts that stand in for files.

    A verb that reads no such texts gets files for as long as it is asked.
    """
    texts: Dict[str, str] = {}
    directory: List[Path] = []

    def write(name: str, text: str) -> str:
        if not directory:
            directory.append(Path(files.enter_context(tempfile.TemporaryDirectory(prefix="coplace-"))))
        path = directory[0] / name
        if path.exists() and path.read_text(encoding="utf-8") != text:
            path = directory[0] / f"{path.stem}-{len(list(directory[0].iterdir()))}{path.suffix}"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def word(value: Any) -> Any:
        if isinstance(value, Input):
            text = value._input.carried_text
            if text is None:
                return value._input.word
            if question.verb not in _core.VERBS_WITH_FILES:
                return write(value._input.word, text)
            texts[value._input.word] = text
            return value._input.word
        if isinstance(value, Answer):
            return str(value.directory) if value.directory else write(f"{value.question.verb}.json", value.json())
        if isinstance(value, (list, tuple)):
            return [word(entry) for entry in value]
        return value

    given = tuple(word(value) for value in question.given)
    named = {name: word(value) for name, value in question.named.items()}
    return given, named, texts


class _Progress:
    """Shows progress on a terminal and in a notebook: one line, which goes at the end."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.last = 0.0
        self.width = 0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.width:
            self._write("")

    def line(self, line: str) -> None:
        """Shows a line, unless the last one is recent."""
        now = time.monotonic()
        if now - self.start >= _QUIET and now - self.last >= _EVERY and _is_watched():
            self.last = now
            self._write(line)

    def _write(self, line: str) -> None:
        # Nobody may be there to read it any more. The work goes on.
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write("\r" + line.ljust(self.width) + ("\r" if not line else ""))
            sys.stderr.flush()
        self.width = len(line)


def _is_watched() -> bool:
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)


class BatchInterrupted(KeyboardInterrupt):
    """Ctrl-C during a batch. ``answers`` has what was answered; the others are ``None``."""

    def __init__(self, answers: List[Union[Answer, CoplaceError, None]]) -> None:
        super().__init__()
        self.answers = answers


def _question(value: Any) -> Question:
    if isinstance(value, Question):
        return value
    if isinstance(value, Mapping) and "verb" in value:
        return Question(**value)
    raise TypeError(f"{value!r}: is no question; use coplace.evaluate.question(...), or a dictionary with a verb")


def batch(
    questions: Iterable[Union[Question, Mapping[str, Any]]],
    *,
    threads: Optional[int] = None,
    progress: Optional[Callable[[int], object]] = None,
) -> List[Union[Answer, CoplaceError]]:
    """Answers many questions side by side, without Python's lock. Answers are in the order of the questions.

    A question that fails has its :class:`CoplaceError` in the place of its answer. ``progress`` is called with the
    number of answers a few times a second; on a terminal and in a notebook a line shows it. An exception of
    ``progress`` becomes a warning, and the work goes on without it. Ctrl-C raises :class:`BatchInterrupted`, which has
    the answers so far.
    """
    report = progress
    asked = [_question(value) for value in questions]
    with contextlib.ExitStack() as files, _Progress() as shown:

        def told(count: int) -> None:
            nonlocal report
            if report is not None:
                try:
                    report(count)
                except Exception as why:
                    report = None
                    # Where a filter makes an exception of it, the answers would be lost.
                    with contextlib.suppress(CoplaceWarning):
                        message = f"progress raised {type(why).__name__}: {why}; it is not called again"
                        warnings.warn(message, CoplaceWarning, stacklevel=3)
            shown.line(f"{count} of {len(asked)} questions")

        plain = [(question.verb, *_plain(question, files)) for question in asked]
        outputs, interrupted = _core.ask_all(plain, told, threads)
    answers: List[Union[Answer, CoplaceError, None]] = []
    for question, output in zip(asked, outputs):
        if output is None:
            answers.append(None)
        elif output.fault is not None:
            part = Answer(question, output) if output.json or output.text else None
            answers.append(CoplaceError(output.fault, part))
        else:
            answers.append(Answer(question, output))
    if interrupted:
        raise BatchInterrupted(answers)
    return [answer for answer in answers if answer is not None]
