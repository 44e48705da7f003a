"""RabbitMQ's management API, read-only but for closing connections, at ``/api``.

``objects`` makes RabbitMQ's objects of what ``gateway.amqp`` knows, ``lists`` filters, sorts and
cuts lists, and ``app`` has the addresses. Served where ``gateway.amqp_url`` is set, which the
broker does for its own gateway, so not in front of Apache Kafka.

Source: https://www.rabbitmq.com/docs/management#http-api, and RabbitMQ 3.10.8 beside it.
"""
