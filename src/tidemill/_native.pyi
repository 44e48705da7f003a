"""The compiled extension (sources in ``src/native``)."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from typing_extensions import Buffer

SOURCES: int
"""The checksum of the sources; see ``tidemill.native``."""

class Block:
    """Bytes of one Arrow buffer, through the buffer protocol."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class Decoder:
    """Turns record batches (message format v2) into Arrow columns.

    Args:
        with_headers: Whether to decode headers.
        check_crcs: Whether to compare the CRC-32C of each batch.
        decompress: Returns decompressed records, given a codec number and the compressed bytes.
    """

    def __init__(
        self,
        with_headers: bool,
        check_crcs: bool,
        decompress: Callable[[int, memoryview], Buffer],
        /,
    ) -> None: ...
    def feed(self, records: Buffer, aborted: list[tuple[int, int]] | None, /) -> None:
        """Take the record set of a response.

        Args:
            records: Stored batches. The last one can be incomplete.
            aborted: Producer id and first offset of aborted transactions, by offset. Their records
                are left out. None to read all records.
        """

    def read(
        self, first: int, end: int, max_rows: int, max_bytes: int, /
    ) -> tuple[int, int, int, tuple[Block | None, ...]]:
        """Return the next records as Arrow buffers.

        Args:
            first: The first wanted offset.
            end: The offset after the last wanted one.
            max_rows: Most rows.
            max_bytes: Most bytes of keys, values and headers, unless one record is larger.

        Returns:
            The offset to continue with; what ended the call (0: a limit, 1: the end of the record
            set, 2: the end of the range, 3: a batch in an old message format); the number of rows;
            and the buffers of the columns key, value, offset, timestamp (microseconds),
            timestampType and headers.

        Raises:
            ValueError: The records are damaged.
        """

    def release(self) -> None:
        """Release the record set."""

class RecordEncoder:
    """Turns Arrow columns into records, by partition.

    Args:
        partitions: Number of partitions.
        batch_bytes: Most bytes of a body, unless one record is larger.
        record_bytes: Most bytes of a record.
        open_bytes: Bytes of all bodies at which ``add`` returns.
        method: 0 for the partitioner murmur2, 1 for murmur2_random.
        start: The first partition of records without a key.

    Raises:
        ValueError: A limit is invalid.
    """

    def __init__(
        self,
        partitions: int,
        batch_bytes: int,
        record_bytes: int,
        open_bytes: int,
        method: int,
        start: int,
        /,
    ) -> None: ...
    def add(
        self, columns: tuple[Any, ...], row: int, timestamp: int, /
    ) -> tuple[int, int, list[tuple[int, int, int, int, Block]]]:
        """Add rows until a body is closed, or one of them can't be added.

        Args:
            columns: Value, key, partition and headers, as tuples of Arrow buffers.
            row: The first row.
            timestamp: The time of the records in ms since 1970.

        Returns:
            The row to continue with; what ended the call (0: all rows, 1: a limit, 2: the row is
            too large, 3: its partition does not exist, 4: the key of a header is null); and the
            closed bodies: partition, records, first and greatest timestamp, bytes.

        Raises:
            ValueError: The columns are not valid Arrow columns.
        """

    def append(
        self, key: bytes | None, value: bytes | None, timestamp: int, headers: bytes = b"\0", /
    ) -> int:
        """Add one record; return 0, or 2 if it is too large and was not added.

        Args:
            key: Its key.
            value: Its value.
            timestamp: Its time in ms since 1970.
            headers: Its headers, encoded as in a record: their number, and each with its lengths.
        """

    def closed(self) -> list[tuple[int, int, int, int, Block]]:
        """Return the bodies that ``append`` has closed."""

    def take(self) -> list[tuple[int, int, int, int, Block]]:
        """Return all bodies, and begin new ones."""

    def grow(self, partitions: int, /) -> None:
        """Raise the number of partitions.

        Raises:
            ValueError: It is less than before, or more than a million.
        """

    def partitions(self) -> int:
        """Return the number of partitions."""

    def size(self) -> int:
        """Return the bytes of the bodies that are not closed."""

