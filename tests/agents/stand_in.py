"""A stand-in for the command lines of coding agents: it speaks the wire form of the name that it is started under.

`behaviour.json` beside it says how it misbehaves: {"design": "hang", "implement 2": "half", ...}, by role, or by role
and round. What it does well: three hypotheses that write a file, then none.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(sys.argv[0])
NAME = HERE.name
LOGIN = {
    "claude": "ANTHROPIC_API_KEY",
    "codex": "CODEX_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "opencode": "OPENAI_API_KEY",
}
IDEA = {
    "technique": "batching", "title": "Batch requests", "parent": "c0", "hypothesis": "weights are read once for all",
    "expected_effect": "more tokens", "expected_ratio": 2.0, "falsification": "the interval holds 1",
    "activation": [], "task": "write note.txt",
}  # fmt: skip
ROLES = {"You design": "design", "You implement": "implement", "You review": "review", "This is a check": "ready"}


def idea(number: int, **changes: object) -> dict[str, object]:
    return {**IDEA, "technique": f"idea-{number}", "title": f"Idea {number}", **changes}


def answer(role: str, number: int, prompt: str, behaviour: dict[str, str]) -> dict[str, object]:
    if role == "ready":
        return {"ready": True}
    if role == "design":
        limit = int((re.search(r"Up to (\d+) hypotheses", prompt) or [0, "1"])[1])
        last = int(behaviour.get("rounds", "3"))
        parent = behaviour.get(f"parent {number}") or re.search(r"best candidate is (c\d+)", prompt)[1]
        found = [idea(number + place, parent=parent) for place in range(limit) if number + place <= last]
        return {"hypotheses": found, "reason": "this is what the evidence shows" if found else "nothing is left to try"}
    if role == "implement":
        return {"summary": "wrote note.txt, measured 9999 tokens/s", "expected_behavior": "it is 400 times as fast"}
    verdict = "reject" if behaviour.get("verdict") == "reject" and "revised" not in prompt else "approve"
    return {"verdict": verdict, "reason": "it is wired in", "feedback": "say revised" if verdict == "reject" else ""}


def work(title: str, prompt: str, mode: str) -> None:
    if mode == "nothing":
        return
    text = f"{title}\n" + ("revised\n" if "say revised" in prompt else "")
    Path("note.txt").write_text(text)
    Path("candidate.toml").write_text('start = ["python", "server.py"]\nhealth = "/health"\n')
    Path("server.py").write_text(f"# {title}\n")
    if (HERE.parent / "server_source.py").is_file():
        Path("server.py").write_bytes((HERE.parent / "server_source.py").read_bytes())
        start = ["python", "server.py", "--ttft-s", "0.001", "--tpot-s", "0.001"]
        Path("candidate.toml").write_text(f"start = {json.dumps(start)}\nready_timeout_s = 20\n")
    if mode == "tools":
        Path("tools.json").write_text(json.dumps(use_tools(servers()["vibeserve"])))
    if mode == "link":
        Path("outside").symlink_to("/etc/passwd")
    if mode == "outside":
        tried = []
        for place in ("..", "../..", str(HERE.parent), "/usr/lib", "/etc"):
            try:
                Path(place, "escaped.txt").write_text("I was here")
                tried.append(place)
            except OSError:
                continue
        secrets = [name for name in ("../../../run.db", "../../../workspace/.git/HEAD") if Path(name).exists()]
        Path("escapes.json").write_text(json.dumps({"written": tried, "seen": secrets}))


def servers() -> dict[str, list[str]]:
    """The MCP servers that it was told of, in the form of its name: {name: command line}."""
    home = Path(os.environ["HOME"])
    if NAME == "claude":
        document = json.loads(Path(sys.argv[sys.argv.index("--mcp-config") + 1]).read_text())["mcpServers"]
    elif NAME == "codex":
        given = [sys.argv[place + 1] for place, word in enumerate(sys.argv) if word == "--config"]
        document = tomllib.loads("\n".join(given))["mcp_servers"]
    elif NAME == "gemini":
        document = json.loads((home / ".gemini" / "settings.json").read_text())["mcpServers"]
    else:
        document = json.loads((home / ".config" / "opencode" / "opencode.json").read_text())["mcp"]
        return {name: entry["command"] for name, entry in document.items()}
    return {name: [entry["command"], *entry["args"]] for name, entry in document.items()}


def use_tools(command: list[str]) -> dict[str, object]:
    """Start an MCP server, ask what it has, and search its documentation."""
    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": NAME, "version": "1"}}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def ask(number: int, method: str, params: dict[str, object]) -> dict[str, object]:
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            server.stdin.write(json.dumps(message) + "\n")
            server.stdin.flush()
            while (answer := json.loads(server.stdout.readline())).get("id") != number:
                pass
            return answer["result"]

        ask(1, "initialize", begin)
        server.stdin.write(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n")
        tools = [tool["name"] for tool in ask(2, "tools/list", {})["tools"]]
        found = ask(3, "tools/call", {"name": "docs_search", "arguments": {"query": "continuous batching"}})
        server.stdin.close()
    judge = Path(command[0]).is_file() and [str(path) for path in package_of("judge").glob("*.py")]
    return {"tools": tools, "found": json.dumps(found)[:2000], "judge": judge}


def package_of(name: str) -> Path:
    import vibeserve

    return Path(vibeserve.__file__).parent / name


def say(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


def speak(document: dict[str, object], half: bool = False) -> None:
    """The answer in the agent's own events."""
    text = json.dumps(document)
    text = text[: len(text) // 2] if half else f"I thought about it {{}}.\n```json\n{text}\n```"
    if NAME == "claude":
        say({"type": "system", "subtype": "init", "session_id": "s", "model": "stand-in-1", "tools": []})
        say({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}})
        usage = {
            "input_tokens": 100,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 900,
            "output_tokens": 50,
        }
        end = {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": text,
            "num_turns": 2,
            "session_id": "s",
        }
        say({**end, "usage": usage, "total_cost_usd": 0.02, **({} if half else {"structured_output": document})})
    if NAME == "codex":
        say({"type": "thread.started", "thread_id": "t"})
        say({"type": "turn.started"})
        say({"type": "item.completed", "item": {"id": "1", "type": "agent_message", "text": "Looking around."}})
        say({"type": "item.completed", "item": {"id": "2", "type": "agent_message", "text": text}})
        say(
            {"type": "turn.completed", "usage": {"input_tokens": 1000, "cached_input_tokens": 900, "output_tokens": 50}}
        )
    if NAME == "gemini":
        say({"type": "init", "session_id": "s", "model": "stand-in-2"})
        say({"type": "message", "role": "assistant", "content": "Let me look. {", "delta": True})
        say({"type": "tool_use", "tool_name": "read_file", "tool_id": "1", "parameters": {}})
        for start in range(0, len(text), 40):
            say({"type": "message", "role": "assistant", "content": text[start : start + 40], "delta": True})
        say(
            {
                "type": "result",
                "status": "success",
                "stats": {"total_tokens": 1050, "input_tokens": 1000, "output_tokens": 50},
            }
        )
    if NAME == "opencode":
        say({"type": "step_start", "sessionID": "s", "part": {"type": "step-start"}})
        say({"type": "text", "sessionID": "s", "part": {"type": "text", "text": text}})
        tokens = {"input": 100, "output": 40, "reasoning": 10, "cache": {"read": 900, "write": 0}}
        say({"type": "step_finish", "sessionID": "s", "part": {"reason": "stop", "cost": 0.02, "tokens": tokens}})


