"""Nexmark: an auction house's persons, auctions and bids, and the queries over them.

Each query runs as a pipeline of tidemill and as plain Structured Streaming with Spark's own Kafka
connector: on one broker, in one JVM, with the same settings. The results of both are compared with
a batch computation over the same events.

Source: Tucker et al., "NEXMark: A Benchmark for Queries over Data Streams"; the generator and the
queries of Apache Beam and of nexmark/nexmark on GitHub.
"""