def check_batch(records: Buffer, crc: int, /) -> tuple[tuple[int, ...], int, int, int] | None:
    """Check an ordinary batch of a client.

    Args:
        records: the batch. It must be writable, or None is returned.
        crc: its CRC-32C if that is known; -1 computes it.

    Returns:
        The fields of the header, the smallest timestamp delta (or 0), the largest one, and how many
        records have no key; None for any other batch.
    """

def read_produce(
    frame: Buffer, position: int, version: int, /
) -> tuple[str | None, int, int, list[tuple[str, bytes | None, list[tuple[int, int, int]]]]]:
    """Decode a Produce request, whose body begins at ``position``.

    Returns:
        Transactional id, acks, timeout, and the topics with name, id, and (index, start, end) of
        each partition's records, -1 for null.

    Raises:
        ValueError: The rest of the frame is not exactly one such request.
    """

def read_run(
    frames: list[memoryview], /
) -> tuple[
    int,
    int,
    list[
        tuple[
            int,
            list[
                tuple[str, bytes | None, list[tuple[int, int, int, tuple[int, int, int, int, int]]]]
            ],
        ]
    ],
]:
    """Decode and check the ordinary Produce requests at the front of a list.

    They have the same version and acks, and no transaction; see ``kafka_codec.hot.read_run``.

    Args:
        frames: Requests without their lengths, in buffers that can be changed.

    Returns:
        The version, acks, and for each request its correlation id and its topics, as
        ``read_produce`` returns them. Behind the end of a batch are its number of records, latest
        and earliest timestamp, number of records without a key, and producer id.
    """

def encode_produced(
    version: int, requests: list[Any], results: list[Any], throttle_ms: int, /
) -> bytes:
    """Encode the responses to Produce requests, with lengths and headers.

    Args:
        requests: Correlation id and topics of each; the body alone is encoded where the id is None.
        results: For each partition of all requests (base offset, LogAppendTime, start of the log);
            or (error code, base offset, start of the log, message, refused records).

    Raises:
        TypeError, ValueError: An argument is not like that.
    """

class CopiesFields:
    """The members of ``log.disk.environment.Copies``."""

    used: int
    limit: int

class FileFields:
    """The members of ``log.disk.log_file.LogFile`` that native code reads."""

    size: int
    fd: int
    dirty: bool
    broken: bool
    retired: bool
    releasing: bool
    used: bool

class SegmentFields:
    """The members of ``log.disk.segment.Segment`` that native code reads.

    Attributes:
        log_file: The file; None if it was not used yet.
    """

    log_file: Any
    table: IndexTable | None
    first_timestamp: int | None
    base_offset: int
    size: int
    end_offset: int
    max_timestamp: int
    created_ms: int
    named: bool

class ProducerFields:
    """The members of ``log.partition.producers.ProducerEntry`` that native code reads."""

    batches: list[Any]
    epoch: int
    known_sequences: int
    last_offset: int
    last_timestamp_ms: int
    txn_first_offset: int

    def add(self, first_sequence: int, last_offset: int, delta: int, timestamp: int, /) -> None:
        """Add the next batch of the epoch to ``batches``, which keep the last ``WINDOW``.

        Args:
            delta: The number of its records, less one.
        """

