"""The command ``tidemill sql``."""
