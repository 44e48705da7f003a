"""Threads of the engine: ``worker`` runs any work, ``entries`` writes the journal's entries."""
