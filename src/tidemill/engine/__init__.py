"""The engine: what all protocols share, and the only asyncio below them.

``engine.Engine`` assembles and runs the parts. ``door.Door`` is what a protocol holds: one narrow
class per part (``records``, ``topics``, ``configs``, ``groups``, ``transactions``, ``storage``,
``queues``, ``shares``). They are a table: each row names a method of the rooms below, and the
access that it asks for. ``access`` has the kinds of questions, ``authorize`` decides. ``api`` has
the data types, ``errors`` the errors.

Below the parts: ``state_log`` writes a state machine's records, ``flusher`` runs group commit,
``journaling`` writes the rounds of the journal, ``waiters`` holds the long polls, ``housekeeping``
works in the background. The engine imports no protocol and knows none.
"""
