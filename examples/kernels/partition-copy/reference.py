"""What the kernel computes, in NumPy."""


def partition_copy(src, dst, source, goal, count):
    """A slice assignment."""
    out = dst.copy()
    out[goal : goal + count] = src[source : source + count]
    return out
