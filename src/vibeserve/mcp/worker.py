"""A process of its own for one long call: what it runs ends with it, whatever it is doing, when the call is given up.

    python -m vibeserve.mcp.worker < {"workspace": …, "tool": …, "arguments": {…}}

Writes one JSON object, {"result": …} or {"error": text}. What the called code prints goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from vibeserve.base.errors import VibeServeError
from vibeserve.base.jsonio import dumps, plain

KNOWN = (AssertionError, ArithmeticError, LookupError, OSError, RecursionError, TypeError, ValueError)


def message_of(error: BaseException) -> str:
    """A known error as one line, its hint with it."""
    if isinstance(error, VibeServeError):
        return f"{error.message}{f' — {error.hint}' if error.hint else ''}"
    return f"{type(error).__name__}: {error}"


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run the tool that a request names, on its workspace."""
    from vibeserve.mcp import tools
    from vibeserve.mcp.workspace import Workspace

    held = Workspace(Path(request["workspace"]))
    try:
        arguments = request["arguments"]
        match request["tool"]:
            case "simulate":
                result = tools.simulate(held, **arguments)
            case "investigate":
                result = tools.investigate(**arguments)
            case "profile_bounds":
                result = tools.profile_bounds(**arguments)
            case other:
                raise ValueError(f"no tool {other} runs here")
        return {"result": plain(result)}
    except (VibeServeError, *KNOWN) as error:
        return {"error": message_of(error)}


def main() -> None:
    """Read the request, answer it."""
    request = json.loads(sys.stdin.buffer.read())
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a kernel prints is no part of the answer
    out.write(dumps(answer(request)).encode())
    out.close()


if __name__ == "__main__":
    main()
