// The Java client against a broker. Run as:
// Interop <scenario>,<scenario>... <bootstrap> <unique suffix>
// Exit code 0 and a last line "PASS" if all holds; otherwise the exception says what does not.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

public class Interop {
    static final long BASE = 1_700_000_000_000L;
    static final Duration DEADLINE = Duration.ofSeconds(240);
    static String bootstrap;
    static String suffix;
    static Admin admin;

    static final Map<String, Work> SCENARIOS = Map.ofEntries(
            Map.entry("produce", Interop::produce),
            Map.entry("idempotent", Interop::idempotent),
            Map.entry("positions", Interop::positions),
            Map.entry("range", () -> group("range", RangeAssignor.class)),
            Map.entry("roundrobin", () -> group("roundrobin", RoundRobinAssignor.class)),
            Map.entry("sticky", () -> group("sticky", StickyAssignor.class)),
            Map.entry("cooperative", () -> group("cooperative", CooperativeStickyAssignor.class)),
            Map.entry("static", Interop::staticMembers),
            Map.entry("topics", Interop::topics),
            Map.entry("groups", Interop::groups),
            Map.entry("cluster", Interop::cluster));

    public static void main(String[] arguments) throws Exception {
        run(arguments, SCENARIOS);
    }

    static void run(String[] arguments, Map<String, Work> scenarios) throws Exception {
        bootstrap = arguments[1];
        suffix = arguments[2];
        try (Admin client = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin = client;
            for (String scenario : arguments[0].split(",")) scenarios.get(scenario).run();
        }
        System.out.println("PASS");
    }

    // --- produce ------------------------------------------------------------------------------

