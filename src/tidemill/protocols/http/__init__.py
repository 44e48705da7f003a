"""A small HTTP/1.1 server: probes at ``/health/live`` and ``/health/ready``, and ``/metrics``.

Everything else over HTTP is the gateway's, in a process of its own.
"""
