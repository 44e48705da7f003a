"""Tests of metrics: declarations, values and text."""
