"""Tests of reading topics as Arrow record batches."""
