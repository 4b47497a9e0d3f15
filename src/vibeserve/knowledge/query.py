"""What a question says: exact names in it, and its words with their synonyms, as an FTS5 expression."""

from __future__ import annotations

import re
from functools import cache

from vibeserve.knowledge import catalogue

_STOP = frozenset([
    "a", "an", "the", "is", "are", "was", "be", "do", "does", "did", "how", "can", "could", "should", "would", "i", "my",
    "we", "our", "you", "your", "it", "its", "in", "on", "of", "to", "for", "from", "with", "by", "at", "as", "and", "or",
    "not", "this", "that", "what", "which", "when", "where", "why", "who", "there", "here", "have", "has", "had", "get",
    "got", "use", "used", "using", "into", "out", "about", "than", "then", "them", "they", "one", "two", "if", "so", "but",
    "just", "any", "some", "all", "more", "most", "me", "will", "no", "yes", "look", "looks", "like", "works", "work",
    "know", "way", "want", "wants", "need", "needs", "possible", "please", "going", "although", "really", "actually",
])  # fmt: skip
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
    ("timer", "measure", "time", "latency"),
    ("benchmark", "measure", "latency"),
    ("log", "logfile", "artifacts", "log-neuron-cc"),
    ("restrict", "visible", "cores"),
    ("share work", "split", "lnc", "program_id"),
    ("published", "sample", "old", "migration"),
    ("first token", "ttft", "benchmark"),
    ("turns on", "enable"),
    ("turn on", "enable"),
    ("framework", "model", "traced"),
    ("verifier", "check"),
    ("loop carried", "dependencies", "order"),
    ("kernel", "nki"),
)
_NAME = re.compile(
    r"--?[a-zA-Z][\w-]+|[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)+|[A-Z][A-Z0-9_]{3,}|[a-z][a-z0-9]*(?:_[a-z0-9]+)+|[A-Z]{3,4}[0-9]{3}"
)


_EXACT, _CALL, _LAST_WORD, _NUMBERED = 1000.0, 500.0, 8.0, 14.0
# A call of another library: torch.x, nn.functional.x, F.x, Tensor.x, np.x, jnp.x, jax.lax.x, scipy.x.
_ELSEWHERE = re.compile(
    r"\b(?:torch|Tensor|nn|F|np|numpy|jnp|jax|lax|scipy|tf|tensorflow|aten)(?:\.[A-Za-z_]\w*)+", re.I
)
# Words of either half of the documentation: kernels, and serving systems. A question with words of one alone is about that one.
_OF_KERNELS = re.compile(
    r"\b(kernels?|nki|nisa|nl|trn\d?|trainium\d?|inf2|neuron\w*|tiles?|sbuf|psum|partitions?|dma\w*|nc_\w+|compiler?|compile|ntff|neff|engines?)\b"
)
_OF_SERVING = re.compile(
    r"\b(serv\w+|requests?|tokens?|prompts?|batch\w*|vllm|sglang|lora|adapters?|gpu|h100|cuda\w*|speculative|decod\w+|prefill|sampling|throughput|openai|endpoint)\b"
)
_HOW = re.compile(r"\s*(how (do|to|can|should)|can i|what is the (best|right) way|fastest way)\b")
_WHAT = re.compile(
    r"^\s*what('s| is| are) (a |an |the )?[\w .-]{1,24}\??\s*$|\b(difference between|meaning of|stands? for)\b"
)
_VERSION, _STATUS = re.compile(r"\b0\.[1-6]\b"), re.compile(r"\bstatus[ :=]*(\d{1,4})\b", re.I)


def names_in(text: str) -> dict[str, float]:
    """Words of a question that may be exact names (codes, symbols, flags, variables; the whole question among them), with
    what finding one is worth: much, but little for the last part of a dotted name, which may be another library's."""
    found = dict.fromkeys([text.strip(), *_NAME.findall(text)], _EXACT)
    for name in list(found):
        if name.isalpha() and name.isupper() and name != text.strip():
            found[name] = _LAST_WORD  # SBUF, DMA: a word of the question rather than a name that is asked for
        if "." in name:
            found.setdefault(name.rpartition(".")[2], _LAST_WORD)
    names = {name.strip("`'\"?.,:()"): weight for name, weight in found.items()}
    called = [*_ELSEWHERE.findall(text), *([text] if re.fullmatch(r"\s*[A-Za-z_]\w*\s*", text) else [])]
    names |= {f"call:{catalogue.call_name(name)}": _CALL for name in called}
    names |= {f"NKI {version}": _NUMBERED for version in _VERSION.findall(text)}
    return names | {f"status {number}": _EXACT for number in _STATUS.findall(text)}


