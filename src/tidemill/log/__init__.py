"""The partitioned log on disk: synchronous; no sockets, no asyncio, no protocol names."""
