"""A broker of one's own: ``tidemill.Broker()``, a process on loopback for programs and tests.

Must not know: the broker's inside. It uses the command line.
"""
