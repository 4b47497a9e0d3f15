"""The ways to reach a coding agent: command lines, the Agent Client Protocol, an OpenAI-compatible endpoint."""
