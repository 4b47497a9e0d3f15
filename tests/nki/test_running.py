"""Scripts and kernel files as they stand: the specification's, the command line, the import hook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

KERNEL = """
import nki
import nki.language as nl
import nki.isa as nisa

@nki.jit
def scale(x, factor=2.0):
    tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=tile, src=x)
    nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=factor)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=out, src=tile)
    return out

@nki.jit
def wrong(x):
    tile = nl.ndarray((129, 4), dtype=x.dtype, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=0.0)
    return x
"""


def seed_text(spec_dir: Path) -> str:
    [file] = spec_dir.glob("001_*.txt")
    return file.read_text(encoding="utf-8")


def snippet(text: str, begin: str, end: str, after: str = "") -> str:
    start = text.index(begin, text.index(after) if after else 0)
    return text[start : text.index(end, start)]


@pytest.fixture
def script(tmp_path):
    def write(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def run(cli, tmp_path, monkeypatch):
    """`vibeserve nki ...` in this process, in a directory of its own (scripts leave profiles where they run)."""
    monkeypatch.chdir(tmp_path)

    def call(*args: object) -> SimpleNamespace:
        code, out, err = cli("nki", *args)
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    return call


def test_the_quick_start_runs_as_printed(spec_dir, script, run):
    pytest.importorskip("torch")
    done = run(
        "run", script(snippet(seed_text(spec_dir), "import os\nimport torch\nfrom torch_xla.core", "Prerequisites"))
    )
    assert done.returncode == 0, done.stderr
    assert "tensor([[2., 2., 2.]" in done.stdout
    assert done.stderr.count("torch_xla is not installed") <= 1


def test_the_complete_example_runs_as_printed(spec_dir, script, run):
    pytest.importorskip("torch")
    done = run(
        "run",
        "--json",
        script(
            snippet(
                seed_text(spec_dir), "import os\nimport torch", "Configuration\n", after="Complete Example\n\nimport os"
            )
        ),
    )
    assert done.returncode == 0, done.stderr
    assert "Validation passed!" in done.stderr
    assert json.loads(done.stdout)["launches"][0]["opcodes"]["activation"] == 1


def test_the_template_and_the_fragments_run(spec_dir, script, run):
    text = seed_text(spec_dir)
    template = snippet(text, "import nki\nimport nki.isa as nisa", "Complexity Assessment")
    fragment = snippet(text, "# MatMul result in PSUM", "Anti-pattern to avoid")
    body = "\n".join("    " + line for line in fragment.splitlines())
    host = f"""
import numpy as np
x = np.random.rand(64, 32).astype(np.float32)
assert np.allclose(my_kernel(x), np.exp(x), rtol=1e-5)

@nki.jit
def fused(a_hbm, b_hbm):
    P, F = 128, 512
    a = nl.load(a_hbm)
    b = nl.load(b_hbm)
    output_hbm = nl.ndarray((P, F), dtype=nl.float32, buffer=nl.shared_hbm)
{body}
    return output_hbm

from scipy.special import erf
a, b = np.random.rand(64, 128).astype(np.float32), np.random.rand(64, 512).astype(np.float32)
y = a.T @ b
assert np.allclose(fused(a, b), 0.5 * y * (1 + erf(y / 2 ** 0.5)), rtol=1e-4)
print("both hold")
"""
    done = run("run", script(template + host))
    assert done.returncode == 0, done.stderr
    assert "both hold" in done.stdout


def test_the_anti_pattern_is_refused(spec_dir, script, run):
    lines = snippet(seed_text(spec_dir), "nisa.dma_copy(dst=hbm_temp", "4. Maximize")
    host = f"""
import numpy as np, nki, nki.language as nl, nki.isa as nisa
@nki.jit
def k(x):
    psum_result = nl.zeros((4, 4), dtype=nl.float32, buffer=nl.psum)
    hbm_temp = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.hbm)
    sbuf_for_act = nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.sbuf)
    {lines.splitlines()[0]}
    return x
