"""VibeServe: give it a model, a machine and a workload goal, and it builds the serving system made for exactly that.

Each room below (``vibeserve.roofline``, ``vibeserve.profiles``, ``vibeserve.nki``, ...) has one front: what its
``__init__`` exports. The command line prints what those functions return.
"""

__version__ = "0.1.0"
