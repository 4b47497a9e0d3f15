"""What a run did, as tables: store, query, bounds, investigations, comparison.

    from vibeserve import profiles
    profile = profiles.ingest("capture.json.gz", "attention-v1")
    profiles.bounds(profile).bottleneck
    profiles.investigate(profile)

Nothing heavy is imported here: DuckDB, Arrow and NumPy come with the first call that needs them.
"""

from vibeserve.profiles.analysis import Analysis, analyze
from vibeserve.profiles.bounds import Bounds, bounds
from vibeserve.profiles.compare import compare, tracking_table
from vibeserve.profiles.ingest import ingest
from vibeserve.profiles.investigations import Finding, investigate
from vibeserve.profiles.neffs import identify
from vibeserve.profiles.profile import Profile
from vibeserve.profiles.quality import quality
from vibeserve.profiles.sql import Limits, describe, query
from vibeserve.profiles.store import delete, list_profiles, rename, save
from vibeserve.profiles.store import open_profile as open  # noqa: A004
from vibeserve.profiles.summary import metrics
from vibeserve.profiles.timeline import write_trace

__all__ = [
    "Analysis",
    "Bounds",
    "Finding",
    "Limits",
    "Profile",
    "analyze",
    "bounds",
    "compare",
    "delete",
    "describe",
    "identify",
    "ingest",
    "investigate",
    "list_profiles",
    "metrics",
    "open",
    "quality",
    "query",
    "rename",
    "save",
    "tracking_table",
    "write_trace",
]
