// Writes record batches with Apache Kafka's own builders, as JSON, for tests/golden/batches_java.json.
//
//   java -cp "<Kafka's jars>" tests/golden/make/MakeBatches.java > tests/golden/batches_java.json
//
// Two tables: "batches" (bytes and what they mean) and "filtered" (bytes before and after the log
// cleaner's filter, with the decisions that the filter was given).
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.utils.BufferSupplier;

public class MakeBatches {
    static final long T = 1_700_000_000_000L;
    static final HexFormat HEX = HexFormat.of();

    static byte[] b(String s) { return s == null ? null : s.getBytes(StandardCharsets.UTF_8); }

    static Compression codec(String name) {
        return switch (name) {
            case "gzip" -> Compression.gzip().build();
            case "snappy" -> Compression.snappy().build();
            case "lz4" -> Compression.lz4().build();
            case "zstd" -> Compression.zstd().build();
            default -> Compression.NONE;
        };
    }

    static MemoryRecordsBuilder builder(String codec, TimestampType type, long base, long logAppendTime,
                                        long pid, short epoch, int seq, boolean txn) {
        return new MemoryRecordsBuilder(ByteBuffer.allocate(1 << 20), RecordBatch.MAGIC_VALUE_V2, codec(codec), type,
            base, logAppendTime, pid, epoch, seq, txn, false, 7, 1 << 20);
    }

    static void fill(MemoryRecordsBuilder m, long base) {
        m.appendWithOffset(base, T, b("k1"), b("v1"));
        m.appendWithOffset(base + 1, T + 5, null, b("no key"), new Header[] {new RecordHeader("h", b("x")), new RecordHeader("h", null)});
        m.appendWithOffset(base + 2, T - 300, b("k2"), null);
        m.appendWithOffset(base + 3, T + 1, b(""), b(""), new Header[] {new RecordHeader("\u00fc", b(""))});
        m.appendWithOffset(base + 4, T + 2, b("k1"), b("v".repeat(200)));
    }

    static String str(byte[] v) { return v == null ? "null" : "\"" + HEX.formatHex(v) + "\""; }
    static byte[] bytes(ByteBuffer v) { if (v == null) return null; byte[] o = new byte[v.remaining()]; v.duplicate().get(o); return o; }

    static String meaning(MemoryRecords records) {
        StringBuilder out = new StringBuilder();
        for (MutableRecordBatch batch : records.batches()) {
            DefaultRecordBatch d = (DefaultRecordBatch) batch;
            out.append("{\"base_offset\":").append(d.baseOffset()).append(",\"last_offset\":").append(d.lastOffset())
                .append(",\"leader_epoch\":").append(d.partitionLeaderEpoch()).append(",\"codec\":").append(d.compressionType().id)
                .append(",\"log_append_time\":").append(d.timestampType() == TimestampType.LOG_APPEND_TIME)
                .append(",\"transactional\":").append(d.isTransactional()).append(",\"control\":").append(d.isControlBatch())
                .append(",\"delete_horizon\":").append(d.deleteHorizonMs().isPresent() ? d.deleteHorizonMs().getAsLong() : "null")
                .append(",\"base_timestamp\":").append(d.baseTimestamp()).append(",\"max_timestamp\":").append(d.maxTimestamp())
                .append(",\"producer_id\":").append(d.producerId()).append(",\"producer_epoch\":").append(d.producerEpoch())
                .append(",\"base_sequence\":").append(d.baseSequence()).append(",\"last_sequence\":").append(d.lastSequence())
                .append(",\"crc\":").append(d.checksum()).append(",\"count\":").append(d.countOrNull()).append(",\"records\":[");
            String sep = "";
            for (org.apache.kafka.common.record.internal.Record r : d) {
                out.append(sep).append("{\"offset\":").append(r.offset()).append(",\"timestamp\":").append(r.timestamp())
                    .append(",\"key\":").append(str(bytes(r.key()))).append(",\"value\":").append(str(bytes(r.value()))).append(",\"headers\":[");
                String hs = "";
                for (Header h : r.headers()) { out.append(hs).append("[").append(str(b(h.key()))).append(",").append(str(h.value())).append("]"); hs = ","; }
                out.append("]}");
                sep = ",";
            }
            return out.append("]}").toString();
        }
        return "null";
    }

    static List<String> batches = new ArrayList<>(), filtered = new ArrayList<>();

    static MemoryRecords add(String name, MemoryRecords records) {
        batches.add("{\"name\":\"" + name + "\",\"hex\":" + str(bytes(records.buffer())) + ",\"meaning\":" + meaning(records) + "}");
        return records;
    }

