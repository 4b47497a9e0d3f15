"""The bundle's benchmark for servers whose streams end with a finish reason but without [DONE]: the same in all else.

python lenient_client.py BENCHMARK.PY [its options]
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def main() -> int:
    """Load the benchmark, let a finish reason stand for [DONE], run it."""
    path = Path(sys.argv[1])
    sys.argv = [str(path), *sys.argv[2:]]
    spec = importlib.util.spec_from_file_location("lenient_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = benchmark
    spec.loader.exec_module(benchmark)
    strict = benchmark._check

    def check(call, exact):  # type: ignore[no-untyped-def]
        call.done = call.done or call.finish_reason is not None
        return strict(call, exact)

    benchmark._check = check
    return int(benchmark.main() or 0)


if __name__ == "__main__":
    sys.exit(main())
