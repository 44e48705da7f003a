import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The Java client with group.protocol=consumer (KIP-848). Arguments: scenario, bootstrap, suffix. */
public class ConsumerProtocol extends Interop {
    static final Map<String, Work> SCENARIOS = Map.of(
            "uniform", () -> shares("uniform"),
            "range", () -> shares("range"),
            "pattern", ConsumerProtocol::pattern,
            "static", ConsumerProtocol::staticMembers,
            "migration", ConsumerProtocol::migration,
            "admin", ConsumerProtocol::admin);

    public static void main(String[] arguments) throws Exception {
        run(arguments, SCENARIOS);
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
                numbers(topic, 0, 60, 6);
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
            numbers(topic, 60, 66, 6);
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
        numbers(topic, 0, 4, 2);
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
                    && g.type().equals(Optional.of(GroupType.CONSUMER))), "listed");
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

    static long position(KafkaConsumer<byte[], byte[]> consumer, String topic) {
        return consumer.position(new TopicPartition(topic, 0)) + consumer.position(new TopicPartition(topic, 1));
    }

    static ConsumerGroupDescription described(String group) {
        return get(admin.describeConsumerGroups(List.of(group)).all()).get(group);
    }

    static List<Integer> poll(KafkaConsumer<byte[], byte[]> consumer) {
        List<Integer> numbers = new ArrayList<>();
        consumer.poll(Duration.ofMillis(50)).forEach(record -> numbers.add(number(record)));
        return numbers;
    }

    static void create(String name, int partitions) {
        get(admin.createTopics(List.of(new NewTopic(name, partitions, (short) 1))).all());
    }

    static KafkaConsumer<byte[], byte[]> consumer(Map<String, String> config) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap,
                "auto.offset.reset", "earliest", "enable.auto.commit", "false",
                "fetch.max.wait.ms", "50", "group.protocol", "consumer", "metadata.max.age.ms", "500"));
        all.putAll(config);
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }
}
