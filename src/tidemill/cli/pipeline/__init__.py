"""``tidemill pipeline``: runs pipelines on Spark, and shows how they are doing.

``run`` runs the pipeline in a Python file (``file``) and shows it (``view``). ``commands`` lists,
describes and resets pipelines. ``status`` formats the statuses of queries.
"""
