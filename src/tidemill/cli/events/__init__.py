"""``tidemill events``: event stores."""

from tidemill.cli.events import forget as _forget  # adds its commands
from tidemill.cli.events.commands import app

__all__ = ["app"]
del _forget
