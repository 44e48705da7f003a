"""``tidemill bridge``: bridges between direct messaging and topics."""
