"""The catalog: which topics exist, their configs, the broker's configs, and producer ids."""