def weight_of(kind: str, text: str) -> float:
    """What a page of this kind is worth for a question: notes count for more where only serving is spoken of, for less where only
    kernels are; tasks and guides for more where it is asked how to do something, terms where it is asked what something is, else for less."""
    lowered = text.lower()
    if kind in ("task", "guide"):
        return 1.2 if _HOW.match(lowered) else 1.0
    if kind == "term":
        return 1.3 if _WHAT.search(lowered) else 0.8
    kernels, serving = bool(_OF_KERNELS.search(lowered)), bool(_OF_SERVING.search(lowered))
    if kernels == serving:
        return 1.0
    return (0.6 if kernels else 1.4) if kind == "note" else 1.0


_CHIP = re.compile(r"\b(trainium|trn|inferentia|inf)[ -]?([1-3])\b", re.I)


def words_of(text: str) -> list[str]:
    """The words of a question that say something, in order, each once; all of them where none does. `Trainium 2` is said as `trn2`."""
    short = {"trainium": "trn", "trn": "trn", "inferentia": "inf", "inf": "inf"}
    text = _CHIP.sub(lambda match: f"{short[match[1].lower()]}{match[2]}", text)
    words = [word.lower() for word in re.findall(r"[\w-]{2,}", text)]
    return list(dict.fromkeys([word for word in words if word not in _STOP] or words))


def expand(text: str) -> str:
    """An FTS5 expression: any of the question's words, and neighbours that make one name (`all gather` is `all_gather`)."""
    spoken = re.findall(r"[a-z0-9]+", text.lower())
    names = ["_".join(spoken[at : at + size]) for size in (2, 3) for at in range(len(spoken) - size + 1)]
    return " OR ".join([*terms(text), *(f'"{name}"' for name in names)])


def terms(text: str) -> list[str]:
    """The question's words as FTS5 terms, each once: in both spellings, and the parts of names with underscores."""
    found: list[str] = []
    for word in words_of(text):
        found += [_term(spelled) for spelled in _spellings(word)]
        if "_" in word:
            found += [_term(part) for part in word.split("_") if len(part) > 2]
    return list(dict.fromkeys(term for term in found if term))


def related(text: str) -> str:
    """An FTS5 expression: words that mean the same as one of the question's; empty where there are none."""
    terms: list[str] = []
    lowered = text.lower()
    for group in _SYNONYMS:
        if group[0] == "trainium" and _CHIP.search(lowered):
            continue  # a certain generation is spoken of: the first is not meant
        if any(re.search(rf"\b{re.escape(item)}s?\b", lowered) for item in group[:2]):
            terms += [_term(item) for item in group if item not in lowered]
    for pattern, means in _everyday():
        if pattern.search(lowered):
            terms += [_term(item) for item in means]
    return " OR ".join(dict.fromkeys(term for term in terms if term))


@cache
def _everyday() -> tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]:
    """What everyday words mean in the field: a pattern of what is said, and the words to look for."""
    return tuple(
        (re.compile(rf"\b(?:{'|'.join(re.escape(word) for word in entry['said'])})s?\b"), tuple(entry["means"]))
        for entry in catalogue.load("everyday.yaml")
    )


def _spellings(word: str) -> tuple[str, ...]:
    """British and American endings of a word, and a name without its number (mamba2, llama3), but for chips."""
    other = re.sub(
        r"(?<=[a-z]{3})i([sz])(e|es|ed|er|ers|ing|ation|ations)$",
        lambda match: f"i{'z' if match[1] == 's' else 's'}{match[2]}",
        word,
    )
    plain = (
        re.sub(r"^([a-z]{4,})\d{1,2}$", r"\1", word)
        if not word.startswith(("trainium", "inferentia", "float"))
        else word
    )
    return tuple(dict.fromkeys((word, other, plain)))


def _term(word: str) -> str:
    cleaned = re.sub(r"[^\w\s-]", " ", word).replace("-", " ").strip()
    return f'"{cleaned}"' if cleaned else ""