class IndexTable:
    """The indexes of the active segment. Offsets are relative to the segment's base offset.

    Args:
        offsets, times: The entries in the files so far; None for none.

    Attributes:
        offsets, times: The entries, in the format of the files.
        written_offsets, written_times: Bytes of the entries that are in the files.
        last_relative, last_position: The last batch that was added, or -1.
        max_timestamp, max_relative: Latest timestamp so far, and the last offset of its batch.
        since_entry: Bytes of batches since the last entry.
    """

    offsets: bytearray
    times: bytearray
    last_relative: int
    last_position: int
    max_timestamp: int
    max_relative: int
    written_offsets: int
    written_times: int
    since_entry: int

    def __init__(
        self, offsets: bytearray | None = None, times: bytearray | None = None, /
    ) -> None: ...
    def add(
        self, relative: int, position: int, size: int, max_timestamp: int, interval: int, /
    ) -> None:
        """Add a batch of ``size`` bytes at ``position``, whose last offset is ``relative``.

        Args:
            interval: Bytes of batches between two entries.

        Raises:
            OverflowError: The offset or the position does not fit into an entry.
        """

    def seal(self) -> None:
        """Add final entries to both indexes: the last batch and the latest timestamp."""

    def find_recent(self, relative: int, end: int, /) -> tuple[int, int] | None:
        """Return position and size of the batch with an offset; None if it is not recent.

        Args:
            end: The end of the last batch.
        """

    def batch_start(self, position: int, /) -> int:
        """Return a position at or before ``position`` where a batch starts."""

    def recent(self) -> list[tuple[int, int]]:
        """Return last offset and position of the recent batches, which need no scan: 512 to 1024,
        unless there are fewer.
        """

class Head:
    """What native code and Python share of one partition. Its chain of segments creates it.

    Attributes:
        segment: The active segment.
        partition: The number of the partition.
        start_offset: The first offset that can be read. It can be inside the first segment.
        end_offset: The offset of the next record.
        changed: Whether the files differ from what the last clean stop left.
        is_offline: Whether the chain has failed.
        leader_epoch: The epoch that is stamped into batches.
        bytes_since: Bytes that were appended since the last recovery point was prepared.
        high_watermark: All records below it are in the journal or in synced segments, and so
            survive a power cut. Readers see nothing above it.
        end_segment: The segment that holds the high watermark.
        end_position: The byte position of the high watermark in ``end_segment``.
        topic_id: The id of the topic as the journal has it; empty if it was lost.
        new_folder: Whether the folder, or its entry in the data folder, is perhaps not synced.
        closed: The segments that were closed and are not synced.
        memory: Bounds the copies of all partitions.
        copies: Copies of unsynced batches, for the journal.
        copied: Their bytes.
        copied_from: The offset of the first copy; -1 if a copy is missing behind it.
        copied_limit: Most bytes of copies.
        config: The configs of the topic.
        segment_bytes, segment_ms, index_bytes: When a segment is closed, by its configs. The age
            of the segment varies by ``segment.jitter.ms``.
        index_interval: Bytes of log between two entries of an index.
        producers: The idempotent producers by their ids; None if they are not loaded.
        refused: Batches that were refused with a retriable error, by producer.
        ended: Ended transactions whose marker is not synced.
        settle: Releases those below an offset.
    """

    segment: Any
    end_segment: Any
    config: Any
    copies: list[bytes]
    closed: list[Any]
    topic_id: bytes
    memory: CopiesFields
    producers: Mapping[int, ProducerFields] | None
    refused: Mapping[int, Any]
    ended: Collection[Any] | None
    settle: Callable[[int], None] | None
    partition: int
    start_offset: int
    end_offset: int
    leader_epoch: int
    bytes_since: int
    high_watermark: int
    end_position: int
    copied: int
    copied_from: int
    copied_limit: int
    segment_bytes: int
    segment_ms: int
    index_bytes: int
    index_interval: int
    changed: bool
    is_offline: bool
    new_folder: bool

    def drop_copies(self, from_offset: int = -1, /) -> None:
        """Drop the copies for the journal. Those from an offset on can go there; -1 is none."""

    def fits_journal(self) -> bool:
        """Return whether the journal can take all that is unsynced, and it is not too much for it.

        It can't where files or names are to be synced: those of a new folder, of a new segment or
        of one that was closed.
        """

class TargetFields:
    """The members of ``engine.runs.Target``.

    Attributes:
        log: The log of the partition; None if it was not looked up.
        head: Its head.
        appender: Its appender.
        config: The configs of the topic when the log was looked up.
        limits: What they allow.
    """

    tp: Any
    topic_id: Any
    log: Any
    head: Head | None
    appender: Any
    config: Any
    limits: Any

