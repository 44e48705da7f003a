"""The flights demo: a replayer, a pipeline, and a check of the pipeline's results.

It uses Kafka clients and Spark, so it also runs against Apache Kafka. It prints nothing: it reports
its progress to a listener (``progress.Listener``). It must not know the inside of the broker.

- ``flights`` reads the data set, and ``events`` makes records from it;
- ``database`` has the tables of aircraft and airlines, their edits and their capture;
- ``topics`` creates the topics and ``replay`` sends the records;
- ``control_room`` declares the pipeline and ``pipeline`` runs it;
- ``results`` reads what the pipeline publishes;
- ``check_results`` computes the same results from the data set, ``check`` compares records, and
  ``check_all`` compares the results, the database and what follows it, like the search index;
- ``page`` shows a run in the browser: it is a page of the gateway's console;
- ``run`` starts the parts, and ``following`` follows them to the end.
"""
