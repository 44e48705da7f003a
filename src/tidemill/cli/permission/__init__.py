"""``tidemill permission``: what users of AMQP may do with queues and exchanges."""
