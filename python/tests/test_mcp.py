"""`coplace mcp` with the protocol's own client."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from conftest import PROGRAM

mcp = pytest.importorskip("mcp")
if not hasattr(mcp, "Client"):
    pytest.skip("mcp is older than its version 2", allow_module_level=True)

JOB: Dict[str, Any] = {
    "model": "opt-350m",
    "chip": "h100",
    "fabric": "nvlink4_node",
    "devices": 8,
    "global_batch": 16,
}
SEARCH: Dict[str, Any] = {"models": ["llama2-7b"], "study": "smoke", "draws": 0}


def server(here: Path, *arguments: str) -> Any:
    """The command of a server in a directory."""
    program = str(Path(PROGRAM).resolve())
    env = {**os.environ, "COPLACE_LOG": "off", "COLUMNS": "80"}
    return mcp.StdioServerParameters(command=program, args=["mcp", *arguments], cwd=str(here), env=env)


async def call(client: Any, tool: str, **arguments: Any) -> Tuple[str, bool]:
    """The text of an answer, and whether it is an error."""
    result = await client.call_tool(tool, arguments)
    return result.content[0].text, bool(result.is_error)


async def asked(here: Path) -> List[str]:
    """Asks for a plan and a search, and for what is refused. Returns the names of the tools."""
    async with mcp.Client(server(here, "--allow-write", "mine")) as client:
        tools = (await client.list_tools()).tools
        by_name = {tool.name: tool.input_schema for tool in tools}
        assert by_name["plan"]["required"] == ["model", "chip"]
        assert by_name["plan"]["properties"]["zero"]["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 3}

        plan, is_error = await call(client, "plan", **JOB)
        assert not is_error and 8 <= len(plan.splitlines()) <= 12 and "answer-1: " in plan, plan
        details, is_error = await call(client, "details", answer="answer-1", whole=True)
        assert not is_error and json.loads(details)["plans"][0]["step_s"] > 0

        found, is_error = await call(client, "search", out="mine/run", **SEARCH)
        assert not is_error, found
        assert (here / "mine" / "run" / "record.json").is_file()
        refused, is_error = await call(client, "search", out="elsewhere", **SEARCH)
        assert is_error and "mine only; give a path in it" in refused, refused
        outside, is_error = await call(client, "plan", **{**JOB, "chip": "/etc/hostname"})
        assert is_error and "reads files in" in outside, outside

        result = await client.call_tool("plan", {**JOB, "tensor": 3})
        parts = result.structured_content
        assert result.is_error and (parts["key"], parts["value"]) == ("--tensor", "3") and parts["cure"]
    return sorted(by_name)


def test_a_client_of_the_protocol_asks_for_a_plan_and_a_search(here: Path) -> None:
    import coplace

    assert asyncio.run(asked(here)) == sorted([*coplace.verbs.__all__, "details"])
    assert sorted(path.name for path in here.iterdir()) == ["mine"]


async def cancelled(here: Path) -> None:
    """Cancels a long search while another call is answered."""
    async with mcp.Client(server(here)) as client:
        long = asyncio.create_task(call(client, "search", models=["llama3-70b"], study="tpu", draws=0))
        listed, is_error = await call(client, "list", what="chips")
        assert not is_error and "h100" in listed and not long.done()
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        listed, is_error = await call(client, "list", what="stacks")
        assert not is_error and "megatron" in listed


def test_a_long_call_blocks_no_other_and_is_cancelled(here: Path) -> None:
    asyncio.run(asyncio.wait_for(cancelled(here), 120))
