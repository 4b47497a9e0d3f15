"""The bundle contract: read, validate, create, and materialise the model."""