LOG_BYTES: int
"""Most unsynced bytes of a partition that go to the journal."""
STREAM_BYTES: int
"""The same for a partition that had more, until it goes through the journal again."""
WINDOW: int
"""Batches that the state of a producer keeps."""

def prepare_producers(batch: type, /) -> None:
    """Give the type of a batch in the state of a producer, before one is added."""

def take_pieces(heads: list[Head], most_bytes: int, piece: type, /) -> list[Any]:
    """Return (piece, segment) for logs, or None; see ``log.rounds.take_pieces``.

    Args:
        piece: The type of pieces, a named tuple.
    """

def encode_pieces(pieces: list[Any], /) -> list[Any]:
    """Return the buffers of pieces: the header of each (``log.journal.entry``), and its batches.

    Raises:
        TypeError: A piece is no named tuple.
        OverflowError: A field is too large.
        ValueError: A topic id does not have 16 bytes.
    """

def promised_ends(heads: list[Head], /) -> bytes:
    """Return what was promised of logs; see ``log.rounds.promised_ends``."""

def finish_pieces(heads: list[Head], taken: list[Any], /) -> list[tuple[bool, bool]]:
    """Raise high watermarks; see ``log.rounds.finish_pieces``."""

def admit_run(
    run: list[Any], logs: Mapping[Any, Any], hidden: Collection[Any], now_ms: int, /
) -> tuple[int, dict[Any, list[int]], int, bool]:
    """Return what of a run can be appended as it is: ordinary batches for known partitions.

    Args:
        run: For each batch its target (``engine.runs``), its bytes and what ``read_run`` returns
            about it.
        logs: The logs.
        hidden: The partitions that clients must not see yet.
        now_ms: The time of the broker.

    Returns:
        The number of batches at the front that can be appended, their places for each target, and
        their bytes. The batch behind them is not ordinary for its topic; or its log must be looked
        up again, which is the last value.
    """

def append(
    appender: Any, head: Head, data: Buffer, batches: list[tuple[int, int, int]], now_ms: int, /
) -> None:
    """Append batches to one log, all of them or none.

    Args:
        appender: The ``log.partition.append.Appender`` of the log.
        data: The batches. Base offsets and the leader epoch are stamped.
        batches: Bytes, number of offsets and latest timestamp of each.

    Raises:
        StorageError: What ``Appender.prepare``, ``roll`` and ``write`` raise. Nothing is appended,
            or it could not be recorded, and the partition is offline.
    """

def make_room(
    appender: Any, head: Head, size: int, records: int, latest: int, now_ms: int, /
) -> None:
    """Start a new segment if ``append`` would do so for such a batch.

    Raises:
        StorageError: What ``Appender.prepare`` and ``roll`` raise.
    """

def append_run(
    run: list[Any],
    targets: dict[Any, list[int]],
    results: list[Any],
    now_ms: int,
    /,
) -> list[int]:
    """Append a run of checked batches; see ``log.partition.append.append_run``.

    Args:
        run: For each batch its target, its bytes and what ``read_run`` returns about it.
        targets: The places in ``run`` of the batches of each target.
        results: Gets the base offset, -1, and the start of the log for each batch; or the error.
        now_ms: The time of the broker.

    Returns:
        For each target, how many of its batches were appended.
    """

def scan_batches(records: Buffer, /) -> tuple[int, int]:
    """Return the end of the complete record batches.

    Args:
        records: Stored batches. The last one can be incomplete.

    Returns:
        The offset after the last complete batch, or -1 if there is none; and their bytes.
    """

def walk_records(
    body: Buffer, position: int, first: int, last: int, /
) -> tuple[int, int, int, int, int]:
    """Check the records ``first`` to ``last`` of a batch, up to one that needs a closer look.

    Args:
        body: the records of a batch, decompressed.
        position: where record ``first`` begins.

    Returns:
        The position and the index of the next record; the smallest timestamp delta, or 0; the
        largest one, or -2**63 if there is none; and the number of records without a key.
    """

