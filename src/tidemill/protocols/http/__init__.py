"""A small HTTP/1.1 server for probes: ``/health/live`` and ``/health/ready``.

Everything else over HTTP is the gateway's, in a process of its own.
"""
