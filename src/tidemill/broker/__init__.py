"""The one door to the log and the state machines, and the only asyncio below the protocols."""
