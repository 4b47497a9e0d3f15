"""Names that kernel files import: there, gone with a hint, or named as not simulated; never a bare "cannot import"."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vibeserve.nki.language as nl
import vibeserve.nki.shim  # noqa: F401
from vibeserve.nki import KernelError, NotSimulatedError, simulate

THERE = (
    "import nki.isa, nki.language, nki.collectives, nki.typing, nki.meta, nki.compiler, neuronxcc.nki.typing",
    "import neuronxcc.nki.language, neuronxcc.nki.isa, neuronxcc.nki.compiler",
    "from nki.isa.constants import oob_mode, dge_mode, matmul_perf_mode, engine, reduce_cmd",
    "from nki.isa import core_barrier, sendrecv, dma_engine, engine, reduce_cmd, dge_mode, oob_mode, constants",
    "from nki.collectives import ReplicaGroup",
    "import nki.isa as nisa; nisa.constants.oob_mode.skip",
    "import nki; nki.isa.constants.engine, nki.language.float32, nki.typing.tensor, nki.collectives.ReplicaGroup",
    "import neuronxcc; neuronxcc.nki.language.float32",
    "from neuronxcc import nki; nki.isa.constants.dge_mode",
    "import torch_neuronx",
    "from nki.framework.kernel import Kernel",
    "from nki.framework.compiled import CompileKernel",
    "from nki.compile import GenericKernel",
    "from nki.compiler.backends.neuron.FrameworkKernel import UnifiedKernel",
    "from nki.compiler.kernel_builder import compile_kernel",
    "from nkilib.core.utils import common_types, kernel_helpers, tensor_view, tiled_range, cross_partition_copy",
    "from nkilib.core.utils.kernel_helpers import kernel_assert, resolve_dtype_to_nki, reduce, PSUM_BANK_SIZE",
    "from nkilib.core.utils.allocator import Logger, BufferManager, align_to, num_elts, create_auto_alloc_manager",
)
GONE = (
    ("from nki.language import par_dim", "dimension 0"),
    ("from neuronxcc.nki.language import mgrid", "slices"),
    ("from nki.isa import tensor_copy_dynamic_src", "scalar_offset"),
    ("from nki import benchmark", "timing"),
    ("from neuronxcc.nki.compiler import sb_mod", "address="),
)
NOT_SIMULATED = (
    ("from nki.compiler.driver import CompileOptions", "nki.compiler.driver"),
    ("import nki.compiler.frontend", "nki.compiler.frontend"),
    ("import nkilib.core.mlp.mlp_parameters", "nkilib.core.mlp"),
    ("import nkilib.experimental.transformer.transformer_tkg", "nkilib.experimental"),
    ("from nkilib.core.utils.mx_torch_common import quantize_to_mx", "nkilib.core.utils.mx_torch_common"),
    ("from nkilib.core.utils.modular_allocator import ModularAllocator", "nkilib.core.utils.modular_allocator"),
    ("from nkilib.core.utils.tree_logger import TreeLogger", "nkilib.core.utils.tree_logger"),
    ("from nkilib.core.utils.logging import LogLevel", "nkilib.core.utils.logging.LogLevel"),
    ("import neuronxcc.nki._private_kernels.attention", "neuronxcc.nki._private_kernels"),
)


@pytest.mark.parametrize("line", THERE)
def test_is_there(line: str) -> None:
    exec(line, {})


@pytest.mark.parametrize(("line", "instead"), GONE)
def test_an_import_of_a_gone_name_says_what_to_write(line: str, instead: str) -> None:
    with pytest.raises(ImportError, match=instead) as caught:
        exec(line, {})
    assert "it is gone" in str(caught.value)


@pytest.mark.parametrize(("line", "name"), NOT_SIMULATED)
def test_what_has_no_documented_meaning_is_not_simulated(line: str, name: str) -> None:
    with pytest.raises(NotSimulatedError, match=f"not simulated yet: {name}") as caught:
        exec(compile(line, "kernel.py", "exec"), {})
    assert isinstance(caught.value, ImportError)  # kernels guard such imports with "except ImportError"
    assert str(caught.value.place) == "kernel.py:1"


def test_a_probe_is_answered_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch_neuronx", raising=False)
    assert importlib.util.find_spec("nki.dispatch") is None
    assert importlib.util.find_spec("nkilib.core.mlp") is None
    assert importlib.util.find_spec("torch_neuronx") is None
    with pytest.raises(NotSimulatedError, match=r"torch_neuronx\.trace"):
        importlib.import_module("torch_neuronx").trace  # noqa: B018
    assert not hasattr(importlib.import_module("nki.compiler.kernel_builder"), "isa")
    with pytest.raises(NotSimulatedError, match=r"kernel_builder\.isa"):
        importlib.import_module("nki.compiler.kernel_builder").isa  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'foo'"):
        exec("from nki.language import foo", {})


def test_a_folder_called_nki_does_not_hide_the_language(tmp_path: Path) -> None:
    (tmp_path / "nki").mkdir()
    (tmp_path / "script.py").write_text("import vibeserve.nki.shim, nki\nprint(nki.jit.__module__)\n")
    said = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "vibeserve.nki.kernel"


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("astype", "nl.copy"), ("T", "nc_transpose"), ("unsqueeze", "expand_dim"), ("get_view", "TensorView"),
        ("is_sbuf", r"nl\.is_sbuf"), ("transpose", "permute"),
    ],
)  # fmt: skip
def test_array_methods_on_a_tensor_name_the_replacement(name: str, instead: str) -> None:
    def kernel(x):  # type: ignore[no-untyped-def]
        assert not hasattr(x, name)
        getattr(x, name)

    with pytest.raises(AttributeError, match=f"no attribute '{name}'; .*{instead}"):
        simulate(kernel)(np.zeros((4, 4), np.float32))


@pytest.mark.parametrize("key", [(slice(None), None), (None, slice(None)), (Ellipsis, None), None])
def test_new_axes_are_refused(key: object) -> None:
    def kernel(x):  # type: ignore[no-untyped-def]
        tile = nl.load(x)
        tile[key]

    with pytest.raises(KernelError, match=r"None in an index(.|\n)*expand_dim"):
        simulate(kernel)(np.zeros((4, 4), np.float32))


def test_a_kernel_file_that_imports_what_is_not_simulated_ends_with_three(tmp_path: Path) -> None:
    from vibeserve.base.errors import MissingError
    from vibeserve.nki.running import load_kernel

    file = tmp_path / "kernel.py"
    file.write_text("import nki\nfrom nkilib.core.mlp.mlp import mlp\n")
    with pytest.raises(MissingError, match=r"not simulated yet: nkilib.core.mlp \(at .*kernel.py:2\)") as caught:
        load_kernel(f"{file}:mlp")
    assert caught.value.exit_code == 3
