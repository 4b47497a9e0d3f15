"""One Python file as the rules see it: names resolved through imports, kernels told from host code, constants, tiles."""

from __future__ import annotations

import ast
import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

# What local names mean before any import is read: how every kernel file writes them.
USUAL = {"nl": "nki.language", "nisa": "nki.isa", "ncc": "nki.collectives"}
_ENTRY = (
    "nki.jit",
    "nki.trace",
    "nki.baremetal",
    "nki.benchmark",
    "nki.profile",
    "nki.simulate",
    "nki.simulate_kernel",
    "torch_neuronx.nki_jit",
)
_CREATORS = ("ndarray", "zeros", "ones", "full", "empty", "zeros_like", "empty_like", "rand", "load")
TILE_SIZE = {"pmax": 128, "psum_fmax": 512, "psum_bank_fmax": 512, "gemm_stationary_fmax": 128, "gemm_moving_fmax": 512}
DTYPE_BYTES = {
    "float32": 4, "int32": 4, "uint32": 4, "tfloat32": 4, "bfloat16": 2, "float16": 2, "int16": 2, "uint16": 2, "int8": 1,
    "uint8": 1, "bool_": 1, "float8_e4m3": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Tile:
    """A tensor that a kernel allocates under a plain name. Unknown sizes are None; dtype and buffer without 'nl.'."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str | None
    buffer: str | None
    node: ast.Call


@dataclass
class Source:
    """A parsed file."""

    path: Path
    text: str
    tree: ast.Module
    nodes: list[ast.AST] = field(default_factory=list)
    _parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    @classmethod
    def parse(cls, path: Path, text: str) -> Source:
        """Parse, or raise SyntaxError (or ValueError, RecursionError) as `ast` does."""
        tree = ast.parse(text, filename=str(path))
        source = cls(path, text, tree, [tree])
        for node in source.nodes:  # grows while it is read: every node, from the outside in
            for child in ast.iter_child_nodes(node):
                source._parents[child] = node
                source.nodes.append(child)
        return source

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around a node."""
        return self._parents.get(node)

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, from the inside out."""
        at = self._parents.get(node)
        while at is not None:
            yield at
            at = self._parents.get(at)

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Every call whose function has a name, with that name resolved."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Call) and (name := self.resolve(node.func)):
                found.append((node, name))
        return found

    @cached_property
    def names(self) -> list[tuple[ast.Attribute | ast.Name, str]]:
        """Every dotted name at its full length (and every imported plain one), resolved."""
        found: list[tuple[ast.Attribute | ast.Name, str]] = []
        for node in self.nodes:
            if isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and node.id in self.aliases):
                if isinstance(self._parents.get(node), ast.Attribute):
                    continue
                found.append((node, self.resolve(node) or ""))
        return found

    @cached_property
    def operations(self) -> list[ast.BinOp]:
        """Every arithmetic expression that is not within another."""
        return [
            node for node in self.nodes if isinstance(node, ast.BinOp) and not isinstance(self.parent(node), ast.BinOp)
        ]

    @cached_property
    def _loads(self) -> dict[str, list[ast.Name]]:
        found: dict[str, list[ast.Name]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(node)
        return found

    def uses(self, name: str, function: FunctionNode) -> list[ast.Name]:
        """Where a function (and what is defined in it) reads a name, in the order of the text."""
        last = function.end_lineno or function.lineno
        found = [node for node in self._loads.get(name, ()) if function.lineno <= node.lineno <= last]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What each imported local name stands for; both namespaces are spelled `nki.…`."""
        found = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for item in node.names:
                    local = item.asname or item.name.split(".")[0]
                    found[local] = item.name if item.asname else item.name.split(".")[0]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for item in node.names:
                    found[item.asname or item.name] = f"{node.module}.{item.name}"
        for local, usual in USUAL.items():
            found.setdefault(local, usual)
        return found

    @cached_property
    def from_imports(self) -> list[ast.ImportFrom]:
        """Every `from module import …` of another package."""
        return [node for node in self.nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]

    @cached_property
    def imported(self) -> set[str]:
        """The local names that an import of the file binds."""
        return {
            item.asname or item.name.split(".")[0]
            for node in self.nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
            for item in node.names
        }

    @cached_property
    def speaks_nki(self) -> bool:
        """Whether the file has to do with kernels at all."""
        names = [name for node in self.nodes for name in _imported(node)]
        return any(name.split(".")[0] in ("nki", "neuronxcc", "nkilib") for name in names)

    def resolve(self, node: ast.AST) -> str | None:
        """The full name of `nl.add`, `nki.isa.dma_copy`, …; None for what is no plain dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        name = ".".join([self.aliases.get(node.id, node.id), *reversed(parts)])
        return name.removeprefix("neuronxcc.") if name.startswith("neuronxcc.nki") else name

    @cached_property
    def functions(self) -> list[FunctionNode]:
        """Every function."""
        return [node for node in self.nodes if isinstance(node, FunctionNode)]

    @cached_property
    def entry_points(self) -> list[FunctionNode]:
        """Functions that are kernels themselves: decorated with nki.jit, or handed to it."""
        handed = {
            argument.id
            for call, name in self.calls
            if name in _ENTRY
            for argument in call.args[:1]
            if isinstance(argument, ast.Name)
        }
        return [node for node in self.functions if node.name in handed or self.decorators(node)]

    def decorators(self, function: FunctionNode) -> list[ast.expr]:
        """The decorators that make it a kernel."""
        found = []
        for item in function.decorator_list:
            target = item.func if isinstance(item, ast.Call) else item
            if self.resolve(target) in _ENTRY:
                found.append(item)
        return found

    @cached_property
    def kernel_code(self) -> set[FunctionNode]:
        """Kernels, what they call in this file, and functions that use instructions themselves."""
        by_name = {node.name: node for node in self.functions}
        chosen = set(self.entry_points)
        for call, name in self.calls:
            if name.startswith(("nki.isa.", "nki.collectives.")):
                owner = self.owner(call)
                if owner is not None:
                    chosen.add(owner)
        waiting = list(chosen)
        while waiting:
            function = waiting.pop()
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    helper = by_name.get(node.func.id)
                    if helper is not None and helper not in chosen and self._kernel_like(helper):
                        chosen.add(helper)
                        waiting.append(helper)
                elif isinstance(node, FunctionNode) and node not in chosen:
                    chosen.add(node)
                    waiting.append(node)
        return chosen

    def _kernel_like(self, function: FunctionNode) -> bool:
        return any(
            (self.resolve(node) or "").startswith(("nki.language.", "nki.isa."))
            for node in ast.walk(function)
            if isinstance(node, ast.Attribute)
        )

    def owner(self, node: ast.AST) -> FunctionNode | None:
        """The innermost function around a node."""
        return next((item for item in self.around(node) if isinstance(item, FunctionNode)), None)

    def in_kernel(self, node: ast.AST) -> bool:
        """Whether a node is kernel code (the kernel's own signature and decorators included)."""
        if isinstance(node, FunctionNode) and node in self.kernel_code:
            return True
        return any(item in self.kernel_code for item in self.around(node) if isinstance(item, FunctionNode))

    @cached_property
    def constants(self) -> dict[str, int]:
        """Names that are one whole number throughout the file."""
        found: dict[str, int] = {}
        dropped: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                name, value = node.targets[0].id, self._number(node.value, found)
                if value is None or found.get(name, value) != value:
                    dropped.add(name)
                else:
                    found[name] = value
            else:
                dropped |= set(_bound_names(node))
        return {name: value for name, value in found.items() if name not in dropped}

    def number(self, node: ast.AST | None) -> int | None:
        """The whole number that an expression is, where that can be told."""
        return self._number(node, self.constants) if node is not None else None

    def _number(self, node: ast.AST, known: dict[str, int]) -> int | None:
        match node:
            case ast.Constant(value=bool()):
                return None
            case ast.Constant(value=int() as value):
                return value
            case ast.Name(id=name):
                return known.get(name)
            case ast.Attribute(attr=attribute):
                return (
                    TILE_SIZE.get(attribute)
                    if (self.resolve(node) or "").startswith("nki.language.tile_size")
                    else None
                )
            case ast.BinOp(left=left, op=op, right=right):
                a, b = self._number(left, known), self._number(right, known)
                if a is None or b is None:
                    return None
                match op:
                    case ast.Add():
                        return a + b
                    case ast.Sub():
                        return a - b
                    case ast.Mult():
                        return a * b
                    case ast.FloorDiv():
                        return a // b if b else None
        return None

    @cached_property
    def tiles(self) -> dict[tuple[FunctionNode | None, str], Tile]:
        """Tensors that are allocated under a plain name, once, by function and name."""
        found: dict[tuple[FunctionNode | None, str], Tile] = {}
        twice: set[tuple[FunctionNode | None, str]] = set()
        for node in self.nodes:
            if not (isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)):
                continue
            key = (self.owner(node), node.targets[0].id)
            tile = self._tile(node.targets[0].id, node.value)
            if tile is None or key in found:
                twice.add(key)
            else:
                found[key] = tile
        return {key: tile for key, tile in found.items() if key not in twice}

    @cached_property
    def _tuples(self) -> dict[str, ast.expr]:
        """Names that are bound once in the file, to a tuple that is written out (`SHAPE = (128, 512)`)."""
        times: dict[str, int] = {}
        found: dict[str, ast.expr] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                times[node.id] = times.get(node.id, 0) + 1
            elif isinstance(node, ast.arg):
                times[node.arg] = times.get(node.arg, 0) + 2
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                found |= {item.id: node.value for item in node.targets if isinstance(item, ast.Name)}
        return {name: value for name, value in found.items() if times.get(name) == 1}

    def _tile(self, name: str, value: ast.expr) -> Tile | None:
        if not isinstance(value, ast.Call):
            return None
        full = self.resolve(value.func) or ""
        if not full.startswith("nki.language.") or full.rpartition(".")[2] not in _CREATORS:
            return None
        shape_node = value.args[0] if value.args else self.keyword(value, "shape")
        if isinstance(shape_node, ast.Name):
            shape_node = self._tuples.get(shape_node.id, shape_node)
        shape: tuple[int | None, ...] = ()
        if isinstance(shape_node, ast.Tuple | ast.List):
            shape = tuple(self.number(item) for item in shape_node.elts)
        dtype = self.keyword(value, "dtype") or (value.args[1] if len(value.args) > 1 else None)
        buffer = self.keyword(value, "buffer")
        return Tile(name, shape, self.short(dtype), self.short(buffer) or ("sbuf" if buffer is None else None), value)

    def short(self, node: ast.AST | None) -> str | None:
        """'float32' for nl.float32, 'psum' for nl.psum or 'psum'."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        name = self.resolve(node) if node is not None else None
        return name.rpartition(".")[2] if name and name.startswith(("nki.language.", "numpy.")) else None

    def tile_of(self, node: ast.AST | None) -> Tile | None:
        """The tile behind an operand: `t`, `t[…]`, `t.ap(…)`, …."""
        owner = self.owner(node) if node is not None else None
        at = node
        while isinstance(at, ast.Subscript | ast.Attribute | ast.Call):
            at = at.func if isinstance(at, ast.Call) else at.value
        if not isinstance(at, ast.Name):
            return None
        while True:
            tile = self.tiles.get((owner, at.id)) or self.handed.get((owner, at.id))
            if tile is not None or owner is None:
                return tile
            owner = self.owner(owner)

    @cached_property
    def handed(self) -> dict[tuple[FunctionNode | None, str], Tile]:
        """What a helper's parameters are, where every call of it hands over tiles that agree; what they do not agree in is None."""
        by_name = {node.name: node for node in self.functions if node not in self.entry_points}
        given: dict[tuple[FunctionNode | None, str], list[Tile | None]] = {}
        for call, name in self.calls:
            helper = by_name.get(name)
            if helper is None or not isinstance(call.func, ast.Name):
                continue
            known = [item.arg for item in (*helper.args.posonlyargs, *helper.args.args)]
            starred = any(isinstance(item, ast.Starred) for item in call.args)
            words = dict(zip(known, () if starred else call.args, strict=False))
            words |= {item.arg: item.value for item in call.keywords if item.arg}
            for word in known:
                value = words.get(word)
                tile = self.tiles.get((self.owner(call), value.id)) if isinstance(value, ast.Name) else None
                given.setdefault((helper, word), []).append(tile)
        bound = {
            (self.owner(node), node.id)
            for node in self.nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        whole = {key: [tile for tile in tiles if tile is not None] for key, tiles in given.items() if None not in tiles}
        return {key: _common(key[1], tiles) for key, tiles in whole.items() if key not in bound}

    def in_old_form(self, node: ast.AST) -> bool:
        """Whether a node is, or is an argument of, an instruction that gives its result back: `y = nisa.f(a)`, `p += nisa.f(a, b)`."""
        call = node if isinstance(node, ast.Call) else self.parent(node)
        if not isinstance(call, ast.Call) or not (self.resolve(call.func) or "").startswith("nki.isa."):
            return False
        around = self.parent(call)
        result = isinstance(around, ast.Assign | ast.AugAssign) and around.value is call
        return result and self.keyword(call, "dst") is None

    @staticmethod
    def keyword(call: ast.Call, name: str) -> ast.expr | None:
        """The value of a keyword of a call."""
        return next((item.value for item in call.keywords if item.arg == name), None)

    def argument(self, call: ast.Call, name: str, position: int) -> ast.expr | None:
        """An argument by keyword or position."""
        found = self.keyword(call, name)
        if found is None and len(call.args) > position and not any(isinstance(item, ast.Starred) for item in call.args):
            found = call.args[position]
        return found

    def kernel_calls(self, *patterns: str) -> Iterator[tuple[ast.Call, str]]:
        """Calls within kernel code whose full name fits one of the patterns (`nki.isa.*`)."""
        for call, name in self.calls:
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns) and self.in_kernel(call):
                yield call, name


def _common(name: str, tiles: list[Tile]) -> Tile:
    """A tile of this name that is what all of the tiles are; None (or no shape) where they differ."""
    first = tiles[0]
    same_rank = all(len(tile.shape) == len(first.shape) for tile in tiles)
    shape = (
        tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*(tile.shape for tile in tiles), strict=True))
        if same_rank
        else ()
    )
    dtype = first.dtype if len({tile.dtype for tile in tiles}) == 1 else None
    buffer = first.buffer if len({tile.buffer for tile in tiles}) == 1 else None
    return Tile(name, shape, dtype, buffer, first.node)


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [item.name for item in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module]
    return []


def _bound_names(node: ast.AST) -> list[str]:
    """Names that a node binds by other means than one plain assignment."""
    match node:
        case ast.For(target=target) | ast.comprehension(target=target):
            return [item.id for item in ast.walk(target) if isinstance(item, ast.Name)]
        case ast.AugAssign(target=ast.Name(id=name)) | ast.NamedExpr(target=ast.Name(id=name)):
            return [name]
        case ast.arg(arg=name):
            return [name]
        case ast.Assign(targets=targets):
            return [
                item.id
                for target in targets
                for item in ast.walk(target)
                if isinstance(item, ast.Name) and len(targets) > 1
            ]
    return []
