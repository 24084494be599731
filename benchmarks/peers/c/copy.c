/* Copies a topic with transactions, as fast as librdkafka can: the client library's own mark.
 *
 *     copy SERVERS SOURCE SINK NAME WORKLOAD THREADS PARTITIONS INTERVAL_MS
 *
 * Each thread has a consumer and a transactional producer of its own and every THREADS-th partition. Each transaction
 * holds the offsets that it read, so a restart would go on exactly there. Runs until SIGTERM.
 *
 * The declarations are librdkafka's public ones: the library that confluent-kafka ships has no header beside it.
 */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct rd_kafka_consumer_group_metadata_s rd_kafka_consumer_group_metadata_t;
typedef struct rd_kafka_topic_partition_list_s rd_kafka_topic_partition_list_t;
typedef struct {
    int err;
    rd_kafka_topic_t *topic;
    int32_t partition;
    void *payload;
    size_t payload_length;
    void *key;
    size_t key_length;
    int64_t offset;
    void *private;
} rd_kafka_message_t;
typedef struct {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int err;
    void *private;
} rd_kafka_topic_partition_t;
enum { PRODUCER = 0, CONSUMER = 1 };
enum { MSG_F_COPY = 2, PARTITION_UA = -1, OFFSET_STORED = -1000, QUEUE_FULL = -184 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, rd_kafka_topic_conf_t *);
int rd_kafka_poll(rd_kafka_t *, int);
int rd_kafka_poll_set_consumer(rd_kafka_t *);
int rd_kafka_last_error(void);
const char *rd_kafka_err2str(int);
const char *rd_kafka_error_string(const rd_kafka_error_t *);
rd_kafka_error_t *rd_kafka_init_transactions(rd_kafka_t *, int);
rd_kafka_error_t *rd_kafka_begin_transaction(rd_kafka_t *);
rd_kafka_error_t *rd_kafka_commit_transaction(rd_kafka_t *, int);
rd_kafka_error_t *rd_kafka_send_offsets_to_transaction(
    rd_kafka_t *, const rd_kafka_topic_partition_list_t *, const rd_kafka_consumer_group_metadata_t *, int);
