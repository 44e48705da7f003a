"""The transaction coordinator: transactional ids, their producers and their transactions.

``machine.Transactions`` is the state machine. ``table`` lists the valid states and what EndTxn does
in each of them. ``format.TransactionValue`` is all that is stored for a transactional id.

The errors are those of Apache Kafka 4.3's coordinator. These are the differences:

- InitProducerId gets one answer. Kafka aborts the open transaction, answers
  CONCURRENT_TRANSACTIONS, and the client asks again.
- InitProducerId with an old identity never aborts the transaction of the current producer. Kafka
  checks the epoch after the abort.
- A retried InitProducerId is recognised after a restart too (``format.LAST_EPOCH_TAG``).
- Every write is checked, not only the first write of a transaction to a partition. A fenced writer
  gets INVALID_PRODUCER_EPOCH, as from Kafka's brokers. A V1 write to a partition that is not in the
  transaction gets TRANSACTION_ABORTABLE (old versions: INVALID_TXN_STATE, in the protocol layer).
- A transaction with too many partitions gets TRANSACTION_ABORTABLE (``checks.LARGEST_VALUE``).
- If the coordinator itself aborts in epoch 32766, it takes no new producer id: the next
  InitProducerId or EndTxn does.
"""
