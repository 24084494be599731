import java.io.PrintWriter;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Random;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.CompressionType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;

/** Writes batches by Kafka's own classes, and lists what they read: of these batches, and of a file of others. */
public class RecordBatches {
    private static final int PARTITIONS = 5;
    private final Random random;
    private long offset;

    private RecordBatches(long seed) {
        random = new Random(seed);
    }

    public static void main(String[] arguments) throws Exception {
        Path directory = Path.of(arguments[0]);
        byte[] written = new RecordBatches(Long.parseLong(arguments[1])).write(Integer.parseInt(arguments[2]));
        Files.write(directory.resolve("java.batches"), written);
        list(written, directory.resolve("java.rows"));
        list(Files.readAllBytes(directory.resolve("ours.batches")), directory.resolve("ours.rows"));
    }

    private byte[] write(int batches) throws Exception {
        var out = new java.io.ByteArrayOutputStream();
        for (int n = 0; n < batches; n++) {
            MemoryRecords made = random.nextInt(10) == 0 ? marker() : records();
            if (random.nextInt(3) == 0)
                made = compacted(made);
            ByteBuffer bytes = made.buffer().duplicate();
            byte[] copy = new byte[bytes.remaining()];
            bytes.get(copy);
            out.write(copy);
            offset += random.nextInt(3) == 0 ? random.nextInt(20) : 0;
        }
        return out.toByteArray();
    }

    private MemoryRecords marker() {
        long producer = random.nextInt(100);
        ControlRecordType type = random.nextBoolean() ? ControlRecordType.ABORT : ControlRecordType.COMMIT;
        return MemoryRecords.withEndTransactionMarker(offset++, time(), 3, producer, (short) 1, new EndTransactionMarker(type, 9));
    }

    private MemoryRecords records() {
        CompressionType codec = CompressionType.values()[random.nextInt(5)];
        TimestampType type = random.nextInt(4) == 0 ? TimestampType.LOG_APPEND_TIME : TimestampType.CREATE_TIME;
        boolean transactional = random.nextInt(3) == 0;
        boolean idempotent = transactional || random.nextBoolean();
        MemoryRecordsBuilder builder = MemoryRecords.builder(
            ByteBuffer.allocate(1 << 16), RecordBatch.CURRENT_MAGIC_VALUE, Compression.of(codec).build(), type, offset,
            type == TimestampType.LOG_APPEND_TIME ? time() : RecordBatch.NO_TIMESTAMP, idempotent ? random.nextInt(100) : -1,
            (short) (idempotent ? random.nextInt(5) : -1), idempotent ? random.nextInt(1000) : -1, transactional, false,
            random.nextInt(8) - 1);
        for (int left = 1 + random.nextInt(random.nextInt(10) == 0 ? 2000 : 30); left > 0; left--) {
            Header[] headers = new Header[random.nextInt(3) == 0 ? random.nextInt(4) : 0];
            for (int n = 0; n < headers.length; n++)
                headers[n] = new RecordHeader(random.nextInt(3) == 0 ? "é\u4e2d" + n : "name" + n, field());
            builder.appendWithOffset(offset++, random.nextInt(20) == 0 ? -1 : time(), field(), field(), headers);
        }
        return builder.build();
    }

    private long time() {
        return random.nextInt(20) == 0 ? 0 : 1_700_000_000_000L + random.nextInt(1_000_000);
    }

    private byte[] field() {
        int kind = random.nextInt(12);
        if (kind == 0)
            return null;
        byte[] made = new byte[kind == 1 ? 0 : kind == 2 ? random.nextInt(2000) : random.nextInt(40)];
        if (random.nextBoolean())
            random.nextBytes(made);
        else
            java.util.Arrays.fill(made, (byte) ('a' + random.nextInt(3)));
        return made;
    }

    /** As the log cleaner does it, which leaves gaps, batches without records, and times before which tombstones stay. */
    private MemoryRecords compacted(MemoryRecords records) {
        var filter = new MemoryRecords.RecordFilter(1_700_000_000_000L, 1000) {
            @Override
            protected BatchRetentionResult checkBatchRetention(RecordBatch batch) {
                return new BatchRetentionResult(BatchRetention.RETAIN_EMPTY, batch.isControlBatch());
            }

            @Override
            protected boolean shouldRetainRecord(RecordBatch batch, Record record) {
                return random.nextInt(10) > (batch.baseOffset() % 10);
            }
        };
        var result = records.filterTo(filter, ByteBuffer.allocate(1 << 22), BufferSupplier.NO_CACHING);
        result.outputBuffer().flip();
        return MemoryRecords.readableRecords(result.outputBuffer());
    }

    private static void list(byte[] batches, Path to) throws Exception {
        try (PrintWriter out = new PrintWriter(Files.newBufferedWriter(to))) {
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(batches)).batches()) {
                batch.ensureValid();
                out.printf("batch %d %d %d %d %d %d %d %b %b %s %b%n", batch.baseOffset(), batch.lastOffset(), batch.countOrNull(),
                    batch.partitionLeaderEpoch(), batch.producerId(), batch.producerEpoch(), batch.baseSequence(),
                    batch.isTransactional(), batch.isControlBatch(), batch.compressionType().name,
                    batch.deleteHorizonMs().isPresent());
                if (batch.isControlBatch())
                    continue;
                for (Record record : batch) {
                    record.ensureValid();
                    byte[] key = bytes(record.key());
                    List<String> headers = new ArrayList<>();
                    for (Header header : record.headers())
                        headers.add(hex(header.key().getBytes("UTF-8")) + ":" + hex(header.value()));
                    out.printf("%d %s %s %d %d [%s] %d%n", record.offset(), hex(key), hex(bytes(record.value())), record.timestamp(),
                        batch.timestampType().id, String.join(",", headers),
                        key == null ? -1 : BuiltInPartitioner.partitionForKey(key, PARTITIONS));
                }
            }
        }
    }

    private static byte[] bytes(ByteBuffer buffer) {
        if (buffer == null)
            return null;
        byte[] copy = new byte[buffer.remaining()];
        buffer.get(copy);
        return copy;
    }

    private static String hex(byte[] bytes) {
        return bytes == null ? "null" : "x" + HexFormat.of().formatHex(bytes);
    }
}
