"""Kernels written after public measurements of the device, each by what is said of its loops; see `benchmarks/timing.py`."""
