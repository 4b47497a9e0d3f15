"""Every verb, in the order that help shows: where its function is, and one line of help.

A verb's module is imported only when the verb is used or its own help is asked for, so that the CLI starts fast. To add
a verb, write a function with typer's annotations in a module of this package, and name it here.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """One verb: `module:function`, a line of help, and the panel that it is listed under."""

    where: str
    help: str
    panel: str


_BUILD, _LIMIT, _KERNELS, _PROFILES, _HELP = "Build a server", "The limit", "Kernels", "Profiles", "Look up"

VERBS: dict[str, Verb] = {
    "optimize": Verb("optimize:optimize", "Build the server made for a bundle's workload, and prove it.", _BUILD),
    "init": Verb("init:init", "Make a bundle from a model id, a machine and a sentence.", _BUILD),
    "validate": Verb("bundle:validate", "Check that a bundle is complete and consistent.", _BUILD),
    "materialize": Verb("bundle:materialize", "Bring a bundle's model weights into reference/model.", _BUILD),
    "evaluate": Verb("evaluate:evaluate", "Put a candidate that you made through every gate.", _BUILD),
    "serve": Verb("serve:serve", "Start a bundle's reference, or a run's best server.", _BUILD),
    "check": Verb("gates:check", "Run a bundle's accuracy checker against a running server.", _BUILD),
    "bench": Verb("gates:bench", "Run a bundle's benchmark against one running server, or two in pairs.", _BUILD),
    "runs": Verb("runs:runs", "List the runs.", _BUILD),
    "show": Verb("runs:show", "Show a run, or one candidate of it.", _BUILD),
    "report": Verb("runs:report", "Write a run's report.", _BUILD),
    "export": Verb("runs:export", "Copy a run's best server into a directory of its own.", _BUILD),
    "resume": Verb("optimize:resume", "Go on with an interrupted run.", _BUILD),
    "roofline": Verb("roofline:roofline", "Count an operation by hand: FLOPs, bytes, intensity, time bounds.", _LIMIT),
    "hardware": Verb("hardware:hardware", "Describe a machine, or measure this one (hardware detect).", _LIMIT),
    "nki run": Verb("nki_run:run", "Run a script, its NKI kernels on the simulator.", _KERNELS),
    "nki simulate": Verb("nki_simulate:simulate", "Run one kernel on made inputs; time and profile it.", _KERNELS),
    "nki lint": Verb("nki_lint:lint", "Find what a kernel may not do, and fix what is mechanical.", _KERNELS),
    "nki new": Verb("nki_new:new", "Start a kernel: kernel, reference, inputs, test and hand count.", _KERNELS),
    "nki neffs": Verb("nki_neffs:neffs", "Tell the NKI kernels among the NEFFs of a run.", _KERNELS),
    "nki capture": Verb("nki_neffs:capture", "Capture a profile of a NEFF on the device.", _KERNELS),
    "nki doctor": Verb("nki_doctor:doctor", "Check the environment for kernel work.", _KERNELS),
    "nki explain": Verb("nki_explain:explain", "Explain a compiler message, an exception or a log.", _KERNELS),
    "nki artifacts": Verb("nki_explain:artifacts", "Say what lies in a compiler's work directory.", _KERNELS),
    "profile ingest": Verb("profile_store:ingest", "Take a profile into the store.", _PROFILES),
    "profile list": Verb("profile_store:list_profiles", "List the profiles.", _PROFILES),
    "profile delete": Verb("profile_store:delete", "Delete a profile.", _PROFILES),
    "profile rename": Verb("profile_store:rename", "Rename a profile.", _PROFILES),
    "profile schema": Verb("profile_query:schema", "Describe a profile's tables and columns.", _PROFILES),
    "profile sql": Verb("profile_query:sql", "Query a profile with SQL.", _PROFILES),
    "profile summary": Verb(
        "profile_query:summary", "Summary metrics; several profiles make a tracking table.", _PROFILES
    ),
    "profile bounds": Verb("profile_analysis:bounds", "How fast it could have been, and the gaps.", _PROFILES),
    "profile investigate": Verb(
        "profile_analysis:investigate", "Why it was not: the costs, down to the line.", _PROFILES
    ),
    "profile analyze": Verb("profile_analysis:analyze", "Bounds, gaps and findings in one report.", _PROFILES),
    "profile compare": Verb("profile_analysis:compare", "Two profiles side by side.", _PROFILES),
    "profile timeline": Verb("profile_analysis:timeline", "Write a Perfetto trace.", _PROFILES),
    "profile serve": Verb("profile_serve:serve", "Serve the profiles over HTTP: SQL and pages.", _PROFILES),
    "docs search": Verb("docs:search", "Search the documentation.", _HELP),
    "docs symbol": Verb("docs:symbol", "A symbol's page.", _HELP),
    "docs error": Verb("docs:error", "An error code's page.", _HELP),
    "docs task": Verb("docs:task", "What to use for a task.", _HELP),
    "docs toc": Verb("docs:toc", "The table of contents.", _HELP),
    "docs index": Verb("docs:index", "Add a folder of documents to the search.", _HELP),
    "skills list": Verb("skills:list_skills", "List the agent skills.", _HELP),
    "skills install": Verb("skills:install", "Install the skills for a coding agent.", _HELP),
    "skills uninstall": Verb("skills:uninstall", "Remove installed skills.", _HELP),
    "mcp": Verb("mcp:mcp", "Serve the tools to a coding agent over MCP.", _HELP),
}

GROUPS: dict[str, tuple[str, str]] = {
    "nki": ("Write, check, run and time NKI kernels.", _KERNELS),
    "profile": ("Store, query and explain profiles.", _PROFILES),
    "docs": ("Look things up.", _HELP),
    "skills": ("Skills for coding agents.", _HELP),
}
