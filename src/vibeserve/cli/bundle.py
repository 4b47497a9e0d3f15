"""`vibeserve validate` and `vibeserve materialize`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vibeserve.base.errors import EXIT_DOES_NOT_HOLD, EXIT_OK
from vibeserve.cli.output import JsonFlag, note, print_json

BundleArgument = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="A bundle's directory, or a packaged one's name.")
]


def validate(bundle: BundleArgument, json: JsonFlag = False) -> int:
    """Check that a bundle is complete and consistent. Exit 1 where it is not."""
    from vibeserve.targets import find_bundle
    from vibeserve.targets import validate as run_checks

    result = run_checks(find_bundle(bundle))
    if json:
        print_json({"bundle": str(result.path), "ok": result.ok, "checks": result.checks})
        return EXIT_OK if result.ok else EXIT_DOES_NOT_HOLD
    for check in result.checks:
        mark = {True: "ok", False: "FAIL", None: "not run"}[check.ok]
        print(f"{mark:8} {check.name}" + (f": {check.detail}" if check.detail else ""))
    bad = sum(check.ok is False for check in result.checks)
    print(f"{result.path}: " + ("valid" if result.ok else f"{bad} of {len(result.checks)} checks fail"))
    return EXIT_OK if result.ok else EXIT_DOES_NOT_HOLD


def materialize(
    bundle: BundleArgument,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Allow code that the model brings.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Try the sources again instead of using the cache.")] = False,
    json: JsonFlag = False,
) -> int:
    """Bring a bundle's model weights into reference/model (a link into the cache)."""
    from vibeserve.targets import materialize as bring
    from vibeserve.targets import model_facts, read_bundle

    target = read_bundle(bundle, metric=None)
    folder = bring(target, trust_remote_code=trust_remote_code, fresh=fresh, note=note)
    # Only text models of transformers have a config that says their size.
    text = target.meta.task in (None, "text-generation", "text2text-generation")
    facts = model_facts(folder) if text else None
    link = target.reference / "model"
    linked = str(link) if link.exists() and link.resolve() == Path(folder).resolve() else None
    if json:
        print_json(
            {"bundle": target.slug, "model_id": target.meta.model_id, "path": folder, "link": linked, "facts": facts}
        )
        return EXIT_OK
    if facts is not None:
        print(f"{target.meta.model_id}: {facts.parameters / 1e6:.1f} M parameters, {facts.architecture}")
    print(folder)
    if linked:
        print(f"linked as {linked}")
    return EXIT_OK