class JsonParser:
    """A parser of JSON values for one schema (``tidemill.reading.parse.json_parser``)."""

    def __new__(
        cls,
        row: tuple[Any, ...],
        built: tuple[bool, ...],
        event_time: int,
        timestamp_power: int,
        /,
    ) -> JsonParser:
        """Prepare for a schema.

        Args:
            row: the node of the row, a struct of all columns. A node is its name in UTF-8, its
                kind (``json_kind`` in src/native/json.h), the bytes of a value of a fixed size or
                0, precision, scale, and the nodes in it.
            built: whether to build each column.
            event_time: number of the column that must not be null, or -1.
            timestamp_power: a number times ten to this is microseconds; -1 if no number is a
                timestamp.

        Raises:
            ValueError: the schema is invalid.
        """

    def parse(
        self,
        valid: Buffer | None,
        offsets: Buffer,
        data: Buffer,
        large: bool,
        first: int,
        count: int,
        check: bool,
        limit: int,
        /,
    ) -> tuple[int, bytes, bytes, list[tuple[int, int, Block | None, Block | None, Block | None]]]:
        """Parse the values of an Arrow array of bytes.

        Args:
            valid: its validity bits, if it has nulls.
            offsets: its offsets, of 64 bits if it is large and of 32 if not.
            data: its bytes.
            large: whether it is large.
            first: number of the first value.
            count: number of values.
            check: build no columns.
            limit: most bytes of columns.

        Returns:
            The number of rows; a bit for each value, whether it was accepted; why values were
            refused, five int64 for each field that refuses its value (``json_problem``); and for
            each node but the row its length, its nulls, and its buffers of validity, offsets and
            data, None where it has none.

        Raises:
            OverflowError: the values have more than 2 GiB, or the columns more than the limit.
            ValueError: the buffers are too short, or the offsets are not ascending.
        """

def send_parts(
    socket_fd: int, parts: list[Any], skip: int, room: int, known: int, /
) -> tuple[int, int]:
    """Send parts as ``net.outgoing.sending.send_parts``, which has the arguments.

    Returns:
        The sent bytes, and the number of the ``Ended``.

    Raises:
        OSError: The connection is closed, or a file can't be read.
    """

class SyncThread:
    """Syncs files on a thread of its own, without Python's lock.

    The thread starts with the first job. In a fork of the process it does not run.

    Args:
        signal_fd: Gets eight bytes whenever a job is done.
    """

    def __init__(self, signal_fd: int, /) -> None: ...
    def start(self, files: list[tuple[int, int, int]], /) -> None:
        """Sync files, one after the other, while Python goes on.

        Args:
            files: Descriptor of each, which must stay open until the result is taken; position and
                length of a range behind its end for which blocks are allocated before, if the
                system can do that. A length of 0 allocates nothing.

        Raises:
            OSError: The thread can't be started.
            RuntimeError: A job has no result yet, or the thread is closed or another process's.
            TypeError, ValueError, OverflowError: ``files`` is not a list of such tuples, or empty.
        """

    def has_synced(self) -> bool:
        """Return whether all files are synced and the result was not taken yet."""

    def result(self) -> tuple[int, int] | None:
        """Return how many files were synced, and the errno of the next one or 0; None without.

        A job ends with the first file that can't be synced.
        """

    def close(self) -> None:
        """Let the thread finish its job and end, and wait for that."""

class EntryThread:
    """Writes entries of the journal on a thread of its own, without Python's lock.

    The thread starts with the first entry. In a fork of the process it does not run.

    Args:
        signal_fd: Gets eight bytes whenever an entry is done.
    """

    def __init__(self, signal_fd: int, /) -> None: ...
    def start(
        self,
        fd: int,
        header: bytearray,
        buffers: list[bytes | bytearray | memoryview],
        position: int,
        /,
    ) -> None:
        """Set the CRC of an entry, write it and sync the file, while Python goes on.

        Args:
            fd: The file. Linux writes to it without its cache, where it can.
            header: The header of the entry. Its bytes 4 to 7 are replaced with the CRC on disk.
            buffers: What follows; the last one is not covered by the CRC.
            position: Where the entry begins.

        Raises:
            OSError: The thread can't be started.
            RuntimeError: An entry has no result yet, or the thread is closed or another process's.
        """

    def has_written(self) -> bool:
        """Return whether the entry is written and synced and the result was not taken yet."""

    def result(self) -> tuple[int, int] | None:
        """Return the errno of the write and that of the sync, 0 for success; None if not done."""

    def close(self) -> None:
        """Finish the entry that was started, and end the thread. Blocks."""

