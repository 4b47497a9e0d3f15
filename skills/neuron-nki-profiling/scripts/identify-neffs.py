"""Name the NEFFs below a runtime's output directory; with a kernel's name print only the path of its newest NEFF.

python scripts/identify-neffs.py ./output [KERNEL]

The same as `vibeserve nki neffs ./output [KERNEL]`, for `$(…)` in shell scripts.
"""

import subprocess
import sys

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(f"usage: {sys.argv[0]} DIR [KERNEL]")
    command = [sys.executable, "-m", "vibeserve.cli.main", "nki", "neffs", *sys.argv[1:]]
    sys.exit(subprocess.run(command, check=False).returncode)
