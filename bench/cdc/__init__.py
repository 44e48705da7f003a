"""Change data capture: how fast changes and snapshots come into a topic."""
