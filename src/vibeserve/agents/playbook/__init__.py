"""The playbook: techniques as data, a policy that picks by expected gain, a builder of candidates."""

from vibeserve.agents.playbook.playbook import Playbook

__all__ = ["Playbook"]
