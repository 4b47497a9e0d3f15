"""A stand-in that speaks the Agent Client Protocol, by the protocol's own library. Misbehaves as stand_in.py does."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(sys.argv[0]).parent))

import stand_in
from acp import PROTOCOL_VERSION, run_agent, text_block, update_agent_message
from acp.schema import (
    AgentCapabilities,
    InitializeResponse,
    NewSessionResponse,
    PermissionOption,
    PromptResponse,
    ToolCallUpdate,
    Usage,
)


class StandIn:
    """One session, one prompt."""

    def on_connect(self, conn: Any) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **rest: Any) -> InitializeResponse:
        return InitializeResponse(protocol_version=PROTOCOL_VERSION, agent_capabilities=AgentCapabilities())

    async def new_session(self, cwd: str, mcp_servers: Any = None, **rest: Any) -> NewSessionResponse:
        self.cwd = cwd
        self.servers = {server.name: [server.command, *server.args] for server in mcp_servers or ()}
        return NewSessionResponse(session_id="s")

    async def prompt(self, session_id: str, prompt: list[Any], **rest: Any) -> PromptResponse:
        asked = stand_in.understand(prompt[0].text)
        if asked.mode == "flood":
            while True:
                await self.say(session_id, "x" * 100_000)
        if asked.mode == "permission" and not await self.allowed(session_id):
            raise RuntimeError("no permission was given")
        if asked.role == "implement":
            if asked.mode == "tools":
                Path("tools.json").write_text(json.dumps(stand_in.use_tools(self.servers["vibeserve"])))
            else:
                stand_in.work(asked.title, prompt[0].text, asked.mode)
            await self.files(session_id, asked.mode)
        if asked.mode not in ("permission", "half"):
            stand_in.misbehave(asked.mode, asked.document)
        text = json.dumps(asked.document)
        text = text[: len(text) // 2] if asked.mode == "half" else text
        for start in range(0, len(text), 50):
            await self.say(session_id, text[start : start + 50])
        usage = Usage(input_tokens=1000, output_tokens=50, total_tokens=1050)
        return PromptResponse(stop_reason="end_turn", usage=usage)

    async def say(self, session_id: str, text: str) -> None:
        await self.client.session_update(session_id=session_id, update=update_agent_message(text_block(text)))

    async def allowed(self, session_id: str) -> bool:
        options = [
            PermissionOption(option_id="yes", name="Yes", kind="allow_once"),
            PermissionOption(option_id="no", name="No", kind="reject_once"),
        ]
        call = ToolCallUpdate(tool_call_id="1", title="rm -rf /")
        answer = await self.client.request_permission(session_id=session_id, tool_call=call, options=options)
        return getattr(answer.outcome, "option_id", "") == "yes"

    async def files(self, session_id: str, mode: str) -> None:
        """A file through the client, and one outside where it misbehaves."""
        await self.client.write_text_file(session_id=session_id, path=f"{self.cwd}/through.txt", content="hello")
        if mode == "outside":
            try:
                await self.client.write_text_file(session_id=session_id, path=f"{self.cwd}/../escaped.txt", content="x")
            except Exception:
                return
            Path("escapes.json").write_text(json.dumps({"written": ["through the client"], "seen": []}))


asyncio.run(run_agent(StandIn()))
