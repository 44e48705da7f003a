"""Transactions: drive the coordinator, write markers, and repair what a crash left open.

``coordinator`` drives the state machine of ``state.transactions``, ``transactions`` adds partitions
and offsets, ``completion`` finishes decided transactions, ``markers`` ends them in partitions,
``timeouts`` aborts the overdue ones, and ``restart_repair`` runs at every start. ``keyed_tasks``
orders the work.
"""
