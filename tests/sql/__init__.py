"""Tests of SQL on topics."""
