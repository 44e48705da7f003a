"""Pure state machines over internal topics: catalog, groups and offsets. No I/O, no clock."""
