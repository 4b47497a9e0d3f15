"""How much of a window's load still waited for its first token when it ended, by the benchmark's own figures."""

from __future__ import annotations

from typing import Any

import pytest

from vibeserve.search.bench import waiting_share


@pytest.mark.parametrize(
    ("first_token", "share"),
    [
        ({"n": 8, "cut_off": 7}, 0.875),
        ({"n": 8, "cut_off": 0}, 0.0),
        ({"n": 8}, 0.0),
        ({"n": 0, "cut_off": 0}, 0.0),
        (None, 0.0),
        ("soon", 0.0),
    ],
)
def test_the_share_of_requests_without_a_first_token(first_token: Any, share: float) -> None:
    assert waiting_share({"ttft_s": first_token}) == share
    assert waiting_share({}) == 0.0
