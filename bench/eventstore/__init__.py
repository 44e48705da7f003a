"""The event store beside the library eventsourcing with SQLite and with PostgreSQL."""
