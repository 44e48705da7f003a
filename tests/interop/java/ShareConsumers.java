import java.time.Duration;
import java.util.*;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The Java client's share consumer (KIP-932). Arguments: scenario, bootstrap, suffix. */
public class ShareConsumers extends Interop {
    static final Map<String, Work> SCENARIOS = Map.of(
            "accept", ShareConsumers::accept,
            "settle", ShareConsumers::settle,
            "renew", ShareConsumers::renew,
            "timeout", ShareConsumers::timeout,
            "committed", ShareConsumers::committed,
            "start", ShareConsumers::start,
            "admin", ShareConsumers::admin);

    public static void main(String[] arguments) throws Exception {
        run(arguments, SCENARIOS);
    }

    /** Several members, more than partitions, in both modes of acquiring. */
    static void accept() throws Exception {
        for (String mode : List.of("batch_optimized", "record_limit")) {
            String topic = topic("accept" + mode, 2);
            String group = group("accept" + mode, Map.of());
            produce(topic, 0, 1000, Map.of("compression.type", "zstd"));
            var config = Map.of("share.acquire.mode", mode, "max.poll.records", "50");
            List<Integer> found = new ArrayList<>();
            try (var one = member(group, topic, config);
                    var two = member(group, topic, config);
                    var three = member(group, topic, config)) {
                waitFor("1000 records", () -> {
                    for (var each : List.of(one, two, three)) {
                        found.addAll(poll(each).stream().map(ShareConsumers::number).toList());
                    }
                    return found.size() >= 1000;
                });
            }
            check(found.stream().sorted().toList().equals(IntStream.range(0, 1000).boxed().toList()), "each once");
        }
    }

    /** Accept, release up to the delivery limit, reject. */
    static void settle() throws Exception {
        String topic = topic("settle", 1);
        String group = group("settle", Map.of("share.delivery.count.limit", "3"));
        produce(topic, 0, 30, Map.of());
        Map<Integer, Integer> deliveries = new HashMap<>();
        try (var consumer = member(group, topic, Map.of("share.acknowledgement.mode", "explicit"))) {
            waitFor("all records settled", () -> {
                for (var each : poll(consumer)) {
                    int number = number(each);
                    int count = deliveries.merge(number, 1, Integer::sum);
                    check(each.deliveryCount().orElse((short) 0) >= count, "the delivery count");
                    consumer.acknowledge(each, number % 3 == 0 ? AcknowledgeType.RELEASE
                            : number % 3 == 1 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT);
                }
                consumer.commitSync();
                return deliveries.size() == 30
                        && IntStream.range(0, 10).allMatch(n -> deliveries.get(3 * n) == 3);
            });
            waitFor("no lag", () -> lag(group, topic) == 0);
        }
        check(deliveries.entrySet().stream().allMatch(e -> e.getValue() == (e.getKey() % 3 == 0 ? 3 : 1)),
                "deliveries: " + deliveries);
    }

    /** A record whose lock is renewed is returned by the next poll, with the same delivery count. */
    static void renew() throws Exception {
        String topic = topic("renew", 1);
        String group = group("renew", Map.of());
        produce(topic, 0, 1, Map.of());
        try (var consumer = member(group, topic, Map.of("share.acknowledgement.mode", "explicit"))) {
            List<ConsumerRecord<byte[], byte[]>> held = new ArrayList<>();
            waitFor("the record", () -> {
                held.addAll(poll(consumer));
                return !held.isEmpty();
            });
            consumer.acknowledge(held.get(0), AcknowledgeType.RENEW);
            List<ConsumerRecord<byte[], byte[]>> renewed = new ArrayList<>();
            waitFor("the renewed record", () -> {
                renewed.addAll(poll(consumer));
                return !renewed.isEmpty();
            });
            check(renewed.get(0).deliveryCount().orElse((short) 0) == 1, "it was delivered once");
            consumer.acknowledge(renewed.get(0), AcknowledgeType.ACCEPT);
            consumer.commitSync().forEach((tp, error) -> check(error.isEmpty(), "accepted: " + error));
            waitFor("no lag", () -> lag(group, topic) == 0);
        }
    }

    /** A member that does nothing loses its records to another. */
    static void timeout() throws Exception {
        String topic = topic("timeout", 1);
        String group = group("timeout", Map.of(
                "share.record.lock.duration.ms", "5000", "share.delivery.count.limit", "25"));
        produce(topic, 0, 20, Map.of());
        try (var idle = member(group, topic, Map.of("share.acknowledgement.mode", "explicit"))) {
            waitFor("records at the idle member", () -> !poll(idle).isEmpty());
            Set<Integer> found = new HashSet<>();
            try (var other = member(group, topic, Map.of())) {
                waitFor("all records at the other member", () -> {
                    for (var each : poll(other)) {
                        found.add(number(each));
                    }
                    return found.size() == 20;
                });
            }
        }
    }

