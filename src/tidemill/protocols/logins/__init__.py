"""Logins of clients, for every protocol: mechanisms of SASL, certificates, users.

``contract`` has what a mechanism and a store of users are, ``plain``, ``scram`` and ``oauthbearer``
are the mechanisms without I/O, ``certificates`` makes names of certificates, ``users_file`` is the
simple store, ``failures`` limits who guesses, ``watched`` ends
connections of deleted users, and ``logins`` puts them together for a listener.
"""
