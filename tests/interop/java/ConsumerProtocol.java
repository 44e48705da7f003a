import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.GroupNotEmptyException;
import org.apache.kafka.common.errors.InvalidRegularExpression;
import org.apache.kafka.common.errors.UnreleasedInstanceIdException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The Java client with group.protocol=consumer (KIP-848). Arguments: scenario, bootstrap, suffix. */
public class ConsumerProtocol {
    static final Duration DEADLINE = Duration.ofSeconds(40);
    static String bootstrap;
    static String suffix;
    static Admin admin;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[1];
        suffix = arguments[2];
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        try {
            switch (arguments[0]) {
                case "uniform", "range" -> shares(arguments[0]);
                case "pattern" -> pattern();
                case "static" -> staticMembers();
                case "migration" -> migration();
                case "admin" -> admin();
                default -> throw new IllegalArgumentException(arguments[0]);
            }
        } finally {
            admin.close();
        }
        System.out.println("PASS");
    }

    static void shares(String assignor) throws Exception {
        String topic = topic("shares-" + assignor, 6);
        var config = Map.of("group.id", "shares-" + assignor + suffix, "group.remote.assignor", assignor);
        try (var one = consumer(config)) {
            one.subscribe(List.of(topic));
            settle(List.of(one), List.of(6));
            try (var two = consumer(config); var three = consumer(config)) {
                two.subscribe(List.of(topic));
                three.subscribe(List.of(topic));
                settle(List.of(one, two, three), List.of(2, 2, 2));
                produce(topic, 0, 60, 6);
                List<Integer> found = new ArrayList<>();
                waitFor("60 records", () -> {
                    for (var each : List.of(one, two, three)) found.addAll(poll(each));
                    return found.size() >= 60;
                });
                check(Set.copyOf(found).size() == 60 && found.size() == 60, "each record once");
                one.commitSync();
                two.commitSync();
                three.commitSync();
            }
            settle(List.of(one), List.of(6));
            produce(topic, 60, 66, 6);
            List<Integer> late = new ArrayList<>();
            waitFor("6 records", () -> late.addAll(poll(one)) && late.size() >= 6);
            check(late.stream().sorted().toList().equals(List.of(60, 61, 62, 63, 64, 65)), "late " + late);
            one.commitSync();
        }
    }

    static void pattern() throws Exception {
        String prefix = "java-pattern-" + suffix;
        create(prefix + "-a", 1);
        create("x" + prefix, 1);
        var config = Map.of("group.id", "pattern-" + suffix);
        try (var one = consumer(config)) {
            one.subscribe(new SubscriptionPattern(prefix + "-(a|b)"));
            settle(List.of(one), List.of(1));
            create(prefix + "-b", 2);
            create(prefix + "-c", 2);
            settle(List.of(one), List.of(3));
        }
        try (var wrong = consumer(config)) {
            wrong.subscribe(new SubscriptionPattern("(a"));
            expect(InvalidRegularExpression.class, () -> waitFor("an error", () -> {
                wrong.poll(Duration.ofMillis(50));
                return false;
            }));
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
            var epoch = described(group).groupEpoch();
            try (var again = consumer(Map.of("group.id", group, "group.instance.id", "b"))) {
                again.subscribe(List.of(topic));
                settle(List.of(one, again), List.of(2, 2));
                check(again.assignment().equals(before), "the same partitions again");
                check(described(group).groupEpoch().equals(epoch), "no new epoch");
                try (var thief = consumer(Map.of("group.id", group, "group.instance.id", "a"))) {
                    thief.subscribe(List.of(topic));
                    expect(UnreleasedInstanceIdException.class, () -> waitFor("an error", () -> {
                        thief.poll(Duration.ofMillis(50));
                        return false;
                    }));
                }
            }
        }
    }

    static void migration() throws Exception {
        String topic = topic("migration", 4);
        String group = "migration-" + suffix;
        Map<String, String> old = Map.of("group.id", group, "group.protocol", "classic",
                "partition.assignment.strategy", CooperativeStickyAssignor.class.getName(),
                "session.timeout.ms", "10000", "heartbeat.interval.ms", "200");
        try (var one = consumer(old)) {
            one.subscribe(List.of(topic));
            settle(List.of(one), List.of(4));
            try (var two = consumer(Map.of("group.id", group))) {
                two.subscribe(List.of(topic));
                settle(List.of(one, two), List.of(2, 2));
                var group2 = described(group);
                check(group2.type() == GroupType.CONSUMER, "type " + group2);
                check(group2.members().stream().map(m -> m.upgraded().get()).sorted().toList()
                        .equals(List.of(false, true)), "which members are upgraded");
                one.commitSync();
                two.commitSync();
            }
            settle(List.of(one), List.of(4));
            check(described(group).type() == GroupType.CLASSIC, "classic again");
        }
    }

    static void admin() throws Exception {
        String topic = topic("admin", 2);
        String group = "admin-" + suffix;
        produce(topic, 0, 4, 2);
        try (var one = consumer(Map.of("group.id", group, "client.id", "me"))) {
            one.subscribe(List.of(topic));
            settle(List.of(one), List.of(2));
            var found = described(group);
            check(found.type() == GroupType.CONSUMER && found.groupState() == GroupState.STABLE, "" + found);
            check(found.groupEpoch().get().equals(found.targetAssignmentEpoch().get()), "epochs");
            check(found.partitionAssignor().equals("uniform"), "assignor");
            var member = found.members().iterator().next();
            check(member.clientId().equals("me") && member.assignment().topicPartitions().size() == 2, "" + member);
            check(member.targetAssignment().get().equals(member.assignment()), "target");
            check(admin.listGroups().all().get().stream().anyMatch(g -> g.groupId().equals(group)
                    && g.type().equals(java.util.Optional.of(GroupType.CONSUMER))), "listed");
            expect(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(group)).all().get());
            waitFor("4 records", () -> { poll(one); return position(one, topic) == 4; });
            one.commitSync();
        }
        check(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().values().stream()
                .mapToLong(o -> o.offset()).sum() == 4, "committed");
        admin.deleteConsumerGroups(List.of(group)).all().get();

        var resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(
                new ConfigEntry("consumer.session.timeout.ms", "9000"), AlterConfigOp.OpType.SET)))).all().get();
        var entry = admin.describeConfigs(List.of(resource)).all().get().get(resource)
                .get("consumer.session.timeout.ms");
        check(entry.value().equals("9000") && entry.source() == ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG,
                "config " + entry);
    }

    // --- help ---------------------------------------------------------------------------------

    interface Work {
        void run() throws Exception;
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

    static void waitFor(String what, BooleanSupplier condition) {
        long end = System.nanoTime() + DEADLINE.toNanos();
        while (!condition.getAsBoolean()) {
            if (System.nanoTime() > end) throw new AssertionError("not in time: " + what);
        }
    }

    static long position(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        return consumer.position(new TopicPartition(topic, 0)) + consumer.position(new TopicPartition(topic, 1));
    }

    static ConsumerGroupDescription described(String group) throws Exception {
        return admin.describeConsumerGroups(List.of(group)).all().get(30, TimeUnit.SECONDS).get(group);
    }

    static List<Integer> poll(KafkaConsumer<byte[], byte[]> consumer) {
        List<Integer> numbers = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
            numbers.add(Integer.parseInt(new String(record.value(), StandardCharsets.UTF_8)));
        }
        return numbers;
    }

    static String topic(String name, int partitions) throws Exception {
        return create("java-" + name + "-" + suffix, partitions);
    }

    static String create(String name, int partitions) throws Exception {
        admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all().get();
        return name;
    }

    static void produce(String topic, int from, int to, int partitions) {
        Map<String, Object> config = Map.of("bootstrap.servers", bootstrap);
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int n = from; n < to; n++) {
                producer.send(new ProducerRecord<>(topic, n % partitions, null,
                        ("" + n).getBytes(StandardCharsets.UTF_8)));
            }
        }
    }

    static KafkaConsumer<byte[], byte[]> consumer(Map<String, String> config) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap,
                "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                "fetch.max.wait.ms", "50", "group.protocol", "consumer", "metadata.max.age.ms", "500"));
        all.putAll(config);
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static void settle(List<KafkaConsumer<byte[], byte[]>> consumers, List<Integer> shares) {
        waitFor("shares " + shares, () -> {
            consumers.forEach(consumer -> consumer.poll(Duration.ofMillis(50)));
            var sizes = consumers.stream().map(c -> c.assignment().size()).sorted().toList();
            var all = consumers.stream().flatMap(c -> c.assignment().stream()).collect(Collectors.toSet());
            return sizes.equals(shares) && all.size() == shares.stream().mapToInt(Integer::intValue).sum();
        });
    }
}
