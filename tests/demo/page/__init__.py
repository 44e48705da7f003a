"""The demo's page in the console."""
