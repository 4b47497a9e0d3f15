"""The documentation lookup: facts as data, and the index over them."""
