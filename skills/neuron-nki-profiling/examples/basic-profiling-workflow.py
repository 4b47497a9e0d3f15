"""From a kernel to what bounds it, in one run: python basic-profiling-workflow.py FILE:KERNEL NAME=128x512:float32 …

On a laptop the profile is simulated. On a device the first step is a run of your script under the profiling variables, then
`vibeserve nki neffs`, `vibeserve nki capture` and `vibeserve profile ingest`; the steps after it are the same.
"""

import json
import subprocess
import sys


def vibeserve(*words):
    """A command's JSON; its own error message and exit code where it fails."""
    command = [sys.executable, "-m", "vibeserve.cli.main", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def main(kernel, inputs):
    """Simulate, then bounds, then findings with their lines."""
    flags = [word for given in inputs for word in ("--input", given)]
    timed = vibeserve("nki", "simulate", kernel, *flags, "--timing", "--profile", "workflow")
    print(f"latency {timed['latency_s'] * 1e6:.1f} µs (simulated), MFU {timed['mfu']:.1%}")
    bounds = vibeserve("profile", "bounds", "workflow")
    print("bottleneck:", ", ".join(bounds["bottleneck"]) or "none stands out")
    for gap in sorted(bounds["gaps"], key=lambda gap: -(gap["gap_s"] or 0))[:2]:
        print(f"gap from {gap['from']} to {gap['to']}: {gap['share'] or 0:.0%} of the time")
    for found in vibeserve("profile", "investigate", "workflow")["investigations"]:
        if found["found"]:
            lines = ", ".join(f"{row['file']}:{row['line']}" for row in found["lines"][:3])
            print(f"{found['name']}: {found['cost_s'] or 0:.2e} s at {lines}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
