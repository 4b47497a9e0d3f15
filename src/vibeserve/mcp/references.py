"""The references of skills that are made from the same data as the documentation lookup, when skills are installed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from vibeserve import knowledge
from vibeserve.base.paths import packaged
from vibeserve.knowledge import catalogue

_LIBRARY = {
    "nkilib/core/tiled-range.md": ("tiled_range", "Tiles of a dimension with a remainder"),
    "nkilib/core/kernel-helpers.md": ("helpers", "Arithmetic of sizes, cores and dtypes"),
    "nkilib/core/tensor-view.md": ("tensor_view", "Views of a tensor without copies"),
    "nkilib/core/allocator.md": ("allocator", "SBUF by hand: stack and heap"),
    "nkilib/core/tile-info.md": ("tile_info", "What is known of a tiled dimension"),
    "nkilib/ops/moving.md": ("moving", "Broadcasts and copies between partitions"),
    "nkilib/types/types.md": ("types", "Enums"),
    "nkilib/types/logging.md": ("logging", "Logging from kernels"),
    "nkilib/patterns/normalization.md": ("norms", "RMSNorm and LayerNorm"),
    "nkilib/patterns/quantization.md": ("quantization", "Quantisation"),
    "nkilib/patterns/layout.md": ("layout", "Conversion of layouts"),
    "nkilib/patterns/moe-routing.md": ("routing", "Routing of a mixture of experts"),
}
_SUBKERNELS = ("norms",)


def generated(skill: str) -> dict[str, bytes]:
    """The made files of a skill by their path in it; none for a skill that has none."""
    maker = _MAKERS.get(skill)
    return {path: text.encode() for path, text in maker()} if maker is not None else {}


_NAMED = re.compile(r"(?<![\w/])(?:docs/[\w-]+\.md|examples/(?:kernels|roofline)/[\w/-]+\.(?:py|toml))\b")
_LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?:)[^)]*\)")


def named_files(pages: Iterable[bytes]) -> dict[str, bytes]:
    """The pages of the project's documentation and the examples that a skill's pages name, by their path in it. Links of such a
    page to other pages become plain text: only what a skill itself names goes with it."""
    wanted = {name for page in pages for name in _NAMED.findall(page.decode("utf-8", errors="replace"))}
    found = {}
    for name in sorted(wanted):
        kind, _, rest = name.partition("/")
        path = packaged(kind) / rest
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            found[name] = (_LINK.sub(r"\1", text) if kind == "docs" else text).encode()
    return found


def _debugging() -> Iterator[tuple[str, str]]:
    rows: dict[str, list[str]] = {}
    for entry in knowledge.errors().values():
        fix = entry.fixes[0] if entry.fixes else entry.meaning
        rows.setdefault(entry.category or entry.area, []).append(
            f"| `{entry.code}` | {_cell(entry.title)} | {_cell(fix)} |"
        )
    parts = ["# Error codes", "`vibeserve docs error CODE` shows one with causes and every fix."]
    for category, lines in sorted(rows.items()):
        parts += [f"## {category}", "\n".join(["| code | what | first thing to do |", "|---|---|---|", *lines])]
    yield "references/compiler-error-codes.md", _joined(parts)
    parts = ["# Flags and variables", "`vibeserve docs search NAME` shows one with its values and cautions."]
    for kind in ("compiler flag", "environment variable"):
        lines = [
            f"| `{flag.name}` | {_cell(flag.meaning)} |" for flag in knowledge.flags().values() if flag.kind == kind
        ]
        parts += [f"## {kind.capitalize()}s", "\n".join(["| name | what it does |", "|---|---|", *lines])]
    yield "references/compiler-flags.md", _joined(parts)
    from vibeserve.knowledge import catalogue

    facts = catalogue.load("artifacts.yaml")
    keep = [f"| `{_cell(item['set'])}` | {_cell(item['keeps'])} |" for item in facts["keep"]]
    places = [f"| `{_cell(item['path'])}` | {_cell(item['holds'])} |" for item in facts["places"]]
    files = [f"| `{_cell(pattern)}` | {_cell(what)} |" for pattern, what in facts["files"]]
    yield (
        "references/compiler-artifacts.md",
        _joined(
            [
                "# What a compile leaves behind",
                "`vibeserve nki doctor --artifacts` prints the first two tables.",
                "\n".join(["| set | keeps |", "|---|---|", *keep]),
                "\n".join(["| where | what lies there |", "|---|---|", *places]),
                "\n".join(["| file (regular expression) | what it is |", "|---|---|", *files]),
                "`vibeserve nki artifacts DIR` reads a work directory: errors, warnings, passes with their times, memory, NEFFs.",
            ]
        ),
    )


def _documentation() -> Iterator[tuple[str, str]]:
    lines = [
        f"| `{symbol.short}` | {symbol.kind} | {_cell(symbol.computes.splitlines()[0] if symbol.computes else '')} |"
        for symbol in knowledge.symbols().values()
    ]
    yield (
        "references/indices/symbol-lookup.md",
        _joined(
            [
                "# Every symbol",
                "`vibeserve docs symbol NAME` shows one.",
                "\n".join(["| name | kind | what it does |", "|---|---|---|", *lines]),
            ]
        ),
    )
    groups: dict[str, list[str]] = {}
    for task in knowledge.tasks():
        uses = ", ".join(f"`{name}`" for name in task.apis)
        groups.setdefault(task.group, []).append(f"| {_cell(task.want)} | {uses} | {_cell(task.notes)} |")
    parts = ["# From what you want to what does it", "`vibeserve docs task WORDS` ranks these and the operations."]
    for group, rows in sorted(groups.items()):
        parts += [f"## {group}", "\n".join(["| to | use | mind |", "|---|---|---|", *rows])]
    yield "references/indices/task-routing.md", _joined(parts)
    parts = ["# Tables", "`vibeserve docs search WORDS` finds these too."]
    parts += [f"## {table.title}\n\n{table.markdown()}" for table in knowledge.all_tables()]
    yield "references/tables.md", _joined(parts)
    kinds: dict[str, list[str]] = {}
    for page in knowledge.built_in():
        kinds.setdefault(page.kind, []).append(page.title)
    parts = [
        "# Table of contents",
        "`vibeserve docs toc` is the same, and `vibeserve docs search WORDS` finds pages by words.",
    ]
    for kind, titles in sorted(kinds.items()):
        parts += [f"## {kind} ({len(titles)})", "\n".join(f"- {' '.join(title.split())}" for title in sorted(titles))]
    yield "references/indices/hierarchical-toc.md", _joined(parts)


def _schema() -> Iterator[tuple[str, str]]:
    from vibeserve.profiles.schema import tables

    for name, table in sorted(tables().items()):
        lines = [
            f"| `{c.name}` | {c.type}{f', {c.unit}' if c.unit else ''} | {_cell(c.meaning)} | {_cell(c.pitfall or '')} |"
            for c in table.columns.values()
        ]
        notes = "\n".join(f"- {note}" for note in table.notes)
        rows = "\n".join(["| column | type | what it is | mind |", "|---|---|---|---|", *lines])
        yield f"references/schema/{name}.md", _joined([f"# {name}", table.about, rows, notes])


def _writing() -> Iterator[tuple[str, str]]:
    from vibeserve.nki.lint.rules import rules

    lines = [f"| `{rule.id}` | {_cell(rule.message)} | {_cell(rule.instead)} |" for rule in rules().values()]
    yield (
        "references/nki-language-constraint.md",
        _joined(
            [
                "# What a kernel may not do, and what to write instead",
                "`vibeserve nki lint PATHS` finds these; `--fix` makes the mechanical changes. `--nki-version` chooses the version.",
                "\n".join(["| rule | what | instead |", "|---|---|---|", *lines]),
            ]
        ),
    )
    parts = ["# PyTorch and NumPy as instructions", "Each is run against its meaning in NumPy by our tests."]
    for operation in catalogue.operations():
        names = ", ".join(f"`{name}`" for name in (*operation.torch, *operation.numpy))
        parts.append(
            f"## {operation.id}\n\n{names}; {operation.engine} engine. {operation.note}\n\n```python\n{operation.code.rstrip()}\n```"
        )
    yield "references/api-translation.md", _joined(parts)
    from vibeserve.nki.scaffold.new import kernel_text

    yield (
        "references/kernel-template.md",
        _joined(
            [
                "# A kernel to start from",
                "`vibeserve nki new SLUG --from elementwise` writes it with reference, inputs, test and device script.",
                f"```python\n{kernel_text('my-kernel', 'elementwise', 'paste')}```",
            ]
        ),
    )
    yield "references/common-patterns.md", _patterns()
    yield "examples/simple_matmul.py", kernel_text("simple-matmul", "matmul", "paste")
    yield "examples/associative_scan.py", kernel_text("associative-scan", "scan", "paste")
    yield from _library()


def _patterns() -> str:
    from vibeserve.nki.scaffold.new import KINDS, kernel_text

    parts = [
        "# Whole kernels of the common kinds",
        "Each passes its test as made by `vibeserve nki new SLUG --from KIND`.",
    ]
    for kind in KINDS:
        body = kernel_text("my-kernel", kind, "import")
        parts.append(f"## {kind}\n\n```python\n{body[body.index('@nki.jit') :]}```")
    return _joined(parts)


def _library() -> Iterator[tuple[str, str]]:
    """A page for each module of the kernel library, and its source."""
    import ast

    import vibeserve.nki.lib as library

    folder = Path(library.__file__).parent
    for path, (module, title) in _LIBRARY.items():
        text = (folder / f"{module}.py").read_text(encoding="utf-8")
        tree = ast.parse(text)
        parts = [
            f"# {title}",
            ast.get_docstring(tree) or "",
            f"From `vibeserve.nki.lib`; source: `core/utils/{module}.py`.",
        ]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                parts.append(f"## {node.name}\n\n{_signature(node)}\n\n{ast.get_docstring(node) or ''}")
        yield f"references/{path}", _joined(parts)
        yield f"references/nkilib/core/utils/{module}.py", text
    for module in _SUBKERNELS:
        yield f"references/nkilib/core/subkernels/{module}.py", (folder / f"{module}.py").read_text(encoding="utf-8")


def _signature(node: object) -> str:
    import ast

    if isinstance(node, ast.FunctionDef):
        return f"`{node.name}({ast.unparse(node.args)})`"
    assert isinstance(node, ast.ClassDef)
    methods = [
        f"- `{item.name}({ast.unparse(item.args)})`: {(ast.get_docstring(item) or '').splitlines()[0] if ast.get_docstring(item) else ''}"
        for item in node.body
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")
    ]
    return "\n".join(methods)


def _serving() -> Iterator[tuple[str, str]]:
    for path in sorted((*knowledge.serving_notes(), *knowledge.follow_ups())):
        yield f"references/{path.parent.name}/{path.name}", path.read_text(encoding="utf-8")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _joined(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


_MAKERS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "neuron-nki-debugging": _debugging,
    "neuron-nki-docs": _documentation,
    "neuron-nki-profile-querying": _schema,
    "neuron-nki-writing": _writing,
    "serving-systems": _serving,
}
