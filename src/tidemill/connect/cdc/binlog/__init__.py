"""Change capture from a binary log, as MariaDB and MySQL write it.

``decoding`` turns bytes into events and rows, ``dump`` receives them, ``groups`` makes changes of
transactions, ``reading`` reads rows for snapshots, ``source`` implements the contract. ``dialect``
is what a kind of server has to say about itself. Must not know: Kafka, or which server it is.
"""
