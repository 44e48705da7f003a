"""``tidemill worker``: the worker processes that a broker supervises."""
