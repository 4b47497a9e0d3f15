"""Threads that ask a server together: waited for in the ordinary way, and never where the block is left by an exception."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def workers(width: int) -> Iterator[ThreadPoolExecutor]:
    """A pool of `width` threads. Ctrl-C leaves at once: requests in flight end with the servers, which are closed then."""
    pool = ThreadPoolExecutor(width, thread_name_prefix="judge")
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
