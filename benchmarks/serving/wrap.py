"""Becomes a peer: python wrap.py NAME [LOAD] --model-dir DIR --host H --port P. The peer's own form of the weights is taken."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.serving.peer import read_peers


def main() -> None:
    """Replace this process by the peer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("load", nargs="?", default="", help="the workload that it is set up for")
    parser.add_argument("--model-dir")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    peer = read_peers()[options.name].for_load(options.load)
    words = peer.words(options.host, options.port)
    # Settings that this machine makes for old OpenBLAS builds slow a current one down.
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
    threads = str(len(os.sched_getaffinity(0)))
    os.execve(words[0], words, env | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads} | peer.env)


if __name__ == "__main__":
    main()