k(np.ones((4, 4), np.float32))
"""
    done = run("run", script(host))
    assert done.returncode == 1
    assert "B2-PSUM-DMA" in done.stderr
    assert "runpy" not in done.stderr


def test_simulate_on_made_inputs(cli, script):
    path = script(KERNEL)
    code, out, _ = cli("nki", "simulate", f"{path}:scale", "--input", "x=8x4:bfloat16", "--input", "factor=3", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["outputs"] == [{"shape": [8, 4], "dtype": "bfloat16"}]
    assert (document["target"], document["lnc"], document["instructions"]) == ("trn2", 1, 3)


def test_simulate_takes_defaults_from_inputs_toml(cli, script):
    path = script(KERNEL)
    (path.parent / "inputs.toml").write_text('[scale]\nx = {shape = [4, 4], dtype = "float16"}\ntarget = "trn1"\n')
    code, out, _ = cli("nki", "simulate", f"{path}:scale", "--json")
    assert code == 0
    assert json.loads(out)["target"] == "trn1"


@pytest.mark.parametrize(
    ("kernel", "options", "code", "text"),
    [
        ("wrong", ("--input", "x=4x4:float32"), 1, "partition dimension 129 exceeds maximum 128"),
        ("scale", (), 2, "no inputs for scale"),
        ("scale", ("--input", "x=4x4:float99"), 2, "unknown dtype"),
        ("scale", ("--input", "x=4xa:float32"), 2, "shape"),
        ("scale", ("--input", "x=4x4:float32", "--target", "trn9"), 2, "unknown target"),
        ("absent", ("--input", "x=4x4:float32"), 2, "no kernel 'absent'"),
    ],
)
def test_simulate_says_what_is_wrong(cli, script, kernel, options, code, text):
    got, _, err = cli("nki", "simulate", f"{script(KERNEL)}:{kernel}", *options)
    assert got == code, err
    assert text in err


def test_script_arguments_exit_codes_and_missing_files(script, run):
    path = script("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    done = run("run", path, "--flag", "value")
    assert done.returncode == 7
    assert "['--flag', 'value']" in done.stdout
    assert run("run", path.parent / "absent.py").returncode == 2
    importing = run("run", script("import nki\nimport does_not_exist\n", "other.py"))
    assert importing.returncode == 1
    assert "does_not_exist" in importing.stderr


def test_what_is_not_simulated_exits_with_3(script, run):
    done = run("run", script("import nki.compiler.kernel_builder as kb\nkb.compile_kernel(None)\n"))
    assert done.returncode == 3
    assert "not simulated yet: nki.compiler.kernel_builder.compile_kernel" in done.stderr


def test_trace_prints_a_line_for_each_instruction(script, run):
    path = script(KERNEL + "\nimport numpy as np\nscale(np.ones((2, 2), np.float32))\n")
    done = run("run", "--trace", path)
    assert done.returncode == 0
    assert [line.split()[2] for line in done.stderr.splitlines()] == ["dma", "vector", "dma"]


def test_the_import_hook_and_the_old_namespace(script):
    text = (
        KERNEL.replace("import nki\n", "import vibeserve.nki.shim\nimport nki\n")
        + """
import neuronxcc.nki.language as old, nki.typing as nt, nki.dtype, nki.isa.constants as c
from nki.isa import engine, reduce_cmd
from nki.language import NKIObject, bfloat16
from nki.collectives import ReplicaGroup
from nki.framework.kernel import Kernel
from nkilib.core.utils.kernel_helpers import div_ceil
import numpy as np
assert old.float32 is nl.float32 and c.oob_mode is nisa.oob_mode and isinstance(scale, Kernel)
assert nki.dtype.float8_e4m3 is nl.float8_e4m3 and div_ceil(5, 2) == 3 and nt.tensor[2, 3].shape == (2, 3)
assert (nki.simulate(scale)(np.ones((2, 2), np.float32)) == 2).all()
try:
    nki.benchmark
except AttributeError as error:
    print(error)
