"""What is asked for: a bundle on disk (reference, checker, benchmark, objective), and the model that it is about."""

from vibeserve.targets.bundle import find_bundle, packaged_bundles, read_bundle, read_three
from vibeserve.targets.create import Proposal, propose
from vibeserve.targets.create import write as write_bundle
from vibeserve.targets.facts import ModelFacts, model_facts
from vibeserve.targets.goal import Reading, read_goal
from vibeserve.targets.materialize import materialize
from vibeserve.targets.meta import read_meta
from vibeserve.targets.objective import parse_metric
from vibeserve.targets.types import Bundle, Metric, ModelMeta, Slo
from vibeserve.targets.validate import Check, Validation, validate

__all__ = [
    "Bundle",
    "Check",
    "Metric",
    "ModelFacts",
    "ModelMeta",
    "Proposal",
    "Reading",
    "Slo",
    "Validation",
    "find_bundle",
    "materialize",
    "model_facts",
    "packaged_bundles",
    "parse_metric",
    "propose",
    "read_bundle",
    "read_goal",
    "read_meta",
    "read_three",
    "validate",
    "write_bundle",
]
