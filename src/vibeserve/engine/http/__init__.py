"""The OpenAI-compatible HTTP front of the engine."""
