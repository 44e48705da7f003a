"""The configs of topics: their declarations (``topic``) and their parsing (``parse``)."""
