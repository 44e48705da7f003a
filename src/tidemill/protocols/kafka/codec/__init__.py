"""Kafka's wire format: requests and responses, in both directions, for every version.

- ``messages`` is the door: ``decode_request``, ``encode_response`` (a server) and
  ``encode_request``, ``decode_response`` (a client).
- ``headers`` reads and writes what comes before the body.
- ``schema`` reads kio's dataclasses into a tree of fields; ``reader`` and ``writer`` compile that
  tree into straight-line Python, once per message and version, on first use; ``source`` and
  ``primitives`` are what both of them build on.
- ``hot`` is the same by hand for Produce and Fetch, which carry the records.

kio describes the messages; its own reader and writer are the reference in the tests and are not
used here. The codec is sans-IO: it knows no sockets, no clock, no engine and no API by name.
"""
