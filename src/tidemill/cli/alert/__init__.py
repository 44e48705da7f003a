"""``tidemill alert``: alerts, silences and acknowledgements."""