class ChangeEncoder:
    """Turns changes of a table into records. ``connect/cdc/envelope.py`` gives the same bytes.

    Args:
        records: Takes the records.
        columns: For each column its name in JSON with a colon, the number of the rule for its
            text, the function for a text without a rule, and whether it belongs to the replica
            identity. The rules: 0 function, 1 text, 2 integer, 3 boolean, 4 timestamp, 5 timestamp
            in UTC.
        key: Places of the key's columns.
        source: The constant part of the block ``source``, without its closing brace.
        plain: Whether values are rows without an envelope.
        dumps: Returns the JSON of an object.

    Raises:
        ValueError: A rule or a place is invalid.
    """

    def __init__(
        self,
        records: RecordEncoder,
        columns: tuple[tuple[bytes, int, Callable[[bytes], Any], bool], ...],
        key: tuple[int, ...],
        source: bytes,
        plain: bool,
        dumps: Callable[[Any], bytes],
        /,
    ) -> None: ...

def encode_rows(
    encoder: ChangeEncoder, rows: list[Any], ts_ms: int, tail: bytes, stamp_ms: int, /
) -> int:
    """Encode rows of a snapshot, each a tuple with a value of each column; return the records.

    Args:
        encoder: The encoder of the table.
        rows: The rows.
        ts_ms: Time of the read.
        tail: The end of the block ``source``, with its comma and its brace.
        stamp_ms: Time of processing.

    Raises:
        OverflowError: A record is too large; the message is its size in bytes.
    """

def encode_copy(
    encoder: ChangeEncoder, lines: list[bytes], ts_ms: int, tail: bytes, stamp_ms: int, /
) -> int:
    """Encode lines of PostgreSQL's COPY in the format text, like ``encode_rows``.

    Raises:
        ValueError: A line is damaged.
    """

def scan_pgoutput(
    tables: dict[int, int], messages: list[bytes], begin: int, /
) -> tuple[int, int, int, int]:
    """Find the rows in messages of pgoutput that need nothing but ``encode_pgoutput``.

    Args:
        tables: The number of columns of each table, by OID.
        messages: The messages, each with its header of 25 bytes.
        begin: The first message.

    Returns:
        The place behind the last such row, its LSN, how many of the last rows have this LSN, and
        the bytes of the messages.
    """

def encode_pgoutput(
    encoders: dict[int, ChangeEncoder],
    messages: list[bytes],
    begin: int,
    end: int,
    ts_ms: int,
    tail: bytes,
    stamp_ms: int,
    /,
) -> int:
    """Encode rows of one transaction that ``scan_pgoutput`` has found.

    Args:
        encoders: By OID of the table.
        messages: The messages.
        begin: The first row.
        end: The place behind the last one.
        ts_ms: Time of the commit.
        tail: The end of the block ``source`` behind the LSN, with its comma and its brace.
        stamp_ms: Time of processing.

    Raises:
        OverflowError: A record is too large; the message is its size in bytes.
    """

def encode_changelog(encoders: dict[int, ChangeEncoder], rows: list[Any], stamp_ms: int, /) -> int:
    """Encode rows of SQLite's change log.

    Args:
        encoders: By number of the layout.
        rows: Tuples of the number, the layout, the operation (c, u, d), the time, and the values.
        stamp_ms: Time of processing.

    Raises:
        OverflowError: A record is too large; the message is its size in bytes.
    """

