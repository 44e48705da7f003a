"""Asks brokers what librdkafka can't ask, or asks for all things in one request.

``requests`` sends requests to a broker, a leader or a coordinator, and makes errors of error codes.
On it, ``transactions`` asks coordinators, ``open_writes`` asks leaders for transactions that hold
readers back, ``partitions`` asks for offsets and sizes, and ``share_groups`` for what they have
read. All of it blocks, so an event loop calls it in a thread. Commands and the console use it.
Must not know: flags, pages.
"""
