"""Tests of what the engine measures."""
