"""The public test cases of the library ``eventsourcing``, over stores of tidemill."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

pytest.importorskip("eventsourcing")

from eventsourcing.application import Application, ProcessingEvent
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    IntegrityError,
    OperationalError,
    ProcessRecorder,
    ProgrammingError,
    StoredEvent,
    Tracking,
    TrackingRecorder,
)
from eventsourcing.system import ProcessApplication, SingleThreadedRunner, System
from eventsourcing.tests.persistence import (
    AggregateRecorderTestCase,
    ApplicationRecorderTestCase,
    InfrastructureFactoryTestCase,
    NonInterleavingNotificationIDsBaseCase,
    ProcessRecorderTestCase,
    TrackingRecorderTestCase,
)
from eventsourcing.utils import Environment

from tidemill.confluent.clients import Kafka
from tidemill.eventstore.eventsourcing import (
    TidemillAggregateRecorder,
    TidemillApplicationRecorder,
    TidemillFactory,
    TidemillProcessRecorder,
    TidemillTrackingRecorder,
)

_NAMES = itertools.count(1)
MODULE = "tidemill.eventstore.eventsourcing"


class OnTidemill:
    """Gives the test cases an application of their own on the broker of the tests."""

    servers: ClassVar[str]

    @pytest.fixture(autouse=True)
    def _factories(self, kafka: Kafka) -> Iterator[None]:
        type(self).servers = kafka.servers
        self.made: list[TidemillFactory] = []
        yield
        for each in self.made:
            each.close()

    def new_factory(self) -> TidemillFactory:
        self.made.append(TidemillFactory(environment(self.servers)))
        return self.made[-1]


def environment(servers: str, **more: str) -> Environment:
    """Return the variables of an application that does not exist yet."""
    given = {"PERSISTENCE_MODULE": MODULE, "TIDEMILL_BOOTSTRAP_SERVERS": servers, **more}
    return Environment(f"App{next(_NAMES)}", given)


class TestAggregateRecorder(OnTidemill, AggregateRecorderTestCase):
    def create_recorder(self) -> AggregateRecorder:
        return self.new_factory().aggregate_recorder()


class TestApplicationRecorder(OnTidemill, ApplicationRecorderTestCase[ApplicationRecorder]):
    def create_recorder(self) -> ApplicationRecorder:
        return self.new_factory().application_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestTrackingRecorder(OnTidemill, TrackingRecorderTestCase):
    def create_recorder(self) -> TrackingRecorder:
        return self.new_factory().tracking_recorder()


class TestProcessRecorder(OnTidemill, ProcessRecorderTestCase):
    def create_recorder(self) -> ProcessRecorder:
        return self.new_factory().process_recorder()


class TestApplicationRecorderOfProcesses(
    OnTidemill, ApplicationRecorderTestCase[ApplicationRecorder]
):
    def create_recorder(self) -> ApplicationRecorder:
        return self.new_factory().process_recorder()

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class TestNonInterleavingNotificationIDs(OnTidemill, NonInterleavingNotificationIDsBaseCase):
    def create_recorder(self) -> ApplicationRecorder:
        return self.new_factory().application_recorder()


class SpecialTracking(TidemillTrackingRecorder):
    pass


class TestFactory(OnTidemill, InfrastructureFactoryTestCase[TidemillFactory]):
    def setUp(self) -> None:
        self.env = environment(self.servers)
        super().setUp()

    def expected_factory_class(self) -> type[TidemillFactory]:
        return TidemillFactory

    def expected_aggregate_recorder_class(self) -> type[AggregateRecorder]:
        return TidemillAggregateRecorder

    def expected_application_recorder_class(self) -> type[ApplicationRecorder]:
        return TidemillApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[TrackingRecorder]:
        return TidemillTrackingRecorder

    def tracking_recorder_subclass(self) -> type[TrackingRecorder]:
        return SpecialTracking

    def expected_process_recorder_class(self) -> type[ProcessRecorder]:
        return TidemillProcessRecorder


# The bases must not run as tests of their own.
del AggregateRecorderTestCase, ApplicationRecorderTestCase, TrackingRecorderTestCase
del ProcessRecorderTestCase, NonInterleavingNotificationIDsBaseCase, InfrastructureFactoryTestCase


class Dog(Aggregate):
    """An aggregate of the library."""

    @event("Registered")
    def __init__(self, name: str) -> None:
        self.name = name
        self.tricks: list[str] = []

    @event("TrickAdded")
    def add_trick(self, trick: str) -> None:
        self.tricks.append(trick)


class Dogs(Application[uuid.UUID]):
    is_snapshotting_enabled = True


class Counts(ProcessApplication[uuid.UUID]):
    """Counts tricks, and records nothing about other events."""

    def policy(self, domain_event: Any, processing_event: ProcessingEvent[uuid.UUID]) -> None:
        if isinstance(domain_event, Dog.TrickAdded):  # type: ignore[attr-defined]
            processing_event.collect_events(Dog(name="trick"))


def test_an_application_with_snapshots_in_two_processes_of_the_library(kafka: Kafka) -> None:
    env = environment(kafka.servers, TIDEMILL_TOPIC_PREFIX=f"p{next(_NAMES)}.")
    first, second = Dogs(dict(env)), Dogs(dict(env))
    dog = Dog(name="Fido")
    first.save(dog)
    for number in range(30):
        dog.add_trick(f"trick {number}")
        first.save(dog)
        if number == 20:
            first.take_snapshot(dog.id)
    first.take_snapshot(dog.id)
    # Another process sees it; its tail needs a moment.
    with second.recorder.subscribe(gt=30) as subscription:
        assert next(subscription).originator_id == dog.id
    assert second.repository.get(dog.id).tricks == [f"trick {n}" for n in range(30)]
    assert second.repository.get(dog.id, version=10).tricks == [f"trick {n}" for n in range(9)]
    other: Dog = second.repository.get(dog.id)
    other.add_trick("of the second")
    second.save(other)
    dog.add_trick("of the first")
    with pytest.raises(IntegrityError):
        first.save(dog)
    first.close()
    second.close()


def test_a_system_of_applications(kafka: Kafka) -> None:
    env = environment(kafka.servers, TIDEMILL_TOPIC_PREFIX=f"p{next(_NAMES)}.")
    system = System(pipes=[[Dogs, Counts]])
    runner: SingleThreadedRunner[uuid.UUID] = SingleThreadedRunner(system, dict(env))
    with runner:
        dog = Dog(name="Fido")
        dog.add_trick("roll")
        dog.add_trick("sit")
        runner.get(Dogs).save(dog)
        counts = runner.get(Counts)
        assert counts.recorder.max_tracking_id("Dogs") == 3
        found = counts.recorder.select_notifications(start=1, limit=10)
        assert len(found) == 2


def test_versions_must_grow_also_with_holes(kafka: Kafka) -> None:
    factory = TidemillFactory(environment(kafka.servers))
    recorder = factory.aggregate_recorder("snapshots")
    id_ = uuid.uuid4()

    def insert(*versions: int) -> None:
        recorder.insert_events([StoredEvent(id_, each, "t", b"%d" % each) for each in versions])

    def found(**options: Any) -> list[int]:
        return [each.originator_version for each in recorder.select_events(id_, **options)]

    insert(0)
    insert(5, 9)
    for wrong in ((9,), (4,), (12, 10), (10, 10), (0,)):
        with pytest.raises(IntegrityError):
            insert(*wrong)
    insert(10)
    assert found() == [0, 5, 9, 10]
    assert found(gt=5) == [9, 10]
    assert found(gt=0, lte=9, desc=True, limit=1) == [9]
    assert found(lte=8, desc=True, limit=1) == [5]
    assert found(limit=0) == []
    contiguous = uuid.uuid4()
    recorder.insert_events([StoredEvent(contiguous, each, "t", b"") for each in range(3, 30)])
    for gt, lte in itertools.product([None, -5, 0, 3, 10, 29, 99], repeat=2):
        read = [e.originator_version for e in recorder.select_events(contiguous, gt=gt, lte=lte)]
        low, high = -1 if gt is None else gt, 99 if lte is None else lte
        assert read == [each for each in range(3, 30) if low < each <= high]
    factory.close()


def test_two_recorders_with_one_tracking_record_it_once(kafka: Kafka) -> None:
    env = environment(kafka.servers)
    factories = [TidemillFactory(env), TidemillFactory(env)]
    outcomes: list[bool] = []
    start = threading.Barrier(2)

    def work(recorder: ProcessRecorder) -> None:
        start.wait()
        for number in range(1, 21):
            stored = [StoredEvent(uuid.uuid4(), 1, "t", b"")]
            try:
                recorder.insert_events(stored, tracking=Tracking("up", number))
                outcomes.append(True)
            except IntegrityError:
                outcomes.append(False)

    recorders = [each.process_recorder() for each in factories]
    threads = [threading.Thread(target=work, args=(each,)) for each in recorders]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert outcomes.count(True) <= 20
    assert recorders[0].max_tracking_id("up") == 20
    with recorders[0].subscribe(gt=0) as subscription:
        ids = [next(subscription).id for _ in range(outcomes.count(True))]
    assert ids == list(range(1, len(ids) + 1))
    for factory in factories:
        factory.close()


def test_wrong_settings_are_errors_of_the_library(kafka: Kafka) -> None:
    def make(**more: str) -> Callable[[], Any]:
        return TidemillFactory(environment(kafka.servers, **more)).application_recorder

    with pytest.raises(ProgrammingError, match="expected key=value"):
        make(TIDEMILL_PROPERTIES="nonsense")()
    with pytest.raises(ProgrammingError, match="is not a TidemillApplicationRecorder"):
        make(APPLICATION_RECORDER_TOPIC="uuid:UUID")()
    with pytest.raises(OperationalError, match="does not exist"):
        make(CREATE_TABLE="no")()
