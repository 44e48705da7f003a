"""``tidemill exchange``: exchanges over AMQP, with the client of ``cli.queue``."""