"""
    )
    done = subprocess.run([sys.executable, str(script(text))], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "it is gone" in done.stdout
    assert "neuronxcc.nki is the old name" in done.stderr


def test_the_pth_line_acts_only_where_asked():
    line = (Path(__file__).parents[2] / "src/vibeserve/nki/data/vibeserve_nki.pth").read_text()
    probe = f"{line.strip()}\nimport importlib.util\nprint(importlib.util.find_spec('nki') is not None)\n"
    for value, expected in (("1", "True"), ("0", "False")):
        done = subprocess.run(
            [sys.executable, "-c", probe],
            capture_output=True,
            text=True,
            env=os.environ | {"NKI_SIMULATOR": value},
            timeout=60,
            check=False,
        )
        assert done.stdout.strip() == expected, done.stderr


def test_the_production_fragments_run_as_printed(spec_dir, script, run):
    """The weight load and the tiled product of the specification, with the names that they lean on defined around them."""
    text = seed_text(spec_dir)
    load = snippet(text, "nisa.dma_copy(\n    dst=weight_tiles[weight_idx]", "# Here I (intermediate")
    product = snippet(text, "for i_tiles in TiledRange(I, dims._psum_fmax)", "Vector/Scalar tile sizing")

    def indented(code: str, depth: int) -> str:
        return "\n".join(" " * depth + line for line in code.rstrip().splitlines())

    host = f"""
import numpy as np, nki, nki.language as nl, nki.isa as nisa
from nkilib.core.utils.tiled_range import TiledRange

class Dims(nl.NKIObject):
    I: int
    _psum_fmax: int = 512
    column_tiling_dim: int = 32

@nki.jit
def projection(hidden_hbm, unsharded_weight):
    H0, T, H1 = hidden_hbm.shape
    I, h1_tiles, h_offset, weight_shard_offset, weight_idx, column_idx = unsharded_weight.shape[1], H1, 0, 0, 0, 1
    dims = Dims(I=I)
    hidden = nl.ndarray((H0, T, H1), dtype=hidden_hbm.dtype, buffer=nl.sbuf)
    nisa.dma_copy(dst=hidden, src=hidden_hbm)
    weight_tiles = [nl.ndarray((H0, h1_tiles, I), dtype=unsharded_weight.dtype, buffer=nl.sbuf)]
{indented(load, 4)}
    result_psums = [nl.ndarray((128, 512), dtype=nl.float32, buffer=nl.psum) for _ in range(2)]
    for column_tile_offset in range(h1_tiles):
{indented(product, 8)}
    out = nl.ndarray((T, I), dtype=nl.float32, buffer=nl.shared_hbm)
    for i_tiles in TiledRange(I, dims._psum_fmax):
        tile = nl.ndarray((T, i_tiles.size), dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_copy(dst=tile, src=result_psums[i_tiles.index][nl.ds(dims.column_tiling_dim * column_idx, T), 0 : i_tiles.size])
        nisa.dma_copy(dst=out[:, nl.ds(i_tiles.start_offset, i_tiles.size)], src=tile)
    return out

h, w = np.random.rand(128, 32, 4).astype(np.float32), np.random.rand(512, 600).astype(np.float32)
expected = np.einsum("ptj,pji->ti", h, w.reshape(128, 4, 600))
assert np.allclose(projection(h, w), expected, rtol=1e-4)
print("holds")
"""
    done = run("run", script(host))
    assert done.returncode == 0, done.stderr
    assert "holds" in done.stdout


def test_a_library_finds_no_torch_xla_where_a_script_does(script, run, tmp_path):
    """Libraries take an importable torch_xla for an accelerator; the stand-in is for the kernel's own script."""
    pytest.importorskip("torch")
    library = tmp_path / "site-packages" / "looks_for_an_accelerator.py"
    library.parent.mkdir()
    library.write_text("try:\n    import torch_xla.runtime\n    found = True\nexcept ImportError:\n    found = False\n")
    done = run(
        "run",
        script(
            f"import sys\nsys.path.insert(0, {str(library.parent)!r})\nimport looks_for_an_accelerator as library\n"
            "import torch_xla.core.xla_model as xm\nprint(library.found, xm.xla_device())\n"
        ),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False ")
