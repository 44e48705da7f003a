"""Writing changes: into the transactions of a producer, as objects or packed.

Must not know: a particular database.
"""
