import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;

/** One of the benchmark's workloads as a Kafka Streams application; runs until SIGTERM. The argument is the task. */
public final class Streams {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Consumed<String, String> TEXTS = Consumed.with(Serdes.String(), Serdes.String());
    /** Values begin with their event time in milliseconds, 13 digits; benchmarks/queries/workloads.py has the sizes. */
    private static final Consumed<String, String> TIMED = TEXTS.withTimestampExtractor(
        (record, before) -> Long.parseLong(time((String) record.value())));

    private Streams() {}

    public static void main(String[] arguments) throws Exception {
        JsonNode task = JSON.readTree(arguments[0]);
        StreamsBuilder builder = new StreamsBuilder();
        String source = task.get("source").asText();
        String sink = task.get("sink").asText();
        switch (task.get("workload").asText()) {
            case "running-count":
                runningCount(builder, source, sink);
                break;
            case "window-count":
                windowCount(builder, source, sink);
                break;
            case "join":
                join(builder, source, sink);
                break;
            case "json":
                builder.<byte[], byte[]>stream(source).mapValues(Streams::computed).to(sink);
                break;
            case "filter":
                builder.<byte[], byte[]>stream(source)
                    .filter((key, value) -> key[key.length - 1] == '0' && key[key.length - 2] == '0')
                    .to(sink);
                break;
            default:
                builder.<byte[], byte[]>stream(source).to(sink);
                break;
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), properties(task));
        CountDownLatch ended = new CountDownLatch(1);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            streams.close(Duration.ofSeconds(10));
            ended.countDown();
        }));
        streams.start();
        ended.await();
    }

    private static void runningCount(StreamsBuilder builder, String source, String sink) {
        builder.stream(source, TEXTS)
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .count()
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(sink, Produced.with(Serdes.String(), Serdes.String()));
    }

    private static void windowCount(StreamsBuilder builder, String source, String sink) {
        Duration size = Duration.ofMillis(10_000);
        Duration late = Duration.ofMillis(10_000);
        builder.stream(source, TIMED)
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .windowedBy(TimeWindows.ofSizeAndGrace(size, late))
            .count()
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream((window, count) -> window.key() + "@" + window.window().start())
            .mapValues(count -> Long.toString(count))
            .to(sink, Produced.with(Serdes.String(), Serdes.String()));
    }

    private static void join(StreamsBuilder builder, String source, String sink) {
        JoinWindows windows = JoinWindows.ofTimeDifferenceAndGrace(Duration.ZERO, Duration.ofMillis(10_000))
            .after(Duration.ofMillis(400));
        KStream<String, String> left = builder.stream(source, TIMED).mapValues(Streams::time);
        KStream<String, String> right = builder.stream(source + "-right", TIMED).mapValues(Streams::time);
        left.join(right, (one, other) -> one + "-" + other, windows,
                StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String()))
            .to(sink, Produced.with(Serdes.String(), Serdes.String()));
    }

    private static String time(String value) {
        return value.substring(0, 13);
    }

    private static byte[] computed(byte[] value) {
        try {
            JsonNode in = JSON.readTree(value);
            ObjectNode out = JSON.createObjectNode();
            out.put("id", in.get("id").longValue());
            out.put("total", in.get("amount").longValue() * in.get("quantity").longValue());
            out.put("currency", in.get("currency").textValue().toUpperCase(Locale.ROOT));
            return JSON.writeValueAsBytes(out);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static Properties properties(JsonNode task) {
        boolean steady = task.get("steady").asBoolean();
        Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, task.get("name").asText());
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, task.get("servers").asText());
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, task.get("threads").asInt());
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, task.get("interval_ms").asInt());
        properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, new File(task.get("scratch").asText(), "state").getPath());
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArray().getClass());
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArray().getClass());
        properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
        properties.put(StreamsConfig.consumerPrefix(ConsumerConfig.FETCH_MAX_WAIT_MS_CONFIG), steady ? 5 : 100);
        properties.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), steady ? 1 : 50);
        properties.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 1_000_000);
        properties.put(StreamsConfig.producerPrefix(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG), 60_000);
        return properties;
    }
}
