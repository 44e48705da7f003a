"""The demo's database: tables of aircraft and airlines, which change during a replay.

- ``registry`` makes the rows and the edits;
- ``tables`` writes them with SQL, and ``sqlite`` and ``postgres`` open the database;
- ``capture`` runs the worker that captures the tables, and ``delivery`` follows their topics;
- ``editor`` makes the edits at their times, and waits until they are in the topics.
"""
