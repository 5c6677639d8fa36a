"""Three ways to ask a question: Python's batch, the command line, and JSON, as `coplace mcp` takes it from an agent."""

from __future__ import annotations

import json
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from conftest import COLUMNS, PROGRAM, run_program

import coplace

#: Options without a value.
SWITCHES = ("kernels", "robust", "family", "techniques", "everything", "stall_free", "no_build_limits", "details")
#: Options that are given once per value.
REPEATED = ("technique", "stack_option", "set")
#: Arguments by position, by verb. The last one of a list takes the rest.
POSITIONS: Dict[str, List[str]] = {
    "search": ["models"],
    "sweep": ["models"],
    "merge": ["parts"],
    "explain": ["run"],
    "init": ["file"],
    "evaluate": ["model"],
    "plan": ["model"],
    "compare": ["directories"],
    "pareto": ["directories"],
    "report": ["run"],
    "validate": ["files"],
    "calibrate": ["chip", "data"],
    "place": ["files"],
    "schedule": ["files"],
    "scalesim": ["config", "topology"],
    "calculon": ["model", "execution", "system"],
    "techniques": ["model"],
    "serve": ["model"],
    "list": ["what"],
    "doctor": [],
}
LISTS = ("models", "parts", "directories", "files")


@dataclass(frozen=True)
class Reply:
    """What a way of asking gives: the exit code, the JSON answer as text, and the message of an error."""

    code: int
    answer: str
    message: str


def words_of_question(question: coplace.Question) -> List[str]:
    """The question on a command line."""
    found = [question.verb, *map(str, question.given)]
    for name, value in question.named.items():
        flag = "--" + name.replace("_", "-")
        if name in SWITCHES:
            found += [flag] if value else []
        elif isinstance(value, bool):
            found += [flag, str(value).lower()]
        elif isinstance(value, list) and name in REPEATED:
            found += [word for entry in value for word in (flag, str(entry))]
        elif isinstance(value, list):
            found += [flag, (";" if name == "recompute" else ",").join(map(str, value))]
        else:
            found += [flag, str(value)]
    return found


def json_of_question(question: coplace.Question) -> Dict[str, Any]:
    """The question in JSON: a verb's name and its arguments by name."""
    arguments = dict(question.named)
    names = POSITIONS[question.verb]
    if names and names[0] in LISTS:
        if question.given:
            arguments[names[0]] = list(question.given)
    else:
        arguments.update(zip(names, question.given))
    return {"name": question.verb, "arguments": arguments}


def ask_program(questions: Sequence[coplace.Question], directory: Path) -> List[Reply]:
    """Asks the command, a process per question."""

    def ask(question: coplace.Question) -> Reply:
        code, out, err = run_program([*words_of_question(question), "--format", "json"], directory)
        return Reply(code, out, err)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(ask, questions))


def ask_python(questions: Sequence[coplace.Question], directory: Path) -> List[Reply]:
    """Asks Python's batch."""
    before = Path.cwd()
    os.chdir(directory)
    try:
        answers = coplace.batch(questions)
    finally:
        os.chdir(before)
    return [
        Reply(answer.exit_code, answer.answer.json() if answer.answer else "", str(answer))
        if isinstance(answer, coplace.CoplaceError)
        else Reply(0, answer.json(), "")
        for answer in answers
    ]


class Agent:
    """An agent of `coplace mcp`, which may write into the directory."""

    def __init__(self, directory: Path) -> None:
        program = [str(Path(PROGRAM).resolve()), "mcp", "--allow-write", "."]
        env = {**os.environ, "COLUMNS": COLUMNS, "COPLACE_LOG": "off"}
        pipe = subprocess.PIPE
        self._server = subprocess.Popen(program, cwd=directory, env=env, stdin=pipe, stdout=pipe, text=True)
        self._last = 0
        client = {"name": "test", "version": "1"}
        self._send("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self._receive()
        self._say({"method": "notifications/initialized"})

    def end(self) -> None:
        """Ends standard input and waits for the server."""
        _, _ = self._server.communicate()
        assert self._server.returncode == 0

    def ask(self, questions: Sequence[coplace.Question]) -> List[Reply]:
        """Asks the questions, as many at a time as there are cores."""
        replies: Dict[int, Reply] = {}
        asked: Dict[int, int] = {}
        # By the request for its details: a question whose answer is short so far.
        told: Dict[int, Tuple[int, Reply]] = {}
        left = iter(enumerate(questions))
        while len(replies) < len(questions):
            while len(asked) + len(told) < (os.cpu_count() or 1) and (one := next(left, None)) is not None:
                asked[self._send("tools/call", json_of_question(one[1]))] = one[0]
            message = self._receive()
            result = message["result"]
            text = result["content"][0]["text"]
            if message["id"] in told:
                at, reply = told.pop(message["id"])
                replies[at] = replace(reply, answer=text)
                continue
            at = asked.pop(message["id"])
            fault: Dict[str, Any] = {"exit_code": 0, "message": ""}
            if result.get("isError"):
                fault = result["structuredContent"]
            replies[at] = Reply(fault["exit_code"], "", fault["message"])
            name = re.search(r"^(answer-\d+): ", text, re.MULTILINE)
            if name is not None:
                details = {"answer": name[1], "whole": True}
                told[self._send("tools/call", {"name": "details", "arguments": details})] = (at, replies.pop(at))
        return [replies[at] for at in range(len(questions))]

    def _say(self, message: Dict[str, Any]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._server.stdin.flush()

    def _send(self, method: str, params: Dict[str, Any]) -> int:
        self._last += 1
        self._say({"id": self._last, "method": method, "params": params})
        return self._last

    def _receive(self) -> Dict[str, Any]:
        """The next answer of the server."""
        assert self._server.stdout is not None
        for line in self._server.stdout:
            message: Dict[str, Any] = json.loads(line)
            if "id" in message:
                return message
        raise AssertionError("the server has ended")
