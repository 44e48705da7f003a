"""Topics: creation rules, growth, deletion, and what commands in flight see of each other."""

from __future__ import annotations

import itertools
from typing import Any
from uuid import UUID

import pytest

from tests.state.driver import MachineDriver
from tidemill.errors import TidemillError, TopicExistsError, UnknownTopicOrPartitionError
from tidemill.log.errors import (
    FormatVersionError,
    InvalidConfigError,
    InvalidRecordError,
    InvalidTopicError,
)
from tidemill.state.catalog.catalog import Catalog
from tidemill.state.catalog.types import AlterOp, ConfigChange, NewTopic, TopicInfo
from tidemill.state.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    PolicyViolationError,
    UnknownTopicIdError,
)
from tidemill.state.internal_topics import INTERNAL_TOPICS


class CatalogDriver(MachineDriver[Catalog]):
    """A catalog with its log."""

    def __init__(self, **settings: Any) -> None:
        numbers = itertools.count(100)
        settings.setdefault("new_topic_id", lambda: UUID(int=next(numbers)))
        super().__init__(Catalog(**settings))
        self.catalog = self.machine

    def create(self, *topics: NewTopic, **options: bool) -> list[TopicInfo | TidemillError]:
        return self.run(self.catalog.create(topics, **options))

    def restart(self) -> Catalog:
        return MachineDriver(Catalog(), self.log).machine


@pytest.fixture
def driver() -> CatalogDriver:
    return CatalogDriver()


def test_created_topic_is_found_by_name_and_id_also_after_a_restart() -> None:
    driver = CatalogDriver(default_partitions=4)
    (info,) = driver.create(NewTopic("t", configs={"retention.ms": "5"}))
    expected = TopicInfo("t", UUID(int=100), 4, internal=False)
    assert info == expected
    for catalog in (driver.catalog, driver.restart()):
        assert catalog.topic("t") == catalog.topic_by_id(UUID(int=100)) == expected
        assert catalog.topics() == [expected]
        assert catalog.config_of("t") == {"retention.ms": "5"}
        assert catalog.log_config("t").retention_ms == 5
        assert "t" in catalog
        assert catalog.partitions == 4


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (NewTopic("t"), TopicExistsError),
        (NewTopic("a_b.c"), InvalidTopicError),  # collides with a.b_c
        (NewTopic(""), InvalidTopicError),
        (NewTopic("a b"), InvalidTopicError),
        (NewTopic("x" * 250), InvalidTopicError),
        (NewTopic("__consumer_offsets"), InvalidTopicError),
        (NewTopic("n", 0), InvalidPartitionsError),
        (NewTopic("n", -2), InvalidPartitionsError),
        (NewTopic("n", 1, 2), InvalidReplicationFactorError),
        (NewTopic("n", 1, 0), InvalidReplicationFactorError),
        (NewTopic("n", 98), PolicyViolationError),
        (NewTopic("n", 1, -1, {0: [1]}), InvalidRequestError),
        (NewTopic("n", -1, 1, {0: [1]}), InvalidRequestError),
        (NewTopic("n", -1, -1, {1: [1]}), InvalidReplicaAssignmentError),
        (NewTopic("n", -1, -1, {0: [2]}), InvalidReplicaAssignmentError),
        (NewTopic("n", -1, -1, {0: []}), InvalidReplicaAssignmentError),
        (NewTopic("n", -1, -1, {0: [1, 1]}), InvalidReplicaAssignmentError),
        (NewTopic("n", configs={"nonsense": "1"}), InvalidConfigError),
        (NewTopic("n", configs={"retention.ms": "soon"}), InvalidConfigError),
        (NewTopic("n", configs={"retention.ms": None}), InvalidConfigError),
    ],
)
def test_impossible_topics_are_refused(topic: NewTopic, error: type[TidemillError]) -> None:
    driver = CatalogDriver(max_partitions=100)
    driver.create(NewTopic("t", 2), NewTopic("a.b_c", 1))
    (result,) = driver.create(topic)
    assert type(result) is error
    assert [info.name for info in driver.catalog.topics()] == ["a.b_c", "t"]


def test_topics_of_one_request_are_checked_against_each_other() -> None:
    driver = CatalogDriver(max_partitions=10)
    result = driver.create(
        NewTopic("a.b", 6), NewTopic("a_b"), NewTopic("c", 5), NewTopic("d"), NewTopic("d")
    )
    assert [type(each) for each in result] == [
        TopicInfo,
        InvalidTopicError,
        PolicyViolationError,
        InvalidRequestError,
        InvalidRequestError,
    ]


def test_assignments_give_the_number_of_partitions(driver: CatalogDriver) -> None:
    (info,) = driver.create(NewTopic("t", -1, -1, {1: [1], 0: [1], 2: [1]}))
    assert isinstance(info, TopicInfo)
    assert info.partitions == 3


def test_validate_only_changes_nothing(driver: CatalogDriver) -> None:
    (info,) = driver.create(NewTopic("t"), validate_only=True)
    assert isinstance(info, TopicInfo)
    assert driver.catalog.topics() == []
    (again,) = driver.create(NewTopic("t"))
    assert isinstance(again, TopicInfo)


def test_topic_ids_are_unique_and_not_reserved() -> None:
    numbers = iter([0, 1, 7, 7, 8])
    driver = CatalogDriver(new_topic_id=lambda: UUID(int=next(numbers)))
    infos = driver.create(NewTopic("a")) + driver.create(NewTopic("b"))
    assert [info.topic_id.int for info in infos if isinstance(info, TopicInfo)] == [7, 8]


