"""``tidemill quota``: limits of what clients use."""
