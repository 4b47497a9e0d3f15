"""Settings are read strictly: what is unknown or of the wrong type is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from vibeserve.engine.errors import SettingsError
from vibeserve.engine.settings import Settings, read_settings, settings_from


def test_a_file_becomes_settings(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    path.write_text('[engine]\ndtype = "bfloat16"\nmax_batch = 4\nprefix_cache = false\n[http]\n')
    assert read_settings(path) == Settings(dtype="bfloat16", max_batch=4, prefix_cache=False)


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"max_bach": 4}, "max_bach"),
        ({"max_batch": "4"}, "max_batch"),
        ({"max_batch": True}, "max_batch"),
        ({"prefix_cache": 1}, "prefix_cache"),
        ({"max_batch": 0}, "max_batch"),
        ({"dtype": "float16"}, "dtype"),
        ({"backend": "cuda"}, "backend"),
        ({"threads": -1}, "threads"),
        ({"max_batch": 64, "max_batch_tokens": 32}, "max_batch_tokens"),
    ],
)
def test_what_is_wrong_is_named(table: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        settings_from(table)


@pytest.mark.parametrize("text", ["[engin]\n", "max_batch = 3\n", "[engine\n"])
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"engine\.toml"):
        read_settings(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        read_settings(tmp_path / "engine.toml")