    static void produce() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            for (String acks : List.of("0", "1", "all")) {
                String topic = topic("produce-" + codec + "-" + acks, 1);
                try (var producer = producer(Map.of("acks", acks, "compression.type", codec,
                        "enable.idempotence", "false", "linger.ms", "20"))) {
                    var sent = new ArrayList<java.util.concurrent.Future<RecordMetadata>>();
                    for (int n = 0; n < 60; n++) {
                        sent.add(producer.send(record(topic, n)));
                        if (n % 20 == 0) producer.flush();
                    }
                    producer.flush();
                    for (var each : sent) each.get(30, TimeUnit.SECONDS);
                }
                try (var consumer = consumer(Map.of())) {
                    var partition = new TopicPartition(topic, 0);
                    consumer.assign(List.of(partition));
                    consumer.seekToBeginning(List.of(partition));
                    int n = 0;
                    for (var found : take(consumer, 60)) {
                        var sent = record(topic, n);
                        check(found.offset() == n, "offset of " + n);
                        check(Arrays.equals(found.key(), sent.key()), "key of " + n);
                        check(Arrays.equals(found.value(), sent.value()), "value of " + n);
                        check(found.timestamp() == sent.timestamp(), "timestamp of " + n);
                        check(found.headers().equals(sent.headers()), "headers of " + n);
                        n++;
                    }
                }
            }
        }
    }

    static ProducerRecord<byte[], byte[]> record(String topic, int n) {
        byte[] key = n % 3 == 0 ? null : bytes("key" + n);
        byte[] value = n % 5 == 0 && key != null ? null : bytes("value €".repeat(n % 7 * 20));
        var record = new ProducerRecord<>(topic, 0, BASE + n * 10, key, value);
        record.headers().add("h", bytes("1")).add("h", null);
        return record;
    }

    static void idempotent() throws Exception {
        String topic = topic("idempotent", 3);
        try (var producer = producer(Map.of("batch.size", "500"))) {
            for (int n = 0; n < 3000; n++) {
                producer.send(new ProducerRecord<>(topic, n % 3, null, bytes("" + n)));
            }
        }
        try (var consumer = consumer(Map.of())) {
            consumer.assign(IntStream.range(0, 3).mapToObj(p -> new TopicPartition(topic, p)).toList());
            var found = take(consumer, 3000);
            for (int partition = 0; partition < 3; partition++) {
                int p = partition;
                var mine = found.stream().filter(r -> r.partition() == p).map(Interop::number).toList();
                var expected = IntStream.range(0, 1000).mapToObj(n -> n * 3 + p).toList();
                check(mine.equals(expected), "order in partition " + p);
            }
        }
        String small = topic("small", 1, Map.of("max.message.bytes", "2000"));
        try (var producer = producer(Map.of())) {
            producer.send(new ProducerRecord<>(small, new byte[1000])).get();
            expect(RecordTooLargeException.class,
                    () -> producer.send(new ProducerRecord<>(small, new byte[3000])).get());
        }
    }

    // --- consume ------------------------------------------------------------------------------

    static void positions() throws Exception {
        String topic = topic("positions", 1);
        numbers(topic, 0, 100);
        var partition = new TopicPartition(topic, 0);
        var only = List.of(partition);
        try (var consumer = consumer(Map.of("group.id", "positions-" + suffix))) {
            consumer.assign(only);
            for (long offset : new long[] {0, 17, 99}) {
                consumer.seek(partition, offset);
                check(number(take(consumer, 1).get(0)) == offset, "from offset " + offset);
            }
            consumer.seekToBeginning(only);
            check(number(take(consumer, 100).get(99)) == 99, "from the beginning");
            check(consumer.beginningOffsets(only).get(partition) == 0, "beginning offset");
            check(consumer.endOffsets(only).get(partition) == 100, "end offset");
            var at = consumer.offsetsForTimes(Map.of(partition, BASE + 165)).get(partition);
            check(at.offset() == 17 && at.timestamp() == BASE + 170, "offset of a timestamp: " + at);
            check(consumer.offsetsForTimes(Map.of(partition, BASE + 1_000_000)).get(partition) == null,
                    "no offset beyond the last timestamp");
            consumer.seekToEnd(only);
            check(consumer.position(partition) == 100, "end position");
            numbers(topic, 100, 101);
            check(number(take(consumer, 1).get(0)) == 100, "from the end");
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(60, "note ü")));
            var committed = consumer.committed(Set.of(partition)).get(partition);
            check(committed.offset() == 60 && committed.metadata().equals("note ü"), "committed");
        }
        try (var consumer = consumer(Map.of("group.id", "positions-" + suffix))) {
            consumer.subscribe(List.of(topic));
            check(number(take(consumer, 41).get(0)) == 60, "from the committed offset");
        }
        try (var consumer = consumer(Map.of("auto.offset.reset", "none"))) {
            consumer.assign(only);
            consumer.seek(partition, 5000);
            expect(OffsetOutOfRangeException.class, () -> take(consumer, 1));
        }
    }

    // --- groups -------------------------------------------------------------------------------

    static void group(String assignor, Class<?> type) throws Exception {
        String topic = topic("group-" + assignor, 6);
        Map<String, String> config = Map.of("group.id", "group-" + assignor + "-" + suffix,
                "partition.assignment.strategy", type.getName());
        try (var one = consumer(config)) {
            one.subscribe(List.of(topic));
            settle(List.of(one), List.of(6));
            try (var two = consumer(config); var three = consumer(config)) {
                two.subscribe(List.of(topic));
                three.subscribe(List.of(topic));
                settle(List.of(one, two, three), List.of(2, 2, 2));
            }
            settle(List.of(one), List.of(6));
        }
    }

    static void staticMembers() throws Exception {
        String topic = topic("static", 4);
        String group = "static-" + suffix;
        try (var one = consumer(Map.of("group.id", group, "group.instance.id", "a"))) {
            one.subscribe(List.of(topic));
            Set<TopicPartition> before;
            try (var two = consumer(Map.of("group.id", group, "group.instance.id", "b"))) {
                two.subscribe(List.of(topic));
                settle(List.of(one, two), List.of(2, 2));
                before = two.assignment();
            }
            try (var again = consumer(Map.of("group.id", group, "group.instance.id", "b"))) {
                again.subscribe(List.of(topic));
                settle(List.of(one, again), List.of(2, 2));
                check(again.assignment().equals(before), "the same partitions again");
            }
            try (var thief = consumer(Map.of("group.id", group, "group.instance.id", "a"))) {
                thief.subscribe(List.of(topic));
                expect(FencedInstanceIdException.class, () -> waitFor("fenced", () -> {
                    thief.poll(Duration.ofMillis(50));
                    one.poll(Duration.ofMillis(50));
                    return false;
                }));
            }
            admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(
                    List.of(new MemberToRemove("b")))).all().get();
        }
    }

    // --- admin --------------------------------------------------------------------------------

    static void topics() throws Exception {
        String name = "java-topics-" + suffix;
        var created = admin.createTopics(List.of(new NewTopic(name, Optional.of(2), Optional.empty())
                .configs(Map.of("retention.ms", "60000"))));
        created.all().get();
        check(created.numPartitions(name).get() == 2, "partitions told");
        check(created.config(name).get().get("retention.ms").value().equals("60000"), "config told");
        check(!created.topicId(name).get().equals(Uuid.ZERO_UUID), "topic id told");
        expect(TopicExistsException.class,
                () -> admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get());
        expect(InvalidReplicationFactorException.class,
                () -> admin.createTopics(List.of(new NewTopic(name + "3", 1, (short) 3))).all().get());
        admin.createPartitions(Map.of(name, NewPartitions.increaseTo(3))).all().get();
        waitFor("3 partitions", () -> describe(name).partitions().size() == 3);
        check(describe(name).partitions().get(0).leader().id() == 1, "leader");
        var id = describe(name).topicId();
        var byId = admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get();
        check(byId.get(id).name().equals(name), "described by id");

        var resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                new ConfigEntry("segment.bytes", "1048576"), AlterConfigOp.OpType.SET)))).all().get();
        waitFor("the altered config",
                () -> config(resource).get("segment.bytes").value().equals("1048576"));
        check(config(resource).get("cleanup.policy").source()
                == ConfigEntry.ConfigSource.DEFAULT_CONFIG, "source of a default");
        expect(InvalidConfigurationException.class, () -> admin.incrementalAlterConfigs(
                Map.of(resource, List.of(new AlterConfigOp(new ConfigEntry("retention.ms", "soon"),
                        AlterConfigOp.OpType.SET)))).all().get());

        numbers(name, 0, 10);
        var partition = new TopicPartition(name, 0);
        var low = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4)));
        check(low.lowWatermarks().get(partition).get().lowWatermark() == 4, "low watermark");
        for (var each : Map.of(OffsetSpec.earliest(), 4L, OffsetSpec.latest(), 10L,
                OffsetSpec.maxTimestamp(), 9L, OffsetSpec.forTimestamp(BASE + 55), 6L).entrySet()) {
            long offset = admin.listOffsets(Map.of(partition, each.getKey()))
                    .partitionResult(partition).get().offset();
            check(offset == each.getValue(), each.getKey() + " is " + offset);
        }
        admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
        waitFor("the topic is gone", () -> !get(admin.listTopics().names()).contains(name));
        expect(UnknownTopicOrPartitionException.class,
                () -> admin.deleteTopics(List.of(name)).all().get());
    }

    static void groups() throws Exception {
        String topic = topic("groups", 2);
        String group = "groups-" + suffix;
        numbers(topic, 0, 5);
        var partition = new TopicPartition(topic, 0);
        try (var consumer = consumer(Map.of("group.id", group, "client.id", "me"))) {
            consumer.subscribe(List.of(topic));
            take(consumer, 5);
            consumer.commitSync();
            var described = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            check(described.groupState() == GroupState.STABLE, "state " + described);
            var member = described.members().iterator().next();
            check(member.clientId().equals("me"), "client id");
            check(member.assignment().topicPartitions().size() == 2, "assignment");
            check(admin.listGroups().all().get().stream().anyMatch(g -> g.groupId().equals(group)),
                    "listed");
            check(admin.listGroups(new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY)))
                    .all().get().stream().noneMatch(g -> g.groupId().equals(group)), "filtered");
            expect(GroupNotEmptyException.class,
                    () -> admin.deleteConsumerGroups(List.of(group)).all().get());
            expect(GroupSubscribedToTopicException.class, () -> admin
                    .deleteConsumerGroupOffsets(group, Set.of(partition)).all().get());
        }
        check(offsets(group).get(partition).offset() == 5, "committed offset");
        admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(2))).all().get();
        check(offsets(group).get(partition).offset() == 2, "altered offset");
        admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
        check(offsets(group).get(partition) == null, "deleted offset");
        admin.deleteConsumerGroups(List.of(group)).all().get();
        expect(GroupIdNotFoundException.class,
                () -> admin.describeConsumerGroups(List.of(group)).all().get());
        expect(GroupIdNotFoundException.class,
                () -> admin.deleteConsumerGroups(List.of(group)).all().get());
    }

    static void cluster() throws Exception {
        String topic = topic("cluster", 1);
        var partition = new TopicPartition(topic, 0);
        var cluster = admin.describeCluster();
        check(cluster.nodes().get().size() == 1, "nodes");
        check(cluster.controller().get().id() == 1, "controller");
        check(!cluster.clusterId().get().isEmpty(), "cluster id");
        numbers(topic, 0, 10);
        var folders = admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1);
        var folder = folders.values().iterator().next();
        check(folder.replicaInfos().get(partition).size() > 0, "size on disk");
        check(folder.totalBytes().getAsLong() >= folder.usableBytes().getAsLong(), "disk space");
        var broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        check(config(broker).get("node.id").value().equals("1"), "broker config");
        var all = new ConfigResource(ConfigResource.Type.BROKER, "");
        for (String value : List.of("2", "1")) {
            admin.incrementalAlterConfigs(Map.of(all, List.of(new AlterConfigOp(
                    new ConfigEntry("min.insync.replicas", value), AlterConfigOp.OpType.SET)))).all().get();
            waitFor("min.insync.replicas of all brokers", () -> List.of(all, broker,
                    new ConfigResource(ConfigResource.Type.TOPIC, topic)).stream()
                    .allMatch(each -> value.equals(config(each).get("min.insync.replicas").value())));
            numbers(topic("replicas" + value, 1), 0, 1);
        }
        expect(InvalidConfigurationException.class, () -> admin.incrementalAlterConfigs(Map.of(all, List.of(
                new AlterConfigOp(new ConfigEntry("min.insync.replicas", ""), AlterConfigOp.OpType.DELETE)))).all().get());
        var features = admin.describeFeatures().featureMetadata().get().finalizedFeatures();
        short level = features.get("group.version").maxVersionLevel();
        admin.updateFeatures(Map.of("group.version",
                new FeatureUpdate(level, FeatureUpdate.UpgradeType.UPGRADE)), new UpdateFeaturesOptions()).all().get();
        expect(InvalidUpdateVersionException.class, () -> admin.updateFeatures(Map.of("group.version",
                new FeatureUpdate((short) 9, FeatureUpdate.UpgradeType.UPGRADE)), new UpdateFeaturesOptions()).all().get());
        expect(SecurityDisabledException.class, () -> admin.describeAcls(
                org.apache.kafka.common.acl.AclBindingFilter.ANY).values().get());
        expect(ElectionNotNeededException.class, () -> {
            var outcome = admin.electLeaders(ElectionType.PREFERRED, Set.of(partition));
            outcome.partitions().get().get(partition).ifPresent(Interop::sneak);
        });
        check(admin.listPartitionReassignments().reassignments().get().isEmpty(), "reassignments");
        admin.alterPartitionReassignments(Map.of(partition,
                Optional.of(new NewPartitionReassignment(List.of(1))))).all().get();
        expect(NoReassignmentInProgressException.class, () -> admin
                .alterPartitionReassignments(Map.of(partition, Optional.empty())).all().get());
        check(admin.describeUserScramCredentials().all().get().isEmpty(), "no users");
        check(admin.describeClientQuotas(org.apache.kafka.common.quota.ClientQuotaFilter.all())
                .entities().get().isEmpty(), "no quotas");
        var producers = admin.describeProducers(List.of(partition)).partitionResult(partition).get();
        check(producers.activeProducers().size() == 1, "one idempotent producer: " + producers);
        check(admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC),
                new ListConfigResourcesOptions()).all().get().stream()
                .anyMatch(r -> r.name().equals(topic)), "config resources");
    }

    // --- helpers ------------------------------------------------------------------------------

    interface Work {
        void run() throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }

    static void expect(Class<? extends Exception> kind, Work work) {
        try {
            work.run();
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            if (kind.isInstance(cause)) return;
            throw new AssertionError("expected " + kind.getSimpleName(), cause);
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", nothing was thrown");
    }

    @SuppressWarnings("unchecked")
    static <E extends Throwable> void sneak(Throwable error) throws E {
        throw (E) error;
    }

    static <T> T get(KafkaFuture<T> future) {
        try {
            return future.get(60, TimeUnit.SECONDS);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static void waitFor(String what, Condition condition) {
        long end = System.nanoTime() + DEADLINE.toNanos();
        try {
            while (!condition.holds()) check(System.nanoTime() < end, "not in time: " + what);
        } catch (Exception error) {
            Interop.<RuntimeException>sneak(error);
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static int number(ConsumerRecord<byte[], byte[]> record) {
        return Integer.parseInt(new String(record.value(), StandardCharsets.UTF_8));
    }

    static String topic(String name, int partitions) throws Exception {
        return topic(name, partitions, Map.of());
    }

    static String topic(String name, int partitions, Map<String, String> configs) throws Exception {
        String topic = "java-" + name + "-" + suffix;
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs)))
                .all().get();
        return topic;
    }

    static TopicDescription describe(String topic) {
        return get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
    }

    static Config config(ConfigResource resource) {
        return get(admin.describeConfigs(List.of(resource)).all()).get(resource);
    }

    static Map<TopicPartition, OffsetAndMetadata> offsets(String group) {
        return get(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata());
    }

    static void numbers(String topic, int from, int to) {
        numbers(topic, from, to, 1);
    }

    static void numbers(String topic, int from, int to, int partitions) {
        try (var producer = producer(Map.of())) {
            for (int n = from; n < to; n++) {
                producer.send(new ProducerRecord<>(
                        topic, n % partitions, BASE + n * 10, null, bytes("" + n)));
            }
        }
    }

    static KafkaProducer<byte[], byte[]> producer(Map<String, String> config) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        all.putAll(config);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(Map<String, String> config) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap,
                "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                "fetch.max.wait.ms", "50", "session.timeout.ms", "10000",
                "heartbeat.interval.ms", "300"));
        all.putAll(config);
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        waitFor(count + " records", () -> {
            consumer.poll(Duration.ofMillis(200)).forEach(found::add);
            return found.size() >= count;
        });
        return found;
    }

    static void settle(List<KafkaConsumer<byte[], byte[]>> consumers, List<Integer> shares) {
        waitFor("shares " + shares, () -> {
            consumers.forEach(consumer -> consumer.poll(Duration.ofMillis(50)));
            var sizes = consumers.stream().map(c -> c.assignment().size()).sorted().toList();
            var all = consumers.stream().flatMap(c -> c.assignment().stream())
                    .collect(Collectors.toSet());
            return sizes.equals(shares)
                    && all.size() == shares.stream().mapToInt(Integer::intValue).sum();
        });
    }
}
