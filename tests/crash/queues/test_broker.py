"""A broker with queues is killed under the load of real clients, and so are its consumers.

The clients are pika, aio-pika and py-amqp, in processes of their own (``client``). In a second
series, the power is cut: what no fdatasync covered is lost, in segments and in the journal.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.conftest import BrokerFactory
from tests.crash.power import Power
from tests.crash.queues.client import (
    AGAIN_S,
    DEAD,
    JOBS,
    PIKA_ERRORS,
    POISON,
    number_of,
)
from tests.crash.queues.history import NUMBERS, History, Lives, check, check_letters
from tests.support.broker_process import BrokerProcess
from tests.support.effort import chosen_seed, rounds
from tests.support.processes import ServerProcess, poll_until

pytestmark = [pytest.mark.crash, pytest.mark.separate, pytest.mark.timeout(1700)]

KILLS = rounds("CRASH_KILLS", 2, nightly=60)
CUTS = rounds("CRASH_KILLS", 2, nightly=30)
ROOT = Path(__file__).parents[3]
DEADLINE_S = 600
CONSUMERS = ("consume-pika", "consume-amqp", "consume-pika")
ARGUMENTS = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}


class Clients:
    """The processes of the clients. Those that consume are killed and replaced."""

    def __init__(self, broker: BrokerProcess, folder: Path, dice: random.Random) -> None:
        self.url = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F?heartbeat=0"
        self._folder = folder
        self._dice = dice
        self._numbers = itertools.count()
        self._outputs: list[Path] = []
        self._running: list[tuple[str, ServerProcess]] = []

    def start(self, what: str) -> None:
        """Start a client."""
        number = next(self._numbers)
        output = self._folder / f"client-{number}.out"
        arguments = [what, self.url, str(number * NUMBERS), str(self._dice.randrange(1 << 32))]
        process = ServerProcess(
            what,
            [sys.executable, "-m", "tests.crash.queues.client", *arguments],
            self._folder / f"client-{number}.log",
            stdout_path=output,
            cwd=ROOT,
            forked=True,
        )
        self._outputs.append(output)
        self._running.append((what, process))

    def replace(self, what: str) -> None:
        """Kill a client, and start another one like it."""
        at = next(at for at, (name, _) in enumerate(self._running) if name == what)
        self._running.pop(at)[1].kill()
        self.start(what)

    def kill(self, kinds: str = "") -> None:
        """Kill the clients whose names begin so."""
        for what, process in self._running:
            if what.startswith(kinds):
                assert process.exit_code is None, process.output()
                process.kill()
        self._running = [each for each in self._running if not each[0].startswith(kinds)]

    def lines(self, kind: str) -> int:
        """Return how many lines of a kind there are."""
        mark = f"\n{kind} ".encode()
        return sum(output.read_bytes().count(mark) for output in self._outputs)

    def history(self) -> History:
        """Return what all of them have seen."""
        history = History()
        for output in self._outputs:
            with output.open() as lines:
                history.read(lines)
        return history


def declare(broker: BrokerProcess) -> None:
    """Create the queues. Their segments are small, so that some are deleted meanwhile."""
    with channel_of(broker) as channel:
        channel.queue_declare(DEAD, durable=True)
        channel.queue_declare(JOBS, durable=True, arguments=ARGUMENTS)
        channel.exchange_declare("work", "direct", durable=True)
        channel.queue_bind(JOBS, "work", JOBS)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    small = ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET)
    topics = [
        ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[small])
        for name in (JOBS, DEAD)
    ]
    for done in admin.incremental_alter_configs(topics).values():
        done.result(timeout=60)


@contextlib.contextmanager
def channel_of(broker: BrokerProcess) -> Iterator[pika.channel.Channel]:
    """Connect with pika."""
    address = f"amqp://guest:guest@127.0.0.1:{broker.amqp_port}/%2F?heartbeat=0"
    connection = pika.BlockingConnection(pika.URLParameters(address))
    yield connection.channel()
    connection.close()


def run_series(
    broker: BrokerProcess,
    folder: Path,
    dice: random.Random,
    kills: int,
    between: Callable[[], None] = lambda: None,
) -> tuple[History, Lives]:
    """Kill broker and consumers under load, ``kills`` times each; then drain the queues and check.

    Args:
        between: damages the folder of the killed broker.
    """
    lives = Lives()
    lives.started.append(time.monotonic() - 1)
    declare(broker)
    clients = Clients(broker, folder, dice)
    try:
        for what in ("publish-pika", "publish-aio-pika", *CONSUMERS):
            clients.start(what)
        victims = [True] * kills + [False] * kills
        dice.shuffle(victims)
        for is_broker in victims:
            wanted = clients.lines("D") + dice.randint(1, 250)
            poll_until(lambda n=wanted: clients.lines("D") > n, DEADLINE_S, "messages come")  # type: ignore[misc]
            if not is_broker:
                clients.replace(dice.choice(CONSUMERS))
                continue
            broker.kill()
            lives.ended.append(time.monotonic())
            between()
            lives.started.append(time.monotonic())
            broker.start(DEADLINE_S)
        wanted = clients.lines("P") + 50
        poll_until(
            lambda: clients.lines("P") > wanted and clients.lines("A") > 0,
            DEADLINE_S,
            "messages are confirmed and acknowledged",
        )
    finally:
        clients.kill("publish")
        clients.kill()
    history = clients.history()
    letters = drain(broker, history)
    check_letters(history.confirmed, letters)
    return history, lives


def drain(broker: BrokerProcess, history: History) -> list[int]:
    """Consume what is left, and return the numbers in the dead-letter queue."""
    waiting = history.confirmed - {each.number for each in history.deliveries}
    poison = {number for number in history.confirmed if number % POISON == 0}
    letters: list[int] = []
    deadline = time.monotonic() + DEADLINE_S
    with channel_of(broker) as channel:
        # A queue is empty when all came and none is left; a dead letter is on its way for a moment.
        while True:
            left = 0
            for method, _, body in iter(lambda: channel.basic_get(JOBS), (None, None, None)):
                number = number_of(body)
                waiting.discard(number)
                (channel.basic_ack if number % POISON else reject(channel))(method.delivery_tag)
                left += 1
            found = [
                number_of(body)
                for _, _, body in iter(
                    lambda: channel.basic_get(DEAD, auto_ack=True), (None, None, None)
                )
            ]
            letters += found
            if not left and not found and not waiting and poison <= set(letters):
                return letters
            assert time.monotonic() < deadline, (
                f"confirmed and never delivered: {sorted(waiting)[:5]}; "
                f"no dead letter: {sorted(poison - set(letters))[:5]}"
            )
            time.sleep(AGAIN_S)


def reject(channel: pika.channel.Channel) -> Callable[[int], None]:
    return lambda tag: channel.basic_reject(tag, requeue=False)


@contextlib.contextmanager
def explained(broker: BrokerProcess, seed: int, notes: list[str]) -> Iterator[None]:
    """Add to a failure what is needed to understand it."""
    try:
        yield
    except (AssertionError, TimeoutError, *PIKA_ERRORS) as error:
        raise AssertionError(f"{error}\nseed {seed}; {notes[-8:]}\n{broker.log()}") from error


def test_queues_survive_kills_of_the_broker_and_of_consumers(
    start_broker: BrokerFactory, tmp_path: Path
) -> None:
    seed = chosen_seed(12)
    broker = start_broker()
    with explained(broker, seed, []):
        history, lives = run_series(broker, tmp_path, random.Random(seed), KILLS)
        check(history, lives)
        assert history.stored, "no acknowledgement was known to be on disk"


@pytest.mark.disk  # in memory a sync takes no time, so no power cut would hit one
def test_queues_survive_power_cuts(start_broker: BrokerFactory, tmp_path: Path) -> None:
    seed = chosen_seed(13)
    dice = random.Random(seed)
    power = Power(start_broker, tmp_path)
    notes: list[str] = []
    with explained(power.broker, seed, notes):
        history, lives = run_series(
            power.broker, tmp_path, dice, CUTS, lambda: notes.extend(power.cut(dice))
        )
        check(history, lives)
        assert history.stored, "no acknowledgement was known to be on disk"
        assert notes or CUTS < 20, "the damage never hit anything"
        journal = [note for note in notes if note.endswith(".journal")]
        assert journal or CUTS < 20, "no entry of the journal was damaged"
