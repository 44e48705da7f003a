"""A protocol that echoes lines: what a new protocol has to declare, and no more."""
