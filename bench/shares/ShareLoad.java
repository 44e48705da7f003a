import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Members of a share group that accept each record explicitly. Arguments: bootstrap, topic, group,
 * members, records of the warm-up, records that are measured. Prints the records that the broker
 * has acknowledged in a second, and the records of the slowest and the fastest member.
 */
public class ShareLoad {
    static final Duration POLL = Duration.ofMillis(100);
    static final long DEADLINE_NS = 240_000_000_000L;
    static final AtomicInteger settled = new AtomicInteger();
    static final AtomicLong began = new AtomicLong();
    static final AtomicLong ended = new AtomicLong();
    static final ConcurrentLinkedQueue<Exception> failures = new ConcurrentLinkedQueue<>();

    public static void main(String[] arguments) throws Exception {
        int members = Integer.parseInt(arguments[3]);
        int skipped = Integer.parseInt(arguments[4]);
        int last = skipped + Integer.parseInt(arguments[5]);
        Map<String, Object> config = Map.of(
                "bootstrap.servers", arguments[0],
                "group.id", arguments[2],
                "share.acknowledgement.mode", "explicit",
                "key.deserializer", ByteArrayDeserializer.class,
                "value.deserializer", ByteArrayDeserializer.class);
        List<Thread> threads = new ArrayList<>();
        int[] taken = new int[members];
        for (int number = 0; number < members; number++) {
            int member = number;
            threads.add(new Thread(() -> taken[member] = work(config, arguments[1], skipped, last)));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        if (!failures.isEmpty()) {
            throw failures.peek();
        }
        double seconds = (ended.get() - began.get()) / 1e9;
        var counts = java.util.Arrays.stream(taken).summaryStatistics();
        System.out.printf("{\"rate\": %.1f, \"least\": %d, \"most\": %d}%n",
                (last - skipped) / seconds, counts.getMin(), counts.getMax());
    }

    /** Take and accept records until the group has settled all; return how many were taken. */
    static int work(Map<String, Object> config, String topic, int skipped, int last) {
        int taken = 0;
        long deadline = System.nanoTime() + DEADLINE_NS;
        try (var consumer = new KafkaShareConsumer<byte[], byte[]>(config)) {
            consumer.setAcknowledgementCommitCallback((offsets, failure) -> {
                if (failure != null) {
                    failures.add(failure);
                }
                offsets.values().forEach(each -> count(each.size(), skipped, last));
            });
            consumer.subscribe(List.of(topic));
            while (settled.get() < last && failures.isEmpty()) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("only " + settled.get() + " records are settled");
                }
                for (var record : consumer.poll(POLL)) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    taken++;
                }
            }
        } catch (Exception failure) {
            failures.add(failure);
        }
        return taken;
    }

    static void count(int more, int skipped, int last) {
        int now = settled.addAndGet(more);
        if (now >= skipped) {
            began.compareAndSet(0, System.nanoTime());
        }
        if (now >= last) {
            ended.compareAndSet(0, System.nanoTime());
        }
    }
}
