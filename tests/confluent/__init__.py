"""Tests of what is added to confluent-kafka."""