def misbehave(mode: str, document: dict[str, object]) -> None:
    if mode == "hang":
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    if mode == "hog":
        held = [bytearray(b"x") * (1 << 20) for _ in range(300)]
        time.sleep(3600 + len(held))
    if mode == "crash":
        print("panic: something broke", file=sys.stderr)
        sys.exit(13)
    if mode == "flood":
        while True:
            sys.stdout.write("x" * 100_000)
    if mode == "permission":
        say({"type": "permission.asked", "permission": "May I run rm -rf?"})
        sys.exit("no answer came on a closed standard input" if not sys.stdin.read() else "it was answered")
    if mode == "refused":
        if NAME == "claude":
            end = {
                "type": "result",
                "subtype": "success",
                "is_error": True,
                "result": "Invalid API key · Please run /login",
            }
            say({**end, "total_cost_usd": 0, "usage": {"input_tokens": 0, "output_tokens": 0}})
        if NAME == "codex":
            say({"type": "error", "message": "401 Unauthorized"})
            say({"type": "turn.failed", "error": {"message": "401 Unauthorized"}})
        if NAME == "gemini":
            say(
                {
                    "type": "result",
                    "status": "error",
                    "error": {"type": "auth", "message": "401 Unauthorized"},
                    "stats": {},
                }
            )
        if NAME == "opencode":
            say({"type": "error", "error": {"name": "ProviderAuthError", "data": {"message": "401 Unauthorized"}}})
        sys.exit(1)
    if mode == "empty":
        sys.exit(0)
    if mode == "half":
        speak(document, half=True)
        sys.exit(0)


@dataclass(frozen=True)
class Asked:
    """What a prompt asks for, how this stand-in is told to misbehave, and what it would answer."""

    role: str
    number: int
    title: str
    mode: str
    document: dict[str, object]
    seconds: float


def understand(prompt: str, behaviour: dict[str, str] | None = None) -> Asked:
    """Read a prompt as an agent would: by its first words."""
    if behaviour is None:
        behaviour = json.loads((HERE.parent / "behaviour.json").read_text())
    role = next(role for start, role in ROLES.items() if prompt.startswith(start))
    title = (re.search(r"# The hypothesis\n(Idea (\d+))", prompt) or [0, "", "0"])[1]
    number = int(title.split()[-1]) if title else int((re.search(r"Round (\d+)\.", prompt) or [0, "0"])[1])
    mode = behaviour.get(f"{role} {number}", behaviour.get(role, ""))
    if mode.endswith(" once"):
        mode = "" if "could not be used" in prompt else mode.removesuffix(" once")
    document = answer(role, number, prompt, behaviour)
    if mode == "wrong":
        document = {**document, "extra": 1}
    return Asked(role, number, title, mode, document, float(behaviour.get("seconds", "0")))


def main() -> None:
    if not os.environ.get(LOGIN[NAME]):
        sys.exit(1)
    prompt = sys.argv[sys.argv.index("run") + 1] if NAME == "opencode" else sys.stdin.read()
    asked = understand(prompt)
    if asked.role == "implement":
        work(asked.title, prompt, asked.mode)
    misbehave(asked.mode, asked.document)
    time.sleep(asked.seconds)
    speak(asked.document)


if __name__ == "__main__":
    main()
