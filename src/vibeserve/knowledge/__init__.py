"""The documentation lookup: facts as data, pages made of them, ranked search, and explanations of messages.

from vibeserve import knowledge
knowledge.find_error("EVRF001").fixes
knowledge.Index.standard().search("how do I transpose a tile")
knowledge.explain(open("log-neuron-cc.txt").read())
"""

from vibeserve.knowledge.answer import Answer, answer
from vibeserve.knowledge.artifacts import Artifacts, artifact_help, latest_workdir, read_artifacts
from vibeserve.knowledge.catalogue import (
    ErrorEntry,
    Flag,
    Signature,
    Task,
    areas,
    errors,
    find_error,
    find_flag,
    flags,
    near,
    signatures,
    tasks,
)
from vibeserve.knowledge.explain import Match, explain
from vibeserve.knowledge.index import Found, Index
from vibeserve.knowledge.pages import Page, built_in, follow_ups, guides, markdown_pages, serving_notes
from vibeserve.knowledge.symbols import Symbol, find_symbol, symbols
from vibeserve.knowledge.tables import Table, all_tables

__all__ = [
    "Answer",
    "Artifacts",
    "ErrorEntry",
    "Flag",
    "Found",
    "Index",
    "Match",
    "Page",
    "Signature",
    "Symbol",
    "Table",
    "Task",
    "all_tables",
    "answer",
    "areas",
    "artifact_help",
    "built_in",
    "errors",
    "explain",
    "find_error",
    "find_flag",
    "find_symbol",
    "flags",
    "follow_ups",
    "guides",
    "latest_workdir",
    "markdown_pages",
    "near",
    "read_artifacts",
    "serving_notes",
    "signatures",
    "symbols",
    "tasks",
]
