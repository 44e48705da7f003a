"""``tidemill demo``: shows the demo on a terminal. ``tidemill.demo`` is the demo itself."""
