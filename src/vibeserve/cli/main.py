"""The front door: finds the verb, runs it, and turns its errors into one line, one hint and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import Abort, Exit

import vibeserve
from vibeserve.base.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, InputError, MissingError, VibeServeError, refused
from vibeserve.base.jsonio import dumps
from vibeserve.cli import streams
from vibeserve.cli.verbs import GROUPS, VERBS

_TYPERS_INTERRUPTED = 130
_MCP_PORT = "8765"
_SEED_FORM = ("--ref", "--acc-checker", "--bench")


class LazyGroup(TyperGroup):
    """A group whose commands are the verbs under `prefix`; each one's module is imported when it is needed."""

    prefix = ""

    def list_commands(self, ctx: Any) -> list[str]:
        names = [verb.removeprefix(self.prefix).split(" ")[0] for verb in VERBS if verb.startswith(self.prefix)]
        return list(dict.fromkeys(names))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        full = self.prefix + cmd_name
        if full in GROUPS:
            return _group(full)
        if full not in VERBS:
            return None
        module, _, function = VERBS[full].where.partition(":")
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        verb = getattr(_verb_module(full, module), function)
        app.command(cmd_name, context_settings=getattr(verb, "context_settings", None))(verb)
        return typer.main.get_command(app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            full = self.prefix + name
            text, panel = GROUPS[full] if full in GROUPS else (VERBS[full].help, VERBS[full].panel)
            panels.setdefault(panel, []).append((name, text))
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


def _verb_module(verb: str, module: str) -> Any:
    name = f"vibeserve.cli.{module}"
    if importlib.util.find_spec(name) is None:
        raise MissingError(f"'vibeserve {verb}' is not built yet in this version", hint="see 'vibeserve --help'")
    return importlib.import_module(name)


def _group(name: str) -> Any:
    cls = type(f"{name.title()}Group", (LazyGroup,), {"prefix": f"{name} "})
    app = typer.Typer(cls=cls, add_completion=False, rich_markup_mode=None, no_args_is_help=True, help=GROUPS[name][0])
    app.callback()(lambda: None)
    command = typer.main.get_command(app)
    command.name = name
    return command


def _version(value: bool) -> None:
    if value:
        print(f"vibeserve {vibeserve.__version__}")
        raise Exit(0)


def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Give it a model, a machine and a workload goal: it builds the serving system made for exactly that.

    A bundle in three directories, as `init` hands it over:

    vibeserve --ref DIR/reference --acc-checker DIR/accuracy_checker --bench DIR/benchmark

    It is the same as `vibeserve optimize` with these flags.
    """


def command() -> Any:
    """The root command."""
    app = typer.Typer(cls=LazyGroup, add_completion=False, rich_markup_mode=None, no_args_is_help=True)
    app.callback()(_root)
    root = typer.main.get_command(app)
    root.name = "vibeserve"
    return root


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process with the exit codes of docs/cli.md."""
    args = list(sys.argv[1:] if argv is None else argv)
    streams.open_missing()
    if args[:2] == ["nki", "run"]:  # the script's streams and signals are its own
        sys.exit(run(args))
    streams.prepare()
    code = run(args)
    unwritten = streams.flushed()
    if unwritten is not None and code < EXIT_BAD_INPUT:  # else the error is said already
        code = _report(unwritten, [])
    sys.exit(code)


def run(args: list[str]) -> int:
    """Run one command line and return its exit code."""
    if args and args[0].startswith("--") and any(arg.split("=")[0] in _SEED_FORM for arg in args):
        args = ["optimize", *args]
    own = _own(args)
    debug = "--debug" in own
    args = [arg for arg in own if arg != "--debug"] + args[len(own) :]
    own = [arg for arg in own if arg != "--debug"]
    if args[:1] == ["mcp"]:
        args = _with_port(args)
    if not _here():
        return _report(InputError("the current directory does not exist any more", hint="go to one that does"), own)
    try:
        result = command().main(args=args, prog_name="vibeserve", standalone_mode=False)
        # Typer turns a KeyboardInterrupt into 130; of `nki run` that is the script's own code.
        if result == _TYPERS_INTERRUPTED and args[:2] != ["nki", "run"]:
            raise KeyboardInterrupt
        return result if isinstance(result, int) else 0
    except Exit as stop:
        return stop.exit_code
    except VibeServeError as error:
        if debug:
            raise
        return _report(error, own)
    except (KeyboardInterrupt, Abort):
        print("\ninterrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except OSError as error:
        if debug:
            raise
        return _report(refused(error), own)
    except Exception as error:
        if debug or not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return EXIT_BAD_INPUT
        text = " ".join(str(error.format_message()).split())
        return _report(InputError(text or type(error).__name__, hint=f"see 'vibeserve {_verb_of(own)}--help'"), own)


def _own(args: list[str]) -> list[str]:
    """The words that are ours: not those behind `--`, nor those behind the script of `nki run`, which are handed on."""
    ends = [at for at, arg in enumerate(args) if arg == "--"]
    if args[:2] == ["nki", "run"]:
        at = 2
        while at < len(args) and args[at].startswith("-"):
            at += 2 if args[at] == "--target" else 1
        ends.append(at)
    return args[: min(ends, default=len(args))]


def _with_port(args: list[str]) -> list[str]:
    """`--http` without its value means the default port; the parser knows no option with a value that may be left out."""
    found: list[str] = []
    for at, arg in enumerate(args):
        bare = arg == "--http" and (at + 1 == len(args) or args[at + 1].startswith("-"))
        found += [arg, _MCP_PORT] if bare else [arg]
    return found


def _here() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _verb_of(args: list[str]) -> str:
    words = " ".join(args[:2])
    found = next((name for name in VERBS if words == name or words.startswith(f"{name} ")), None)
    if found is None and args and args[0] in VERBS | GROUPS:
        found = args[0]
    return f"{found} " if found else ""


def _report(error: VibeServeError, args: list[str]) -> int:
    message = " ".join(error.message.split())
    print(f"error: {message}", file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)
    if "--json" in args and error.exit_code >= EXIT_BAD_INPUT:
        document = {"error": {"code": error.code, "message": message, "hint": error.hint}}
        with contextlib.suppress(OSError):  # standard output may be what cannot be written
            print(dumps(document), flush=True)
    return error.exit_code


if __name__ == "__main__":
    main()
