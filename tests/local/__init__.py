"""Tests of brokers that programs start."""
