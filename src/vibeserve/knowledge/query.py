"""What a question says: exact names in it, and its words with their synonyms, as an FTS5 expression."""

from __future__ import annotations

import re

_STOP = frozenset(
    [
        "a",
        "an",
        "the",
        "is",
        "are",
        "was",
        "be",
        "do",
        "does",
        "did",
        "how",
        "can",
        "could",
        "should",
        "would",
        "i",
        "my",
        "we",
        "our",
        "you",
        "your",
        "it",
        "its",
        "in",
        "on",
        "of",
        "to",
        "for",
        "from",
        "with",
        "by",
        "at",
        "as",
        "and",
        "or",
        "not",
        "this",
        "that",
        "what",
        "which",
        "when",
        "where",
        "why",
        "who",
        "there",
        "here",
        "have",
        "has",
        "had",
        "get",
        "got",
        "use",
        "used",
        "using",
        "into",
        "out",
        "about",
        "than",
        "then",
        "them",
        "they",
        "one",
        "two",
        "if",
        "so",
        "but",
        "just",
        "any",
        "some",
        "all",
        "more",
        "most",
        "me",
        "will",
        "no",
        "yes",
    ]
)
# Words of one meaning in this field: a question in one finds a page written in another.
_SYNONYMS = (
    ("slow", "performance", "optimize", "latency"),
    ("memory", "oom", "sbuf", "psum", "hbm"),
    ("matmul", "matrix multiplication", "nc_matmul", "gemm"),
    ("load", "dma_copy", "copy"),
    ("store", "dma_copy"),
    ("transpose", "nc_transpose", "dma_transpose"),
    ("sum", "reduce", "tensor_reduce"),
    ("loop", "affine_range", "range", "fori_loop"),
    ("wrong", "mismatch", "accuracy", "numerics"),
    ("nan", "uninitialised", "uninitialized"),
    ("profile", "profiling", "neuron-explorer", "ntff"),
    ("environment", "variable", "flag"),
    ("trainium3", "trn3", "gen4"),
    ("trainium2", "trn2", "gen3"),
    ("trainium", "trn1", "gen2"),
    ("lnc", "logical", "neuroncore"),
    ("old", "deprecated", "removed", "migration"),
    ("fp8", "float8", "e4m3"),
    ("mask", "bounds", "ragged", "remainder"),
    ("broadcast", "partition_broadcast", "stream_shuffle"),
    ("install", "setup", "environment"),
    ("cores", "lnc", "collectives"),
    ("source", "debug info", "lines"),
    ("cache", "stale"),
    ("kernel", "nki"),
)
_NAME = re.compile(
    r"--?[a-zA-Z][\w-]+|[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)+|[A-Z][A-Z0-9_]{3,}|[a-z][a-z0-9]*(?:_[a-z0-9]+)+|[A-Z]{3,4}[0-9]{3}"
)


_EXACT, _LAST_WORD = 1000.0, 8.0


def names_in(text: str) -> dict[str, float]:
    """Words of a question that may be exact names (codes, symbols, flags, variables; the whole question among them), with
    what finding one is worth: much, but little for the last part of a dotted name, which may be another library's."""
    found = dict.fromkeys([text.strip(), *_NAME.findall(text)], _EXACT)
    for name in list(found):
        if "." in name:
            found.setdefault(name.rpartition(".")[2], _LAST_WORD)
    return {name.strip("`'\"?.,:()"): weight for name, weight in found.items()}


def expand(text: str) -> str:
    """An FTS5 expression: any of the words, or of their synonyms."""
    words = [word.lower() for word in re.findall(r"[\w-]{2,}", text)]
    chosen = [word for word in words if word not in _STOP] or words
    terms: list[str] = []
    for word in chosen:
        terms.append(_term(word))
        if "_" in word:
            terms += [_term(part) for part in word.split("_") if len(part) > 2]
    for group in _SYNONYMS:
        if any(re.search(rf"\b{re.escape(item)}s?\b", text.lower()) for item in group[:2]):
            terms += [_term(item) for item in group]
    return " OR ".join(dict.fromkeys(term for term in terms if term))


def _term(word: str) -> str:
    cleaned = re.sub(r"[^\w\s-]", " ", word).replace("-", " ").strip()
    return f'"{cleaned}"' if cleaned else ""
