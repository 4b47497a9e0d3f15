"""Any agent that speaks the Agent Client Protocol over its standard streams, by the protocol's own library.

The agent runs in the sandbox, so a permission that it asks for is given once: what it could do wrong, it cannot do.
Files that it reads or writes through us are held to its directory here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from vibeserve.agents.confine import places_of
from vibeserve.agents.desk import AgentError, Box, Desk, Reply, Task, Usage
from vibeserve.agents.drivers import own_tools
from vibeserve.agents.drivers.cli import MEMORY_BYTES, forms, tail
from vibeserve.agents.names import command_of
from vibeserve.base.errors import MissingError
from vibeserve.base.processes import GROUP_MARK, clean_environment

#: The longest message, and all that is told in one call: beyond either, the call has failed.
MESSAGE_BYTES = 4 << 20
TOLD_BYTES = 16 << 20
#: Seconds between two looks at the memory of what runs.
LOOK_EVERY_S = 1.0


@dataclass(frozen=True)
class AcpDriver:
    """The agent that `command` starts."""

    command: str
    confined: bool = True
    tells_cost: bool = False

    @property
    def name(self) -> str:
        """As it is recorded."""
        return f"acp:{self.command}"

    def ready(self) -> None:
        """The library and the program are there. Raises MissingError."""
        try:
            import acp  # noqa: F401
        except ImportError as error:
            hint = "pip install 'vibeserve[agents]'"
            raise MissingError("the library of the Agent Client Protocol is not installed", hint=hint) from error
        program = command_of(self.command)[0]
        if shutil.which(program) is None:
            raise MissingError(f"{program} is not installed", hint="'--agent playbook' works without it")

    def call(self, task: Task, desk: Desk) -> Reply:
        """One session with one prompt. Raises AgentError; the agent is gone when this ends."""
        if desk.sandbox is None:
            raise AgentError(f"{self.name} only runs in a sandbox, and there is none here")
        with tempfile.TemporaryDirectory(prefix="vibeserve-agent-") as home:
            words = command_of(self.command)
            program = Path(shutil.which(words[0]) or words[0])
            given = [Path(word) for word in words[1:] if Path(word).is_absolute() and Path(word).exists()]
            tools = own_tools.readable() if own_tools.there() else ()
            readable = (*places_of(program), *given, *task.readable, *tools)
            box = Box(task.work, task.writes, Path(home), readable, network=True, hidden=own_tools.hidden())
            argv = desk.sandbox.wrap([str(program), *words[1:]], box)
            return asyncio.run(_session(argv, _environment(desk, home), task, desk, self.name))


def _environment(desk: Desk, home: str) -> dict[str, str]:
    """The keys of the known providers, and nothing else of the user's."""
    names = [name for form in forms().values() for name in (*form.variables, *form.also)]
    keys = {name: os.environ[name] for name in names if os.environ.get(name)}
    return clean_environment({**keys, "HOME": home, GROUP_MARK: desk.group})


async def _session(argv: tuple[str, ...], env: Mapping[str, str], task: Task, desk: Desk, name: str) -> Reply:
    """Start, ask, end; whatever happens, the process is killed at the end."""
    from acp import spawn_agent_process

    client = _Client(task)
    with (task.folder / "stderr.txt").open("wb") as errors:
        options = {"limit": MESSAGE_BYTES, "stderr": errors.fileno(), "shutdown_timeout": 0.5}
        try:
            async with spawn_agent_process(
                lambda agent: cast(Any, client), argv[0], *argv[1:], env=env, cwd=task.work, transport_kwargs=options
            ) as (agent, process):
                asking = asyncio.ensure_future(_ask(agent, task, client))
                ending = asyncio.ensure_future(_until_over(process, task, desk, client))
                try:
                    await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
                    if asking.done() and not _broken(asking):
                        return asking.result()
                    message, state = await ending
                    raise AgentError(_with_last_words(message, task), state=state, usage=client.usage)
                finally:
                    for waiting in (asking, ending):
                        waiting.cancel()
                    await asyncio.gather(asking, ending, return_exceptions=True)
                    if process.returncode is None:
                        process.kill()
                        await process.wait()
                    cast(Any, process)._transport.close()  # nothing public closes a pipe that still holds data
        except AgentError as error:
            raise AgentError(f"{name}: {error.message}", state=error.state, usage=error.usage) from None
        except Exception as error:
            raise AgentError(f"{name}: {error}"[:500], usage=client.usage) from error
        finally:
            client.close()
            await asyncio.sleep(0)  # the pipes are closed in the loop's next turn


def _with_last_words(message: str, task: Task) -> str:
    said = tail(task.folder / "stderr.txt")
    return f"{message}: {said}" if said else message


def _broken(asking: asyncio.Future[Reply]) -> bool:
    """Whether the connection broke: how its process ended says more."""
    return isinstance(asking.exception(), ConnectionError)


