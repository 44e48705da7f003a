"""The protocols that clients speak, one folder each: bytes become calls of the engine."""
