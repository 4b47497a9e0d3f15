"""The pages of `profile serve`, in a real browser."""

import pytest
from tests.browser import DESK, PHONE
from tests.browser import browser as running_browser
from tests.profiles import made

from vibeserve import profiles


@pytest.fixture(scope="module")
def browser():
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    import re
    import signal
    import subprocess
    import sys

    path = tmp_path_factory.mktemp("served")
    profiles.save(made.matmul_profile(), "my-kernel", path)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "vibeserve.cli.main",
            "profile",
            "serve",
            "--data-path",
            str(path),
            "--api-server-port",
            "0",
            "--port",
            "0",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = [process.stderr.readline() for _ in range(3)]
    found = re.search(r"http://localhost:(\d+)/", lines[1])
    assert found, lines
    yield f"http://localhost:{found.group(1)}"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    process.stderr.close()


@pytest.mark.parametrize(
    "page", ["/", "/p/my-kernel", "/p/my-kernel/t/Instruction", "/p/my-kernel/sql?q=SELECT+opcode+FROM+Instruction"]
)
def test_pages_are_quiet_fit_a_phone_and_are_accessible(browser, site, page):
    for width in (DESK, PHONE):
        seen = browser.look(site + page, width, axe=width == DESK, offline=False)
        assert seen.console == []
        assert seen.overflow_px <= 0, seen.too_wide
        assert seen.axe == []
        assert all(url.startswith(site) for url in seen.requests)


def test_a_person_can_walk_from_the_list_to_a_query(browser, site):
    with browser.open(site + "/", offline=False) as page:
        page.click("text=my-kernel")
        assert "Profile my-kernel" in page.title()
        page.click("a:has-text('SQL')")
        page.fill("textarea[name=q]", "SELECT count(*) AS n FROM DmaPacket")
        page.click("button:has-text('Run')")
        assert page.inner_text("table tbody tr td") == "8"
