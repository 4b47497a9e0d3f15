"""Write docs/kernels.md: the example kernels, one line each, from their own docstrings and inputs.toml.

`python tools/kernel_docs.py` writes it; `--check` exits 1 where the file is not current.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "kernels.md"
HEAD = """# Example kernels

<!-- made by tools/kernel_docs.py -->

Each folder of `examples/kernels/` holds `kernel.py`, a NumPy `reference.py`, `inputs.toml` (default inputs, target and
cores) and a README with counts by hand. Every kernel runs without a device:

```
vibeserve nki simulate examples/kernels/softmax/kernel.py:softmax
vibeserve nki simulate examples/kernels/softmax/kernel.py:softmax --input x=300x512:float32 --target trn1
```

They use the kernel library, `vibeserve.nki.lib`; `python -m vibeserve.nki.lib > nki_lib.py` prints it as one file to put
beside a kernel that leaves this project.

"""


def kernels(file: Path) -> dict[str, str]:
    """The kernels of a file and the first line of their docstrings."""
    found = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(d).startswith("nki.jit") for d in node.decorator_list):
            found[node.name] = (ast.get_docstring(node) or "").split("\n")[0]
    return found


def page() -> str:
    """The whole page."""
    lines = ["| example | kernel | what it does | default target, cores |", "|---|---|---|---|"]
    count = 0
    for file in sorted((ROOT / "examples" / "kernels").glob("*/kernel.py")):
        inputs = tomllib.loads((file.parent / "inputs.toml").read_text(encoding="utf-8"))
        slug = file.parent.name
        for name, about in kernels(file).items():
            case = inputs.get(name, {})
            text = about.replace("|", "\\|")
            link = f"[{slug}](../examples/kernels/{slug}/README.md)"
            lines.append(f"| {link} | `{name}` | {text} | {case.get('target', 'trn2')}, {case.get('lnc', 1)} |")
            count += 1
    return f"{HEAD}{count} kernels:\n\n" + "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or check it."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/kernels.md is not current: python tools/kernel_docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