    /** With read_committed, records of aborted transactions are not delivered. */
    static void committed() throws Exception {
        String topic = topic("committed", 1);
        String group = group("committed", Map.of("share.isolation.level", "read_committed"));
        try (var producer = producer(Map.of("transactional.id", "tx" + suffix))) {
            producer.initTransactions();
            for (int round = 0; round < 10; round++) {
                producer.beginTransaction();
                for (int number = 0; number < 5; number++) {
                    producer.send(new ProducerRecord<>(topic, bytes("" + (10 * round + number))));
                }
                producer.flush();
                if (round % 2 == 0) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        Set<Integer> found = new HashSet<>();
        try (var consumer = member(group, topic, Map.of())) {
            waitFor("the committed records", () -> {
                for (var each : poll(consumer)) {
                    found.add(number(each));
                }
                return found.size() >= 25 && lag(group, topic) == 0;
            });
        }
        check(found.stream().allMatch(n -> n / 10 % 2 == 1), "found " + found);
    }

    /** List, describe, move, forget and delete a group. */
    static void admin() throws Exception {
        String topic = topic("admin", 2);
        String group = group("admin", Map.of());
        produce(topic, 0, 100, Map.of());
        Set<Integer> found = new HashSet<>();
        try (var consumer = member(group, topic, Map.of())) {
            waitFor("100 records", () -> {
                for (var each : poll(consumer)) {
                    found.add(number(each));
                }
                return found.size() == 100 && lag(group, topic) == 0;
            });
            var described = get(admin.describeShareGroups(List.of(group)).all()).get(group);
            check(described.members().size() == 1, "one member");
            check(described.members().iterator().next().assignment().topicPartitions().size() == 2, "two partitions");
            var listed = get(admin.listGroups(ListGroupsOptions.forShareGroups()).all());
            check(listed.stream().anyMatch(g -> g.groupId().equals(group)
                    && g.type().equals(Optional.of(GroupType.SHARE))), "listed");
        }
        var starts = Map.of(new TopicPartition(topic, 0), 0L, new TopicPartition(topic, 1), 0L);
        get(admin.alterShareGroupOffsets(group, starts).all());
        check(lag(group, topic) == 100, "a lag after the move");
        get(admin.deleteShareGroupOffsets(group, Set.of(topic)).all());
        get(admin.deleteShareGroups(List.of(group)).all());
    }

    /** The start of a group that does not exist yet. A member that wants one byte gets a batch at a time. */
    static void start() throws Exception {
        String topic = topic("start", 1);
        String group = "group-start" + suffix;
        for (int n = 0; n < 5; n++) produce(topic, n, n + 1, Map.of());
        check(get(admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo(group)).isEmpty(), "a group that does not exist has no offsets");
        get(admin.alterShareGroupOffsets(group, Map.of(new TopicPartition(topic, 0), 2L)).all());
        check(get(admin.describeShareGroups(List.of(group)).all()).get(group).groupState() == GroupState.EMPTY,
                "the group is empty");
        List<Integer> found = new ArrayList<>();
        try (var consumer = member(group, topic, Map.of("fetch.max.bytes", "1"))) {
            waitFor("the records from the start", () -> {
                poll(consumer).forEach(each -> found.add(number(each)));
                return found.size() >= 3;
            });
        }
        check(found.equals(List.of(2, 3, 4)), "found " + found);
    }

    static long lag(String group, String topic) {
        var offsets = get(admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo(group));
        return offsets.entrySet().stream().filter(each -> each.getKey().topic().equals(topic))
                .mapToLong(each -> each.getValue().lag().orElse(-1L)).sum();
    }

    static String group(String name, Map<String, String> configs) {
        String group = "group-" + name + suffix;
        Map<String, String> all = new HashMap<>();
        all.put("share.auto.offset.reset", "earliest");
        // On a busy machine a member must not lose its records while it works on them.
        all.put("share.record.lock.duration.ms", "3600000");
        all.putAll(configs);
        var changes = all.entrySet().stream().map(each -> new AlterConfigOp(
                new ConfigEntry(each.getKey(), each.getValue()), AlterConfigOp.OpType.SET)).collect(Collectors.toList());
        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        get(admin.incrementalAlterConfigs(Map.of(resource, changes)).all());
        return group;
    }

    static KafkaShareConsumer<byte[], byte[]> member(String group, String topic, Map<String, String> configs) {
        Map<String, Object> all = new HashMap<>(configs);
        all.putAll(Map.of("bootstrap.servers", bootstrap, "group.id", group,
                "key.deserializer", ByteArrayDeserializer.class, "value.deserializer", ByteArrayDeserializer.class));
        var consumer = new KafkaShareConsumer<byte[], byte[]>(all);
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    static List<ConsumerRecord<byte[], byte[]>> poll(KafkaShareConsumer<byte[], byte[]> consumer) {
        List<ConsumerRecord<byte[], byte[]>> found = new ArrayList<>();
        consumer.poll(Duration.ofMillis(200)).forEach(found::add);
        return found;
    }

    static void produce(String topic, int first, int end, Map<String, String> configs) {
        try (var producer = producer(configs)) {
            for (int n = first; n < end; n++) producer.send(new ProducerRecord<>(topic, bytes("" + n)));
        }
    }
}
