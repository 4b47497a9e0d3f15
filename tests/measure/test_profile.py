"""A watched window: cores, memory, counters gained."""

import json
import time
import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.base.errors import InputError
from vibeserve.measure.launch import launch
from vibeserve.measure.profile import ServerProfile, Watching, parse_metrics, read_metrics

PAGE = """# HELP engine_seconds_total Time by phase.
# TYPE engine_seconds_total counter
engine_seconds_total{phase="linear"} 3
engine_seconds_total{phase="idle"} 1.0
# TYPE engine_running gauge
engine_running 4
odd{text="a } b",other="c"} 2.5 1700000000
broken
nan_value NaN
"""


def test_a_page_is_read():
    page = parse_metrics(PAGE)
    assert page.values == {
        'engine_seconds_total{phase="linear"}': 3.0,
        'engine_seconds_total{phase="idle"}': 1.0,
        "engine_running": 4.0,
        'odd{text="a } b",other="c"}': 2.5,
    }
    assert page.gauges == {"engine_running"}
    assert ServerProfile(1, 1, 1, 1, gained=page.values).phases() == {"linear": 0.75, "idle": 0.25}
    assert ServerProfile(1, 1, 1, 1).phases() == {}


@given(st.text())
def test_any_text_is_read_or_passed_over(text):
    assert all(value - value == 0 for value in parse_metrics(text).values.values())


def test_what_a_server_did(candidate, tmp_path):
    with launch(candidate(work=200), tmp_path, log_dir=tmp_path) as server:
        watching = Watching(server, every_s=0.05)
        with pytest.raises(InputError, match="still watched"):
            _ = watching.profile
        with watching:
            for number in range(3):
                body = json.dumps({"prompt": str(number), "max_tokens": 8}).encode()
                urllib.request.urlopen(server.url + "/v1/completions", body, timeout=60).read()
        seen = watching.profile
        assert seen.gained["fake_requests_total"] == 3
        assert seen.gained["fake_tokens_total"] == 24
        assert seen.gauges["fake_requests_running"] in (0, 1)
        assert seen.cores > 0
        assert seen.memory_peak_bytes > 1 << 20
        assert seen.samples >= 1
        assert seen.note == ""
    assert "metrics" in read_metrics(server.url).problem


def test_time_goes_on_where_there_is_no_page(tmp_path):
    import sys

    code = (
        "import http.server,sys;h=http.server.BaseHTTPRequestHandler;"
        "h.do_GET=lambda s:(s.send_response(200 if s.path=='/health' else 404),s.end_headers());"
        "http.server.HTTPServer(('127.0.0.1',int(sys.argv[-1])),h).serve_forever()"
    )
    (tmp_path / "candidate.toml").write_text(
        f"start = {json.dumps([sys.executable, '-c', code])}\nready_timeout_s = 60"
    )
    with launch(tmp_path, tmp_path, log_dir=tmp_path / "log") as server:
        with Watching(server, every_s=0.02) as watching:
            time.sleep(0.1)
        assert watching.profile.gained == {}
        assert "404" in watching.profile.note