async def _ask(agent: Any, task: Task, client: _Client) -> Reply:
    from acp import PROTOCOL_VERSION, text_block
    from acp.schema import ClientCapabilities, FileSystemCapabilities

    files = FileSystemCapabilities(read_text_file=True, write_text_file=task.writes)
    await agent.initialize(protocol_version=PROTOCOL_VERSION, client_capabilities=ClientCapabilities(fs=files))
    session = await agent.new_session(cwd=str(task.work), mcp_servers=_servers(task))
    answer = await agent.prompt(session_id=session.session_id, prompt=[text_block(task.prompt)])
    await asyncio.sleep(0)  # updates that came before the answer are told first
    if answer.usage is not None:
        cost = client.usage.cost_usd
        client.usage = Usage(answer.usage.input_tokens, answer.usage.output_tokens, cost, "")
    if answer.stop_reason != "end_turn":
        raise AgentError(f"it stopped: {answer.stop_reason}", usage=client.usage)
    return Reply(client.text, None, client.usage)


def _servers(task: Task) -> list[Any]:
    """Our own tools, which the agent starts in its sandbox; none where their library is not installed."""
    from acp.schema import McpServerStdio

    words = own_tools.command(task.work)
    server = McpServerStdio(name=own_tools.NAME, command=words[0], args=words[1:], env=[])
    return [server] if own_tools.there() else []


async def _until_over(process: Any, task: Task, desk: Desk, client: _Client) -> tuple[str, str]:
    """(message, state) of how it ended before it had answered."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + task.timeout_s
    look_s = 0.0
    while loop.time() < deadline and not desk.cancelled.is_set():
        if client.told > TOLD_BYTES:
            return "ended: it told more than it may", "failed"
        if loop.time() >= look_s:
            look_s = loop.time() + LOOK_EVERY_S
            if resident_bytes(process.pid) > MEMORY_BYTES:
                return "ended: it used more memory than it may", "failed"
        if process.returncode is not None:
            await asyncio.sleep(0.2)  # an answer may be on its way
            return f"ended with exit code {process.returncode} before it had answered", "failed"
        await asyncio.sleep(0.05)
    return f"no answer within {task.timeout_s:.0f} s", "timed out"


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and all that came of it; 0 where it is gone."""
    import psutil

    try:
        above = psutil.Process(pid)
        members = [above, *above.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for member in members:
        with contextlib.suppress(psutil.Error):
            total += member.memory_info().rss
    return total


class _Client:
    """Our side of the protocol."""

    def __init__(self, task: Task):
        self._task = task
        self._transcript = (task.folder / "output.jsonl").open("a", encoding="utf-8")
        self.text = ""
        self.told = 0
        self.usage = Usage()

    def close(self) -> None:
        """Close the transcript."""
        self._transcript.close()

    def on_connect(self, conn: Any) -> None:
        """Nothing is needed."""

    async def session_update(self, session_id: str, update: Any, **rest: Any) -> None:
        """Pieces of the answer, tools at work, costs."""
        del session_id, rest
        line = update.model_dump_json(by_alias=True, exclude_none=True)
        self.told += len(line)
        self._transcript.write(line + "\n")
        kind = update.session_update
        if kind == "agent_message_chunk":
            self.text += getattr(update.content, "text", "") or ""
        elif kind == "tool_call":
            self.text = ""  # what was said before a tool ran was no answer yet
        elif kind == "usage_update" and update.cost is not None and update.cost.currency == "USD":
            old = self.usage
            self.usage = Usage(old.input_tokens, old.output_tokens, update.cost.amount, old.model)

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **rest: Any) -> Any:
        """Given once, where that is offered; the sandbox is what confines."""
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        del session_id, rest
        once = next((option for option in options if option.kind == "allow_once"), None)
        said = {"permission": tool_call.title, "given": once is not None}
        self._transcript.write(json.dumps(said) + "\n")
        if once is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=once.option_id))

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **rest: Any
    ) -> Any:
        """A file of the directory, or of what it may read."""
        from acp.schema import ReadTextFileResponse

        del session_id, rest
        text = self._path(path, self._task.work, *self._task.readable).read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines(keepends=True)[(line or 1) - 1 :]
        return ReadTextFileResponse(content="".join(lines if limit is None else lines[:limit]))

    async def write_text_file(self, session_id: str, path: str, content: str, **rest: Any) -> Any:
        """A file of the directory, where the task may write."""
        from acp import RequestError

        del session_id, rest
        if not self._task.writes:
            raise RequestError.invalid_params({"path": "this task may not write"})
        place = self._path(path, self._task.work)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content, encoding="utf-8")
        return None

    def _path(self, text: str, *allowed: Path) -> Path:
        from acp import RequestError

        path = Path(os.path.realpath(self._task.work / text))
        if not any(path.is_relative_to(place.resolve()) for place in allowed):
            raise RequestError.invalid_params({"path": f"{text} lies outside of your directory"})
        return path

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """None is known."""
        from acp import RequestError

        raise RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """None is known."""
