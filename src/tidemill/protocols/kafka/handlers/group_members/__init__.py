"""Members of classic groups, consumer groups and share groups, and the offsets that they commit."""
