"""``tidemill webhook``: topics that are delivered to HTTP endpoints."""
