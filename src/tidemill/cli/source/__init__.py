"""``tidemill source``: change data capture from databases."""
