"""The size of functions, and one way for each job: the table in docs/architecture.md.

``lint-imports`` checks the imports.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "tidemill"
TEXTS = {str(path.relative_to(SRC)): path.read_text() for path in sorted(SRC.rglob("*.py"))}


def using(pattern: str) -> set[str]:
    """Return the modules whose text has a match."""
    return {name for name, text in TEXTS.items() if re.search(pattern, text)}


def test_one_module_of_each_client_writes_transactions() -> None:
    assert using(r"\.(init_transactions|begin_transaction|send_offsets_to_transaction)\b") == {
        "confluent/producing.py"
    }
    assert using(r"import .*TransactionalProducer as LibrdkafkaProducer") == {
        "connect/base/producer.py",
        "spark/sinks/topic/delivery/exactly_once.py",
    }
    assert using(r"class \w*TransactionalProducer\b") == {
        "confluent/producing.py",
        "kafka_client/producing/transactional.py",
    }


def test_topics_are_read_by_one_module_of_each_client() -> None:
    """Besides: Arrow for logins that ours lacks, and the first record behind some offsets."""
    assert using(r"onsumer\.(consume|poll)\(") == {
        "cli/group/lag.py",
        "cli/topic/commits.py",  # runs callbacks
        "confluent/reading.py",
        "reading/librdkafka.py",
    }
    assert using(r"\bDecoder\(") == {"reading/own.py"}


def test_json_becomes_columns_in_one_module() -> None:
    """And not by Spark, whose rules are others."""
    assert using(r"\bextension\.JsonParser\(") == {"reading/parse/json_parser.py"}
    assert using(r"(?i)\b(f|sf|functions)\.from_json\b|functions import .*\bfrom_json\b") == set()


def test_only_its_loader_checks_for_the_extension() -> None:
    assert using(r"_native is (not )?None|native\.load\(|hasattr\(extension") == set()
    assert using(r"import _native\b") == {"native.py"}


def test_steps_of_the_log_are_run_in_slices_by_one_module() -> None:
    assert using(r"run_in_executor\(None, work\.run\)") == {"engine/records/slices.py"}


FUNCTION_LINES = 60


def test_no_function_is_too_long() -> None:
    long = {
        f"{path}:{node.name}": lines
        for path, text in TEXTS.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }
    assert long == {}
