"""A small service in a simulation, with faults that are injected. The rules must not import it."""

from service.simulated import FAULTS, INSTANCES, START_MS, Fault, Minute, Service

__all__ = ["FAULTS", "INSTANCES", "START_MS", "Fault", "Minute", "Service"]
