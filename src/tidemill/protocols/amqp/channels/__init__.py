"""The channels of a connection.

``channel`` dispatches: ``topology`` declares and binds, ``publishing`` publishes, ``confirms``
confirms, ``consuming`` delivers and settles, ``transactions`` keeps both until a commit.
"""
