"""Commands that run or inspect a broker: ``dev``, ``serve``, ``config`` and ``doctor``.

``process`` runs the broker, and ``settings_file`` reads its settings.
"""
