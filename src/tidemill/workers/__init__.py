"""The supervisor of worker processes: starts, watches, restarts and stops them beside the broker.

``supervisor`` runs the processes, ``output`` keeps and copies what they write, and ``control`` is
the Unix socket through which commands reach the supervisor. This folder must not know what a worker
does: ``cli.worker.kinds`` says which workers a settings file declares.
"""
