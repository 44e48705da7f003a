"""AMQP, as the gateway's pages need it: ``state`` knows queues, connections, channels and bindings,
and ``actions`` changes them."""
