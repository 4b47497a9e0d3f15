"""Who edits a candidate: the built-in playbook, or a coding agent."""
