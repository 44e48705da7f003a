"""Messages: reading, searching, following, exporting and sending the records of a topic.

Records are anyone's bytes: they are cut, decoded without trust, and escaped. Must not know: how a
page is served.
"""
