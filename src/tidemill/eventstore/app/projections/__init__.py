"""Projections: tables of a database that follow the events of a store, exactly once.

``contract`` has what a projection and a database are, ``runner`` moves a projection, and one
module for each database stores rows and position in one transaction. Must not know: brokers.
"""
