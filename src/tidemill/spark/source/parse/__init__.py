"""Turns the values of records into typed Arrow columns: JSON today, other formats later.

``make_parser`` is the door. Must not know: Spark, Kafka clients, pipelines.
"""

from tidemill.spark.source.parse.contract import Parsed, Parser
from tidemill.spark.source.parse.make import FORMATS, make_parser
from tidemill.spark.source.parse.schema import ParsedColumn, ParseSchema

__all__ = [
    "FORMATS",
    "ParseSchema",
    "Parsed",
    "ParsedColumn",
    "Parser",
    "make_parser",
]
