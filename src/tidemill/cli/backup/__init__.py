"""``tidemill backup`` and ``tidemill restore``: a data folder as a copy, also of a running broker.

``copying`` makes the copy, ``restoring`` makes a data folder of it, and ``contents`` is what a
backup says about itself.
"""
