// The Java client's transactions against a broker. Run as:
// Transactions <scenario>,<scenario>... <bootstrap> <unique suffix>
// Exit code 0 and a last line "PASS" if all holds; otherwise the exception says what does not.

import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;

public class Transactions extends Interop {
    static final Map<String, String> COMMITTED = Map.of("isolation.level", "read_committed");

    static final Map<String, Work> SCENARIOS = Map.ofEntries(
            Map.entry("readers", Transactions::readers),
            Map.entry("held", Transactions::held),
            Map.entry("large", Transactions::large),
            Map.entry("offsets", Transactions::offsets),
            Map.entry("member", Transactions::member),
            Map.entry("fencing", Transactions::fencing),
            Map.entry("timeout", Transactions::timeout),
            Map.entry("recovery", Transactions::recovery),
            Map.entry("limit", Transactions::limit),
            Map.entry("operator", Transactions::operator),
            Map.entry("features", Transactions::features));

    public static void main(String[] arguments) throws Exception {
        run(arguments, SCENARIOS);
    }

    // --- what readers see ---------------------------------------------------------------------

    static void readers() throws Exception {
        String topic = topic("readers", 1);
        try (var producer = transactional("readers", Map.of())) {
            for (int start : new int[] {0, 100, 200, 300, 400}) {
                producer.beginTransaction();
                write(producer, topic, 0, start, start + 10);
                if (start % 200 == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
        check(read(topic, 0, 30, COMMITTED).equals(ranges(0, 200, 400)), "committed only");
        check(read(topic, 0, 50, Map.of()).equals(ranges(0, 100, 200, 300, 400)), "all");
    }

    static List<Integer> ranges(int... starts) {
        return IntStream.of(starts).flatMap(n -> IntStream.range(n, n + 10)).boxed().toList();
    }

    static void held() throws Exception {
        String topic = topic("held", 1);
        var partition = new TopicPartition(topic, 0);
        try (var producer = transactional("held", Map.of()); var reader = consumer(COMMITTED)) {
            producer.beginTransaction();
            write(producer, topic, 0, 0, 5);
            numbers(topic, 100, 105);
            check(end(topic, IsolationLevel.READ_COMMITTED) == 0, "the last stable offset");
            check(end(topic, IsolationLevel.READ_UNCOMMITTED) == 10, "the high watermark");
            reader.assign(List.of(partition));
            check(reader.poll(Duration.ofMillis(500)).isEmpty(), "nothing is stable");
            producer.commitTransaction();
            var found = take(reader, 10).stream().map(Interop::number).toList();
            check(found.equals(List.of(0, 1, 2, 3, 4, 100, 101, 102, 103, 104)), "order");
        }
    }

    static void large() throws Exception {
        String topic = topic("large", 6);
        try (var producer = transactional("large", Map.of("batch.size", "2000"))) {
            for (int start : new int[] {10_000, 0}) {
                producer.beginTransaction();
                for (int partition = 0; partition < 6; partition++) {
                    write(producer, topic, partition, start, start + 2000);
                }
                if (start == 0) producer.commitTransaction();
                else producer.abortTransaction();
            }
        }
        var expected = IntStream.range(0, 2000).boxed().toList();
        for (int partition = 0; partition < 6; partition++) {
            check(read(topic, partition, 2000, COMMITTED).equals(expected), "partition " + partition);
        }
    }

    // --- consume, transform, produce ----------------------------------------------------------

    static void offsets() throws Exception {
        String source = topic("source", 1), sink = topic("sink", 1), group = "group-" + suffix;
        numbers(source, 0, 10);
        var partition = new TopicPartition(source, 0);
        try (var producer = transactional("offsets", Map.of());
                var reader = consumer(Map.of("group.id", group, "isolation.level", "read_committed"))) {
            reader.subscribe(List.of(source));
            for (boolean commit : new boolean[] {false, true}) {
                var records = take(reader, 10);
                producer.beginTransaction();
                for (var record : records) {
                    producer.send(new ProducerRecord<>(sink, bytes("" + number(record) * 2)));
                }
                var next = records.get(9).offset() + 1;
                producer.sendOffsetsToTransaction(
                        Map.of(partition, new OffsetAndMetadata(next, "here")), reader.groupMetadata());
                if (commit) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                    check(reader.committed(Set.of(partition)).get(partition) == null, "aborted");
                    reader.seek(partition, 0);
                }
            }
            var stored = reader.committed(Set.of(partition)).get(partition);
            check(stored.offset() == 10 && stored.metadata().equals("here"), "committed");
        }
        var expected = IntStream.range(0, 10).map(n -> n * 2).boxed().toList();
        check(read(sink, 0, 10, COMMITTED).equals(expected), "results once");
    }

    /** KIP-447: a consumer that is no longer a member may not commit; its producer goes on. */
    static void member() throws Exception {
        String source = topic("member-source", 1), sink = topic("member-sink", 1);
        String group = "members-" + suffix;
        var next = Map.of(new TopicPartition(source, 0), new OffsetAndMetadata(1));
        try (var producer = transactional("member", Map.of())) {
            ConsumerGroupMetadata stale;
            try (var zombie = consumer(Map.of("group.id", group))) {
                zombie.subscribe(List.of(source));
                settle(List.of(zombie), List.of(1));
                stale = zombie.groupMetadata();
            }
            try (var living = consumer(Map.of("group.id", group))) {
                living.subscribe(List.of(source));
                settle(List.of(living), List.of(1));
                producer.beginTransaction();
                write(producer, sink, 0, 0, 3);
                refused(CommitFailedException.class, () -> {
                    producer.sendOffsetsToTransaction(next, stale);
                    producer.commitTransaction();
                });
                producer.abortTransaction();
                producer.beginTransaction();
                write(producer, sink, 0, 7, 9);
                producer.sendOffsetsToTransaction(next, living.groupMetadata());
                producer.commitTransaction();
            }
        }
        check(read(sink, 0, 2, COMMITTED).equals(List.of(7, 8)), "what the living member wrote");
    }

    // --- errors and recovery ------------------------------------------------------------------

    static void fencing() throws Exception {
        String topic = topic("fencing", 1);
        try (var zombie = transactional("fencing", Map.of())) {
            zombie.beginTransaction();
            write(zombie, topic, 0, 0, 5);
            try (var successor = transactional("fencing", Map.of())) {
                long before = end(topic, IsolationLevel.READ_UNCOMMITTED);
                check(before == 6, "five records and the abort marker");
                refused(ProducerFencedException.class, zombie::commitTransaction);
                check(end(topic, IsolationLevel.READ_UNCOMMITTED) == before, "nothing was added");
                successor.beginTransaction();
                write(successor, topic, 0, 50, 53);
                successor.commitTransaction();
            }
        }
        check(read(topic, 0, 3, COMMITTED).equals(List.of(50, 51, 52)), "the successor's records");

        // The same between transactions: the first write of the next one is refused.
        String other = topic("fencing-later", 1);
        try (var zombie = transactional("fencing-later", Map.of())) {
            zombie.beginTransaction();
            write(zombie, other, 0, 0, 1);
            zombie.commitTransaction();
            try (var successor = transactional("fencing-later", Map.of())) {
                zombie.beginTransaction();
                var late = zombie.send(new ProducerRecord<>(other, 0, null, bytes("1")));
                refused(InvalidProducerEpochException.class, late::get);
            }
        }
        check(end(other, IsolationLevel.READ_UNCOMMITTED) == 2, "one record and its marker");
    }

    static void timeout() throws Exception {
        String topic = topic("timeout", 1);
        try (var producer = transactional("timeout", Map.of("transaction.timeout.ms", "1000"))) {
            producer.beginTransaction();
            write(producer, topic, 0, 0, 5);
            waitFor("the abort marker", () -> end(topic, IsolationLevel.READ_COMMITTED) == 6);
            // The epoch before the current one, of a transaction that ended the other way.
            refused(InvalidTxnStateException.class, producer::commitTransaction);
        }
        try (var producer = transactional("timeout", Map.of())) {
            producer.beginTransaction();
            write(producer, topic, 0, 20, 23);
            producer.commitTransaction();
        }
        check(read(topic, 0, 3, COMMITTED).equals(List.of(20, 21, 22)), "after the time-out");
    }

    /** A record is refused, the transaction aborted, and the same producer goes on. */
    static void recovery() throws Exception {
        String topic = topic("recovery", 1, Map.of("max.message.bytes", "2000"));
        try (var producer = transactional("recovery", Map.of())) {
            for (int start : new int[] {0, 100}) {
                producer.beginTransaction();
                write(producer, topic, 0, start, start + 3);
                var lost = producer.send(new ProducerRecord<>(topic, 0, null, new byte[5000]));
                refused(RecordTooLargeException.class, lost::get);
                refused(KafkaException.class, producer::commitTransaction);
                producer.abortTransaction();
            }
            for (int start : new int[] {20, 30}) {
                producer.beginTransaction();
                write(producer, topic, 0, start, start + 3);
                producer.commitTransaction();
            }
        }
        check(read(topic, 0, 6, COMMITTED).equals(List.of(20, 21, 22, 30, 31, 32)), "the last two");
    }

    static void limit() throws Exception {
        try (var producer = transactional("limit", Map.of("transaction.timeout.ms", "900001"))) {
            throw new AssertionError("the timeout was accepted");
        } catch (KafkaException error) {
            check(error.getMessage().contains("timeout is larger"), error.getMessage());
        }
    }

    // --- operators ----------------------------------------------------------------------------

    static void operator() throws Exception {
        String topic = topic("operator", 2), name = "operator-" + suffix;
        var partition = new TopicPartition(topic, 1);
        try (var producer = transactional("operator", Map.of("transaction.timeout.ms", "50000"))) {
            producer.beginTransaction();
            write(producer, topic, 1, 0, 3);

            var found = described(name);
            check(found.state() == TransactionState.ONGOING, "state");
            check(found.transactionTimeoutMs() == 50_000, "timeout");
            check(found.transactionStartTimeMs().isPresent(), "start time");
            check(found.topicPartitions().equals(Set.of(partition)), "partitions");
            check(listed(new ListTransactionsOptions()).contains(name), "listed");
            check(!listed(new ListTransactionsOptions().filterStates(
                    Set.of(TransactionState.COMPLETE_COMMIT))).contains(name), "by another state");
            check(listed(new ListTransactionsOptions().filterProducerIds(
                    Set.of(found.producerId()))).equals(List.of(name)), "by producer");
            check(listed(new ListTransactionsOptions().filterOnTransactionalIdPattern(
                    name + ".*")).equals(List.of(name)), "by pattern");
            check(!listed(new ListTransactionsOptions().filterOnDuration(600_000))
                    .contains(name), "by duration");

            var active = active(partition);
            check(active.producerId() == found.producerId(), "producer id");
            check(active.producerEpoch() == found.producerEpoch(), "epoch");
            check(active.currentTransactionStartOffset().getAsLong() == 0, "start offset");

            admin.abortTransaction(new AbortTransactionSpec(partition, active.producerId(),
                    (short) active.producerEpoch(), active.coordinatorEpoch().orElse(-1)))
                    .all().get(30, TimeUnit.SECONDS);
            check(active(partition).currentTransactionStartOffset().isEmpty(), "nothing is open");
            producer.abortTransaction();

            producer.beginTransaction();
            write(producer, topic, 1, 10, 13);
            admin.fenceProducers(List.of(name)).all().get(30, TimeUnit.SECONDS);
            refused(ProducerFencedException.class, producer::commitTransaction);
            waitFor("the abort", () -> described(name).state() == TransactionState.EMPTY);
            check(described(name).transactionStartTimeMs().isEmpty(), "no start time");
        }
        expect(TransactionalIdNotFoundException.class, () -> admin
                .describeTransactions(List.of("nobody-" + suffix)).all().get(30, TimeUnit.SECONDS));
    }

    static TransactionDescription described(String name) {
        return get(admin.describeTransactions(List.of(name)).description(name));
    }

    static List<String> listed(ListTransactionsOptions options) {
        return get(admin.listTransactions(options).all()).stream()
                .map(TransactionListing::transactionalId).toList();
    }

    static ProducerState active(TopicPartition partition) {
        var states = get(admin.describeProducers(List.of(partition)).partitionResult(partition));
        check(states.activeProducers().size() == 1, "one producer");
        return states.activeProducers().get(0);
    }

    static void features() throws Exception {
        var features = admin.describeFeatures().featureMetadata().get(30, TimeUnit.SECONDS);
        var finalized = features.finalizedFeatures().get("transaction.version");
        check(finalized.maxVersionLevel() == 2, "finalised: " + finalized);
        var supported = features.supportedFeatures().get("transaction.version");
        check(supported.minVersion() <= 2 && supported.maxVersion() == 2, "supported: " + supported);
        check(features.finalizedFeaturesEpoch().isPresent(), "the epoch");
    }

    // --- tools --------------------------------------------------------------------------------

    static KafkaProducer<byte[], byte[]> transactional(String name, Map<String, String> config) {
        Map<String, String> all = new HashMap<>(config);
        all.put("transactional.id", name + "-" + suffix);
        var producer = producer(all);
        try {
            producer.initTransactions();
        } catch (RuntimeException error) {
            producer.close(Duration.ZERO);
            throw error;
        }
        return producer;
    }

    static void write(
            KafkaProducer<byte[], byte[]> producer, String topic, int partition, int from, int to)
            throws Exception {
        var sent = new ArrayList<java.util.concurrent.Future<RecordMetadata>>();
        for (int n = from; n < to; n++) {
            sent.add(producer.send(new ProducerRecord<>(topic, partition, null, bytes("" + n))));
        }
        producer.flush();
        for (var each : sent) each.get(30, TimeUnit.SECONDS);
    }

    static List<Integer> read(String topic, int partition, int count, Map<String, String> config) {
        try (var reader = consumer(config)) {
            reader.assign(List.of(new TopicPartition(topic, partition)));
            return take(reader, count).stream().map(Interop::number).toList();
        }
    }

    static long end(String topic, IsolationLevel isolation) {
        var partition = new TopicPartition(topic, 0);
        return get(admin.listOffsets(Map.of(partition, OffsetSpec.latest()),
                new ListOffsetsOptions(isolation)).partitionResult(partition)).offset();
    }

    /** The error, or what it was caused by, is of this kind. */
    static void refused(Class<? extends Throwable> kind, Work action) throws Exception {
        try {
            action.run();
        } catch (Exception error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                if (kind.isInstance(each)) return;
            }
            throw error;
        }
        throw new AssertionError("was not refused with " + kind);
    }
}
