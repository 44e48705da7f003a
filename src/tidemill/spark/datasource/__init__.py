"""The data source ``tidemill`` as Spark sees it, on top of ``source`` and ``sinks``.

``data_source`` is the class that Spark registers, ``readers`` and ``writers`` are its two sides,
and ``session`` creates a Spark session with the data source.
"""
