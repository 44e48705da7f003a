"""A small Kafka client for the requests that librdkafka does not offer.

It is synchronous and sends one request at a time: ``client`` finds the broker, ``connection`` sends
to one broker, ``tls`` reads librdkafka's TLS properties, ``errors`` turns error codes into
exceptions and retries transient ones. ``kafka_codec`` encodes and decodes the messages.
"""