def test_only_the_broker_changes_internal_topics(driver: CatalogDriver) -> None:
    for name in INTERNAL_TOPICS:
        (info,) = driver.create(NewTopic(name, 1), internal=True)
        assert isinstance(info, TopicInfo)
        assert info.internal
        assert isinstance(driver.run(driver.catalog.delete([name]))[0], InvalidTopicError)
        with pytest.raises(InvalidTopicError):
            driver.catalog.add_partitions(name, 5)
        with pytest.raises(InvalidTopicError):
            driver.catalog.replace_topic(name, {})
        with pytest.raises(InvalidTopicError):
            driver.catalog.alter_topic(name, [])


def test_topic_grows() -> None:
    driver = CatalogDriver(max_partitions=10)
    driver.create(NewTopic("t", 2))
    for total in (1, 2):
        with pytest.raises(InvalidPartitionsError):
            driver.catalog.add_partitions("t", total)
    with pytest.raises(PolicyViolationError):
        driver.catalog.add_partitions("t", 11)
    with pytest.raises(UnknownTopicOrPartitionError):
        driver.catalog.add_partitions("x", 4)
    for assignments in ([[1]], [[1], [2]], [[1], []]):
        with pytest.raises(InvalidReplicaAssignmentError):
            driver.catalog.add_partitions("t", 4, assignments)
    driver.run(driver.catalog.add_partitions("t", 4, validate_only=True))
    assert driver.catalog.topic("t").partitions == 2
    driver.run(driver.catalog.add_partitions("t", 4, [[1], [1]]))
    assert driver.restart().topic("t").partitions == 4
    assert driver.catalog.topic("t").topic_id == UUID(int=100)


def test_deleted_topic_is_gone_and_its_name_free(driver: CatalogDriver) -> None:
    (old,) = driver.create(NewTopic("a.b"))
    assert isinstance(old, TopicInfo)
    result = driver.run(driver.catalog.delete(["a.b", "x", "a.b"]))
    assert [type(each) for each in result] == [
        TopicInfo,
        UnknownTopicOrPartitionError,
        InvalidRequestError,
    ]
    for catalog in (driver.catalog, driver.restart()):
        with pytest.raises(UnknownTopicOrPartitionError):
            catalog.topic("a.b")
        with pytest.raises(UnknownTopicIdError):
            catalog.topic_by_id(old.topic_id)
    (new,) = driver.create(NewTopic("a_b"))
    assert isinstance(new, TopicInfo)
    assert new.topic_id != old.topic_id


def test_the_list_of_topics_follows_each_change_and_belongs_to_the_caller() -> None:
    driver = CatalogDriver()
    assert driver.catalog.topics() == []
    driver.create(NewTopic("b", 2), NewTopic("a"))
    driver.catalog.topics().clear()
    assert [(each.name, each.partitions) for each in driver.catalog.topics()] == [
        ("a", 1),
        ("b", 2),
    ]
    driver.run(driver.catalog.add_partitions("b", 4))
    assert [each.partitions for each in driver.catalog.topics()] == [1, 4]
    (first, _) = driver.catalog.topics()
    driver.run(driver.catalog.delete(["a"]))
    assert [each.name for each in driver.catalog.topics()] == ["b"]
    driver.create(NewTopic("a"))
    assert driver.catalog.topics()[0].topic_id != first.topic_id


def test_commands_see_records_that_are_not_written_yet() -> None:
    driver = CatalogDriver(max_partitions=3)
    first = driver.catalog.create([NewTopic("a.b", 2)])
    results = [
        driver.catalog.create([topic]).result[0] for topic in (NewTopic("a.b"), NewTopic("a_b"))
    ]
    assert [type(each) for each in results] == [TopicExistsError, InvalidTopicError]
    assert isinstance(driver.catalog.create([NewTopic("c", 2)]).result[0], PolicyViolationError)
    assert driver.catalog.topics() == []
    set_one = ConfigChange("retention.ms", AlterOp.SET, "1")
    set_two = ConfigChange("segment.ms", AlterOp.SET, "2")
    changes = [driver.catalog.alter_topic("a.b", [change]) for change in (set_one, set_two)]
    driver.run(first)
    for outcome in changes:
        driver.run(outcome)
    assert driver.catalog.config_of("a.b") == {"retention.ms": "1", "segment.ms": "2"}
    removal = driver.catalog.delete(["a.b"])
    assert isinstance(driver.catalog.delete(["a.b"]).result[0], UnknownTopicOrPartitionError)
    assert "a.b" in driver.catalog
    driver.run(removal)
    assert "a.b" not in driver.catalog


def test_commands_ignore_records_that_could_not_be_written(driver: CatalogDriver) -> None:
    driver.catalog.write_failed(driver.catalog.create([NewTopic("t")]))
    assert isinstance(driver.create(NewTopic("t"))[0], TopicInfo)
    driver.catalog.write_failed(driver.catalog.delete(["t"]))
    assert driver.run(driver.catalog.add_partitions("t", 2)).partitions == 2


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (b"?", b"", InvalidRecordError),
        (b"[]", b"", InvalidRecordError),
        (b'{"kind":"topic"}', b"", InvalidRecordError),
        (b'{"kind":"topic","name":"t"}', b"{}", InvalidRecordError),
        (b'{"kind":"topic","name":"t"}', b'{"v":2}', FormatVersionError),
        (
            b'{"kind":"topic","name":"t"}',
            b'{"v":1,"topic_id":"x","partitions":1}',
            InvalidRecordError,
        ),
        (
            b'{"kind":"topic","name":"t"}',
            b'{"v":1,"topic_id":"00000000-0000-0000-0000-000000000009","partitions":0,"configs":{}}',
            InvalidRecordError,
        ),
    ],
)
def test_malformed_records_are_refused(
    key: bytes, value: bytes, error: type[TidemillError]
) -> None:
    with pytest.raises(error):
        Catalog().replay(key, value)