    static void filter(String name, MemoryRecords in, Set<Long> keep, boolean retainEmpty, long now, long retention) {
        var f = new MemoryRecords.RecordFilter(now, retention) {
            @Override protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                return new BatchRetentionResult(retainEmpty ? BatchRetention.RETAIN_EMPTY : BatchRetention.DELETE_EMPTY, false);
            }
            @Override protected boolean shouldRetainRecord(RecordBatch batch, org.apache.kafka.common.record.internal.Record r) { return keep.contains(r.offset()); }
        };
        ByteBuffer out = ByteBuffer.allocate(1 << 20);
        var result = in.filterTo(f, out, BufferSupplier.NO_CACHING);
        ByteBuffer o = result.outputBuffer(); o.flip();
        MemoryRecords after = MemoryRecords.readableRecords(o);
        filtered.add("{\"name\":\"" + name + "\",\"before\":" + str(bytes(in.buffer())) + ",\"keep\":" + new TreeSet<>(keep)
            + ",\"retain_empty\":" + retainEmpty + ",\"now\":" + now + ",\"delete_retention_ms\":" + retention
            + ",\"after\":" + str(bytes(after.buffer())) + ",\"meaning\":" + meaning(after) + "}");
    }

    public static void main(String[] args) {
        for (String c : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            var m = builder(c, TimestampType.CREATE_TIME, 10, -1, -1, (short) -1, -1, false);
            fill(m, 10);
            var plain = add(c, m.build());
            m = builder(c, TimestampType.LOG_APPEND_TIME, 20, T + 9999, -1, (short) -1, -1, false);
            fill(m, 20);
            var stamped = add(c + ", LogAppendTime", m.build());
            m = builder(c, TimestampType.CREATE_TIME, 30, -1, 1234, (short) 5, Integer.MAX_VALUE - 1, false);
            fill(m, 30);
            var idempotent = add(c + ", idempotent, sequence wraps", m.build());
            m = builder(c, TimestampType.CREATE_TIME, 40, -1, 99, (short) 0, 0, true);
            fill(m, 40);
            add(c + ", transactional", m.build());

            filter(c + ": tombstone kept for the first time", plain, Set.of(10L, 12L, 14L), false, T + 77_000, 5000);
            filter(c + ": values only", plain, Set.of(13L, 14L), false, T + 77_000, 5000);
            filter(c + ": nothing kept", plain, Set.of(), false, T + 77_000, 5000);
            filter(c + ": all with a key kept", plain, Set.of(10L, 12L, 13L, 14L), false, T + 77_000, 5000);
            filter(c + ": LogAppendTime", stamped, Set.of(22L, 23L), false, T + 77_000, 5000);
            filter(c + ": idempotent", idempotent, Set.of(33L, 34L), false, T + 77_000, 5000);
            filter(c + ": idempotent, empty", idempotent, Set.of(), true, T + 77_000, 5000);
            ByteBuffer once = ByteBuffer.allocate(1 << 20);
            filter(c + ": LogAppendTime, empty", stamped, Set.of(), true, T + 77_000, 5000);
            // A second cleaning of a batch that has a delete horizon: it stays the same.
            var keep = Set.of(10L, 12L, 14L);
            var first = new MemoryRecords.RecordFilter(T + 77_000, 5000) {
                @Override protected BatchRetentionResult checkBatchRetention(RecordBatch x) { return new BatchRetentionResult(BatchRetention.DELETE_EMPTY, false); }
                @Override protected boolean shouldRetainRecord(RecordBatch x, org.apache.kafka.common.record.internal.Record r) { return keep.contains(r.offset()); }
            };
            ByteBuffer o = plain.filterTo(first, once, BufferSupplier.NO_CACHING).outputBuffer(); o.flip();
            var horizon = MemoryRecords.readableRecords(o);
            filter(c + ": horizon is set, all kept", horizon, keep, false, T + 80_000, 5000);
            filter(c + ": horizon is set, tombstone kept", horizon, Set.of(12L), false, T + 80_000, 5000);
            filter(c + ": horizon is set, tombstone dropped", horizon, Set.of(10L), false, T + 99_000, 5000);
            filter(c + ": horizon is set, empty", horizon, Set.of(), true, T + 99_000, 5000);
        }
        add("commit marker", MemoryRecords.withEndTransactionMarker(50, T, 7, 99, (short) 0, new EndTransactionMarker(ControlRecordType.COMMIT, 3)));
        add("abort marker", MemoryRecords.withEndTransactionMarker(51, T, 7, 99, (short) 0, new EndTransactionMarker(ControlRecordType.ABORT, 3)));
        System.out.println("{\"made_by\":\"Apache Kafka 4.3.0 (org.apache.kafka.common.record)\",\n\"batches\":[\n" + String.join(",\n", batches)
            + "],\n\"filtered\":[\n" + String.join(",\n", filtered) + "]}");
    }
}
