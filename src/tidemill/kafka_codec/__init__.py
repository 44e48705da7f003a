"""Kafka's wire format for broker and client: requests and responses, of every version.

- ``messages`` is the door: ``decode_request``, ``encode_response`` (a server) and
  ``encode_request``, ``decode_response`` (a client).
- ``headers`` reads and writes what comes before the body.
- ``fields`` is a tree of fields. ``schema`` reads it from kio's dataclasses, and ``declared`` has
  the few messages that our client needs in each process, without kio.
- ``reader`` and ``writer`` compile that tree into straight-line Python, once per message and
  version, on first use; ``source`` and ``primitives`` are what both of them build on.
- ``hot`` and ``shared`` are a server's half of Produce, Fetch and ShareFetch by hand, because these
  carry the records. ``client_hot`` is a client's half of Produce and Fetch.

kio describes the messages; its own reader and writer are the reference in the tests and are not
used here. The codec is sans-IO: it knows no sockets, no clock, no engine and no API by name.
"""
