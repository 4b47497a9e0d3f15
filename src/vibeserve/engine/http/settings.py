"""The `[http]` table of `engine.toml`: how the front behaves."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..errors import SettingsError


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Every field is a knob of `[http]`.

    - `model_name`: the model's id in the API; empty means the name of the model directory.
    - `max_body_bytes`: a longer request body is refused with 413.
    - `body_timeout_s`: a client that takes longer than this to send its body is answered 408.
    - `drain_s`: on SIGTERM, requests in flight have this long to finish.
    - `write_stall_s`: a client that reads nothing for this long is cut off.
    - `keep_alive_s`: an idle connection is kept this long.
    - `stream_interval`: a stream gets an event for its first token and then for every so many; 1 is one a token. More
      saves the system call that sending costs, and makes the text come in larger pieces.
    """

    model_name: str = ""
    max_body_bytes: int = 8 * 1024 * 1024
    body_timeout_s: float = 30.0
    drain_s: float = 30.0
    write_stall_s: float = 120.0
    keep_alive_s: float = 75.0
    stream_interval: int = 1


def http_settings_from(table: dict[str, Any], where: str = "[http]") -> HttpSettings:
    """Read the table strictly. Raises SettingsError on an unknown key, a wrong type, or a number that is not above 0."""
    kinds: dict[str, type] = {entry.name: type(entry.default) for entry in fields(HttpSettings)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        kind = kinds.get(key)
        if kind is None:
            raise SettingsError(f"{where} has an unknown key {key!r}", f"known keys: {', '.join(sorted(kinds))}")
        given = float(value) if kind is float and type(value) is int else value
        if type(given) is not kind:
            raise SettingsError(f"{where} {key} must be {kind.__name__}, is {type(value).__name__} {value!r}")
        if isinstance(given, int | float) and not given > 0:
            raise SettingsError(f"{where} {key} must be above 0, is {value!r}")
        values[key] = given
    return HttpSettings(**values)
