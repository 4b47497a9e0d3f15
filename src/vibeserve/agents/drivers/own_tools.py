"""`vibeserve mcp` for an agent: our lookups and checks as tools, started by the agent itself, inside its own sandbox.

The set-up lies in the home that the call gives the agent, or stands on its command line: the user's own configuration and
the candidate's files are not touched.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import vibeserve

NAME = "vibeserve"
_PACKAGE = Path(vibeserve.__file__).resolve().parent


def command(work: Path) -> list[str]:
    """What starts the server; paths that it takes stay in `work`."""
    return [sys.executable, "-m", "vibeserve.cli.main", "mcp", "--workspace", str(work)]


def there() -> bool:
    """Whether the protocol's library is installed."""
    return importlib.util.find_spec("mcp") is not None


def readable() -> tuple[Path, ...]:
    """What the server needs to read: this package."""
    return (_PACKAGE,)


def hidden() -> tuple[Path, ...]:
    """What an agent does not see of it: the judge's probes, and the evaluators of packaged bundles."""
    return tuple(path for path in (_PACKAGE / "judge", _PACKAGE / "_data" / "examples") if path.is_dir())


def filled(text: str, work: Path) -> str:
    """A set-up's text with {command} (a JSON string), {args} and {words} (JSON arrays; `words` begins with the command)."""
    words = command(work)
    values = {"{command}": json.dumps(words[0]), "{args}": json.dumps(words[1:]), "{words}": json.dumps(words)}
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def merged(old: str, new: str) -> str:
    """One JSON object with the keys of both; `new` wins."""
    return json.dumps(_merge(json.loads(old or "{}"), json.loads(new)), indent=2)


def _merge(old: dict[str, object], new: dict[str, object]) -> dict[str, object]:
    both = dict(old)
    for name, value in new.items():
        known = both.get(name)
        both[name] = _merge(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return both
