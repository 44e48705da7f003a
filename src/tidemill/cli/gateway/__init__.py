"""``tidemill gateway``: serves topics over HTTP."""