rd_kafka_consumer_group_metadata_t *rd_kafka_consumer_group_metadata(rd_kafka_t *);
rd_kafka_topic_partition_list_t *rd_kafka_topic_partition_list_new(int);
rd_kafka_topic_partition_t *rd_kafka_topic_partition_list_add(rd_kafka_topic_partition_list_t *, const char *, int32_t);
int rd_kafka_assign(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
rd_kafka_queue_t *rd_kafka_queue_get_consumer(rd_kafka_t *);
ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
void rd_kafka_message_destroy(rd_kafka_message_t *);
int rd_kafka_produce(
    rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);

enum { BATCH = 5000, PATIENCE_MS = 30000 };

static const char *servers, *source, *sink, *name;
static int filters, steady, threads, partitions, interval_ms;
static volatile sig_atomic_t stopping;

static void stop(int signal_number) {
    (void)signal_number;
    stopping = 1;
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void require(const char *what, rd_kafka_error_t *error) {
    if (error)
        fail(what, rd_kafka_error_string(error));
}

static int64_t now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

static rd_kafka_t *client(int type, const char *const *settings) {
    char error[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    for (; *settings; settings += 2)
        if (rd_kafka_conf_set(conf, settings[0], settings[1], error, sizeof error))
            fail(settings[0], error);
    rd_kafka_t *made = rd_kafka_new(type, conf, error, sizeof error);
    if (!made)
        fail("client", error);
    return made;
}

/* One record into the open transaction; waits while the producer's queue is full. */
static void forward(rd_kafka_t *producer, rd_kafka_topic_t *topic, rd_kafka_message_t *message) {
    while (rd_kafka_produce(topic, PARTITION_UA, MSG_F_COPY, message->payload, message->payload_length, message->key,
                            message->key_length, NULL)) {
        if (rd_kafka_last_error() != QUEUE_FULL)
            fail("produce", rd_kafka_err2str(rd_kafka_last_error()));
        rd_kafka_poll(producer, 10);
    }
}

static int kept(const rd_kafka_message_t *message) {
    const char *key = message->key;
    size_t length = message->key_length;
    return !filters || (length >= 2 && key[length - 1] == '0' && key[length - 2] == '0');
}

static void *copy(void *argument) {
    int thread = (int)(intptr_t)argument;
    char transactional_id[256];
    snprintf(transactional_id, sizeof transactional_id, "%s-%d", name, thread);
    const char *const of_producer[] = {
        "bootstrap.servers", servers, "transactional.id", transactional_id, "linger.ms", steady ? "1" : "50",
        "batch.num.messages", "10000", "queue.buffering.max.messages", "1000000", "partitioner", "murmur2_random",
        NULL};
    const char *const of_consumer[] = {
        "bootstrap.servers", servers, "group.id", name, "enable.auto.commit", "false", "auto.offset.reset", "earliest",
        "isolation.level", "read_committed", "queued.min.messages", "100000", "fetch.message.max.bytes", "2097152",
        "fetch.wait.max.ms", "5", "fetch.queue.backoff.ms", "2", "queued.max.messages.kbytes", "262144", NULL};
    rd_kafka_t *producer = client(PRODUCER, of_producer);
    rd_kafka_t *consumer = client(CONSUMER, of_consumer);
    rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, sink, NULL);
    rd_kafka_poll_set_consumer(consumer);
    rd_kafka_topic_partition_list_t *mine = rd_kafka_topic_partition_list_new(partitions);
    for (int partition = thread; partition < partitions; partition += threads)
        rd_kafka_topic_partition_list_add(mine, source, partition)->offset = OFFSET_STORED;
    rd_kafka_assign(consumer, mine);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);
    rd_kafka_consumer_group_metadata_t *group = rd_kafka_consumer_group_metadata(consumer);
    int64_t *next = malloc(sizeof *next * (size_t)partitions);
    rd_kafka_message_t *messages[BATCH];
    require("init_transactions", rd_kafka_init_transactions(producer, PATIENCE_MS));

    while (!stopping) {
        int64_t end = 0;
        int read = 0;
        for (int partition = 0; partition < partitions; partition++)
            next[partition] = -1;
        require("begin_transaction", rd_kafka_begin_transaction(producer));
        while (!stopping && (!read || now_ms() < end)) { /* an interval begins with its first record */
            ssize_t count = rd_kafka_consume_batch_queue(queue, steady ? 2 : 10, messages, BATCH);
            for (ssize_t i = 0; i < count; i++) {
                rd_kafka_message_t *message = messages[i];
                if (message->err) { /* no record but news; the library continues by itself */
                    fprintf(stderr, "consume: %s\n", rd_kafka_err2str(message->err));
                    rd_kafka_message_destroy(message);
                    continue;
                }
                if (!read++)
                    end = now_ms() + interval_ms;
                if (kept(message))
                    forward(producer, topic, message);
                next[message->partition] = message->offset + 1;
                rd_kafka_message_destroy(message);
            }
            rd_kafka_poll(producer, 0);
        }
        rd_kafka_topic_partition_list_t *offsets = rd_kafka_topic_partition_list_new(partitions);
        for (int partition = 0; partition < partitions; partition++)
            if (next[partition] >= 0)
                rd_kafka_topic_partition_list_add(offsets, source, partition)->offset = next[partition];
        if (read)
            require("send_offsets", rd_kafka_send_offsets_to_transaction(producer, offsets, group, PATIENCE_MS));
        require("commit_transaction", rd_kafka_commit_transaction(producer, PATIENCE_MS));
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 9)
        fail(arguments[0], "SERVERS SOURCE SINK NAME WORKLOAD THREADS PARTITIONS INTERVAL_MS");
    servers = arguments[1];
    source = arguments[2];
    sink = arguments[3];
    name = arguments[4];
    filters = !strcmp(arguments[5], "filter");
    steady = !strcmp(arguments[5], "steady");
    threads = atoi(arguments[6]);
    partitions = atoi(arguments[7]);
    interval_ms = atoi(arguments[8]);
    signal(SIGTERM, stop);
    pthread_t *started = malloc(sizeof *started * (size_t)threads);
    for (intptr_t thread = 0; thread < threads; thread++)
        if (pthread_create(&started[thread], NULL, copy, (void *)thread))
            fail("pthread_create", "refused");
    for (int thread = 0; thread < threads; thread++)
        pthread_join(started[thread], NULL);
    return 0; /* what ended is committed; the system takes the rest */
}
