"""Commands of materialized views."""
