// Writes records of __transaction_state with Apache Kafka's own classes, as JSON, for
// tests/golden/transactions_java.json; and reads ours back (lines "key-hex value-hex" on stdin).
//
//   java -cp "<Kafka's jars>" tests/golden/make/MakeTransactions.java > tests/golden/transactions_java.json
//   java -cp "<Kafka's jars>" tests/golden/make/MakeTransactions.java read < lines
import java.nio.ByteBuffer;
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.coordinator.transaction.*;
import org.apache.kafka.server.common.TransactionVersion;

public class MakeTransactions {
    static final long T = 1_700_000_000_000L;
    static final HexFormat HEX = HexFormat.of();
    static final List<String> OUT = new ArrayList<>();

    static void add(String name, int level, long pid, long prev, long next, int epoch, int client, TransactionState state,
                    long start, String... partitions) {
        HashSet<TopicPartition> tps = new HashSet<>();
        for (String each : partitions) {
            int dash = each.lastIndexOf('-');
            tps.add(new TopicPartition(each.substring(0, dash), Integer.parseInt(each.substring(dash + 1))));
        }
        var value = new TxnTransitMetadata(pid, prev, next, (short) epoch, (short) -1, 60_000, state, tps, start, T + 5,
            TransactionVersion.fromFeatureLevel((short) (level == 0 ? 0 : client)));
        byte[] bytes = TransactionLog.valueToBytes(value, TransactionVersion.fromFeatureLevel((short) level));
        OUT.add("{\"name\":\"" + name + "\",\"version\":" + (level == 0 ? 0 : 1) + ",\"hex\":\"" + HEX.formatHex(bytes)
            + "\",\"producer_id\":" + pid + ",\"epoch\":" + epoch + ",\"previous\":" + (level == 0 ? -1 : prev)
            + ",\"next\":" + (level == 0 ? -1 : next) + ",\"client\":" + (level == 0 ? 0 : client) + ",\"state\":\""
            + state.stateName() + "\",\"timeout_ms\":60000,\"start_ms\":" + start + ",\"updated_ms\":" + (T + 5)
            + ",\"partitions\":[" + Arrays.stream(partitions).map(p -> "\"" + p + "\"").collect(Collectors.joining(","))
            + "]}");
    }

    public static void main(String[] args) throws Exception {
        if (args.length > 0) {
            read();
            return;
        }
        for (int level : new int[] {0, 2}) {
            String v = level == 0 ? "v0 " : "v1 ";
            add(v + "empty", level, 7, 7, -1, 0, 0, TransactionState.EMPTY, -1);
            add(v + "rotated", level, 9, 7, -1, 0, 2, TransactionState.EMPTY, -1);
            add(v + "ongoing", level, 7, 7, -1, 3, 0, TransactionState.ONGOING, T, "a-0");
            add(v + "ongoing V2", level, 7, 7, -1, 3, 2, TransactionState.ONGOING, T, "a-0", "a-300", "b.c-2");
            add(v + "prepare commit", level, 7, 7, -1, 4, 2, TransactionState.PREPARE_COMMIT, T, "a-0");
            add(v + "prepare abort, epochs used up", level, 7, 7, 8, 32767, 2, TransactionState.PREPARE_ABORT, T, "a-0");
            add(v + "abort of nothing", level, 7, 7, -1, 5, 2, TransactionState.PREPARE_ABORT, T);
            add(v + "complete commit", level, 7, 7, -1, 4, 2, TransactionState.COMPLETE_COMMIT, T);
            add(v + "complete abort, rotated", level, 8, 7, -1, 0, 2, TransactionState.COMPLETE_ABORT, T);
        }
        System.out.println("{\"key\":{\"id\":\"tx-\u00e4\",\"hex\":\"" + HEX.formatHex(TransactionLog.keyToBytes("tx-\u00e4"))
            + "\"},\n\"values\":[\n" + String.join(",\n", OUT) + "\n]}");
    }

    static void read() {
        Scanner in = new Scanner(System.in);
        while (in.hasNextLine()) {
            String[] parts = in.nextLine().split(" ");
            System.out.println(TransactionLog.read(ByteBuffer.wrap(HEX.parseHex(parts[0])), ByteBuffer.wrap(HEX.parseHex(parts[1]))));
        }
    }
}
