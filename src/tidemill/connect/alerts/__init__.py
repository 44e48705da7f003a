"""Alerts: rules on metrics and topics, and notices to those who look after them.

``machine`` decides what fires, what is sent and when, without I/O; ``worker`` is around it. Must
not know: the broker, the command line, Spark.
"""
