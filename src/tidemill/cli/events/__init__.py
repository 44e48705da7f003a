"""``tidemill events``: event stores."""
