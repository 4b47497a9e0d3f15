"""What the `.pth` file of the wheel runs when Python starts: the import hook, where NKI_SIMULATOR=1."""

import os

if os.environ.get("NKI_SIMULATOR") == "1":
    from vibeserve.nki.shim.finder import install

    install(force=True)
