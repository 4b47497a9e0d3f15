"""A run's report: the document of `show --json` as a page that people read, and its Markdown twin.

Everything in it comes from the document and from the files that it names in the run's directory (the benchmark's own
JSON, the workspace's commits). What is missing there is said to be missing.
"""

from vibeserve.search.run_report.materials import Materials, gather
from vibeserve.search.run_report.writer import report_html, report_markdown, run_sections, write_report

__all__ = ["Materials", "gather", "report_html", "report_markdown", "run_sections", "write_report"]
