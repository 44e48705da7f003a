"""Acknowledgement windows: which records of a log partition are done, out, or available.

Queues and share groups use the same machine. Pure: no I/O, and time is a parameter.
"""