def split_packets(buffer: bytearray, filled: int, number: int, /) -> tuple[list[bytes], int, int]:
    """Split received bytes into packets of MariaDB's protocol.

    Raises:
        ValueError: A packet does not have the next number.
    """

def scan_binlog(
    tables: dict[int, Any],
    packets: list[bytes],
    begin: int,
    most: int,
    checksums: bool,
    /,
) -> tuple[int, int, int, int, dict[int, Any]]:
    """Find the events of a binary log that need nothing but ``encode_binlog``.

    Args:
        tables: By number: the table map without the number, and the sizes of the columns, empty
            for a table that is not captured: for each column 16 bits, the bytes of a value, or
            minus the bytes of the length in front of it.
        packets: A zero byte and an event each.
        begin: The first packet.
        most: The number of rows at which to stop, at the end of an event.
        checksums: Whether the events have checksums.

    Returns:
        The place behind the last such event, the number of rows, the number of rows events, the
        time of the first row's event in seconds, and the tables of the rows events.
    """

def encode_binlog(
    encoders: dict[int, Any],
    packets: list[bytes],
    parts: tuple[bytes, bytes],
    checksums: bool,
    stamp_ms: int,
    committed_ms: int = 0,
    /,
) -> int:
    """Encode rows of one transaction that ``scan_binlog`` has found.

    Args:
        encoders: By number of the table: the encoder and the sizes of the columns; None for a table
            that is not captured.
        packets: The packets.
        parts: The end of the block ``source`` up to the server's id, and up to the position.
        checksums: Whether the events have checksums.
        stamp_ms: Time of processing.
        committed_ms: Time of the commit; 0: the events have the times of their statements.

    Returns:
        The number of records.

    Raises:
        KeyError: A table has no encoder.
        OverflowError: A record is too large; the message is its size in bytes.
        ValueError: A row is damaged, or a text is not valid UTF-8.
    """

class StatsdTable:
    """Receives packets of StatsD, and aggregates them by series.

    Args:
        dialect: ``tidemill.direct.statsd.Dialect``.
        name_tags: ``tidemill.direct.statsd.NameTags``.
        series: Most series.
        values: Most values of timers, and members of sets, in total.
        raw_bytes: Most bytes of raw lines; 0 to keep none.
        notice_bytes: Most bytes of events and service checks.
        seed, other_seed: Random numbers of 64 bits, for keyed hashes.

    Raises:
        MemoryError: There is no memory for it.
    """

    def __init__(
        self,
        dialect: int,
        name_tags: int,
        series: int,
        values: int,
        raw_bytes: int,
        notice_bytes: int,
        seed: int,
        other_seed: int,
        /,
    ) -> None: ...
    def feed(self, packet: Buffer, /) -> None:
        """Take the lines of a packet."""

    def cut(self, start: Buffer, /) -> None:
        """Count a line that is too long, of which this is the start."""

    def receive(self, fd: int, timeout_ms: int, /) -> tuple[int, int | None]:
        """Receive packets from a datagram socket until the time is over, or a signal comes.

        Returns:
            The number of packets, and how many the kernel has dropped since the socket was made,
            modulo 2**32; None if no packet said so (SO_RXQ_OVFL).

        Raises:
            OSError: The socket has failed.
        """

    def take(
        self, counter: int, gauge: int, timer: int, histogram: int, distribution: int, set_: int, /
    ) -> list[tuple[int, bytes, int, int, int, float, float, float, float, float, int, bytes]]:
        """End the interval, and return its series (``tidemill.direct.statsd.series.Native``).

        The arguments are, for each kind, the intervals for which a series without samples is kept.

        Raises:
            MemoryError: There is no memory for the copies. The interval goes on.
        """

    def take_lines(self) -> tuple[bytes, bytes]:
        """Return the raw lines, and the events with the service checks, since the last call."""

    def counts(self) -> tuple[int, int, int, int, int, int, list[tuple[int, bytes]]]:
        """Return what was counted since the start.

        It is lines, samples of excess series, notices, lost notices, lost raw lines, series, and
        for each reason the malformed lines and the last of them.
        """
