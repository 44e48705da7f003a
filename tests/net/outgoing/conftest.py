"""Fixtures: the kinds of event loops that a server runs on."""

from __future__ import annotations

from tests.protocols.kafka.conftest import loop_factory

__all__ = ["loop_factory"]
