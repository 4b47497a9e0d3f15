"""Decides what to try next from evidence, and keeps what survived: every candidate a git commit, every fact a row.

directory = begin(Request(bundle="smollm2-135m-cpu-chat", budget_s=480), Path("runs"), outside)
document = go_on(directory, outside)          # what `optimize --json` prints; also how a run is resumed
with RunView(directory) as view: view.measurements()
"""

from vibeserve.search.document import candidate_document, document, summary
from vibeserve.search.export import export, open_candidate
from vibeserve.search.lookup import candidate_of, find, list_runs
from vibeserve.search.request import Request
from vibeserve.search.start import Outside, begin, go_on
from vibeserve.search.store import RunStore, RunView

__all__ = [
    "Outside",
    "Request",
    "RunStore",
    "RunView",
    "begin",
    "candidate_document",
    "candidate_of",
    "document",
    "export",
    "find",
    "go_on",
    "list_runs",
    "open_candidate",
    "summary",
]
