"""Share groups (KIP-932) beside those of Apache Kafka, with Kafka's own Java client."""
