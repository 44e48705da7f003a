"""The way of a change into records: rules for rows, the outbox router, transaction metadata.

Must not know: a client, or a particular database.
"""
