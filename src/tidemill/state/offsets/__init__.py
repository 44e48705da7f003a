"""Committed offsets: ``machine.Offsets``, and the offsets that open transactions hold."""
