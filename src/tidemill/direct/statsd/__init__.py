"""Receives StatsD's lines, and aggregates them by interval.

``Aggregator`` is the whole of it without sockets; ``sockets`` receives. The parser and the table of
series are C code (``src/native/statsd*.c``).
"""

from tidemill.direct.statsd.aggregator import Aggregator, Counts, Flush, Malformed
from tidemill.direct.statsd.errors import StatsdError
from tidemill.direct.statsd.notices import parse_notice
from tidemill.direct.statsd.options import Dialect, NameTags, Options

__all__ = [
    "Aggregator",
    "Counts",
    "Dialect",
    "Flush",
    "Malformed",
    "NameTags",
    "Options",
    "StatsdError",
    "parse_notice",
]
