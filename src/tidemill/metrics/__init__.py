"""Metrics: what a process measures, and its text for Prometheus.

``definition`` declares a metric, ``registry`` has the values, ``text`` writes them, and
``process`` has those of the process itself. Any room can declare metrics and count. This room must
not know what is measured, and imports no library.
"""
