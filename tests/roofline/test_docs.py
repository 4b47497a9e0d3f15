"""The user's page is true: its example, its code, its table of operations, its options."""

import re
from pathlib import Path

import pytest

from vibeserve.base.paths import packaged

PAGE = Path(__file__).parents[2] / "docs" / "roofline.md"
TEXT = PAGE.read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("target", [["--target", "h100"], ["--target", "trn2", "--lnc", "2"]])
def test_the_example_gives_its_page(cli, tmp_path, target):
    (text,) = blocks("toml")
    path, page = tmp_path / "my-mlp.toml", tmp_path / "page.html"
    path.write_text(text)
    code, out, _ = cli("roofline", path, *target, "--html", page)
    assert code == 0
    assert "180,388,626,432" in out
    assert "180,388,626,432" in page.read_text()


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code, capsys):
    if "import torch" in code:
        pytest.importorskip("torch")
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out


def test_commands_name_options_that_exist(cli):
    _, out, _ = cli("roofline", "--help")
    named = set(re.findall(r"--[a-z][a-z-]+", "\n".join(blocks("sh")) + TEXT))
    assert named <= set(re.findall(r"--[a-z][a-z-]+", out))
    options = set(re.findall(r"--[a-z][a-z-]+", out)) - {"--help", "--data-path"}
    assert options <= named


def test_every_operation_is_listed():
    files = {path.stem for path in (packaged("examples") / "roofline").glob("*.toml")}
    assert files == set(re.findall(r"^\| `([a-z0-9-]+)` \|", TEXT.split("## The library")[1], re.MULTILINE))


def test_the_shipped_page_is_what_the_command_makes(tmp_path, cli):
    page = tmp_path / "page.html"
    folder = packaged("examples") / "roofline"
    measured = folder / "vjepa2-mlp.measured.json"
    args = ["--target", "trn2", "--lnc", 2, "--measured", measured, "--sweep", "R=128:16384:64", "--html", page]
    assert cli("roofline", folder / "vjepa2-mlp.toml", *args)[0] == 0
    shipped = PAGE.parent / "examples" / "vjepa2-mlp.html"
    made, kept = page.read_text(encoding="utf-8"), shipped.read_text(encoding="utf-8")

    # The look and the words around the tables may change; what the tables say may not differ.
    def cells(text):
        return [re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", text, re.DOTALL)]

    assert cells(made) == cells(kept)
    assert len(cells(made)) > 300
