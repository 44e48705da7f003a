"""Responses that consist of buffers and ranges of files, and how they leave.

A response consists of ``tidemill.parts``; ``sending`` passes them to the kernel, and ``outbox``
waits where a socket is full or a file is not in memory. This folder knows a socket and descriptors
of files. It must not know any protocol, nor the rest of ``net``.
"""
