/* Arrow columns -> record batches for Produce: one open batch per partition. The arrays are trusted: they are Arrow's. */
#include "arrow.h"
#include "batch.h"
#include "compression.h"

#include <stdlib.h>

enum { KEY, VALUE, PARTITION, TIMESTAMP, HEADERS };
enum { FIRST_SIZE = 4096 };

typedef struct {
    Memory memory; /* room for the header, then the records */
    int64_t used;  /* bytes of records */
    int64_t base_timestamp, max_timestamp;
    int64_t likely; /* size of the last batch: the next is probably as large */
    int32_t count, sequence;
} Open;

/* What Python reads after a call (encode.py has the same fields): of the batch that was taken, or of the row that an error
 * or a full batch is about. */
typedef struct {
    int64_t row, partition, bytes, count, sequence, max_timestamp;
} Report;

typedef struct {
    Report report; /* first: its address is the encoder's */
    int64_t partitions, usual, most, producer, epoch;
    int codec, level, transactional;
    Deflater deflater;
    Open *open;
} Encoder;

/* A batch ends before it exceeds `usual` bytes; with one record it may have up to `most`. */
EXPORT Encoder *onceward_encoder_new(int64_t partitions, int codec, int level, int transactional, int64_t usual,
                                     int64_t most) {
    Encoder *e = calloc(1, sizeof *e);
    if (!e || !(e->open = calloc((size_t)partitions, sizeof *e->open))) {
        free(e);
        return NULL;
    }
    e->partitions = partitions;
    e->codec = codec;
    e->level = level;
    e->transactional = transactional;
    e->usual = usual;
    e->most = most;
    return e;
}
EXPORT void onceward_encoder_free(Encoder *e) {
    for (int64_t i = 0; i < e->partitions; i++)
        free(e->open[i].memory.p);
    deflater_free(&e->deflater);
    free(e->open);
    free(e);
}
/* Drops what is open. */
EXPORT void onceward_encoder_begin(Encoder *e, int64_t producer, int64_t epoch) {
    e->producer = producer;
    e->epoch = epoch;
    for (int64_t i = 0; i < e->partitions; i++)
        e->open[i].sequence = e->open[i].count = 0, e->open[i].used = 0;
}
/* The first partition from `from` on whose open batch has records, and at least so many bytes; -1 if there is none. */
EXPORT int64_t onceward_encoder_ready(const Encoder *e, int64_t from, int64_t least) {
    for (int64_t i = from; i < e->partitions; i++)
        if (e->open[i].count && e->open[i].used + HEADER >= least)
            return i;
    return -1;
}

/* org.apache.kafka.common.utils.Utils.murmur2 */
static uint32_t murmur2(const uint8_t *p, int64_t n) {
    const uint32_t m = 0x5bd1e995;
    uint32_t hash = 0x9747b28cu ^ (uint32_t)n;
    for (; n >= 4; n -= 4, p += 4) {
        uint32_t k;
        memcpy(&k, p, sizeof k);
        k *= m;
        k ^= k >> 24;
        hash = hash * m ^ k * m;
    }
    uint32_t rest = 0;
    for (int64_t i = 0; i < n; i++)
        rest |= (uint32_t)p[i] << (8 * i);
    if (n)
        hash = (hash ^ rest) * m;
    hash ^= hash >> 13;
    hash *= m;
    return hash ^ hash >> 15;
}

/* ---- columns ---- */

typedef struct {
    const int32_t *at; /* NULL: there is no such column */
    const uint8_t *p, *end, *ok;
    int64_t shift; /* of a row's bit in `ok` */
} Binary;
typedef struct {
    const void *p; /* NULL: there is no such column */
    const uint8_t *ok;
    int64_t shift;
} Fixed;
typedef struct {
    Binary key, value, name, content;
    Fixed partition, timestamp;
    const int32_t *lists; /* NULL: there are no headers */
    const uint8_t *lists_ok, *pairs_ok;
    int64_t lists_shift, pairs_shift;
} Columns;

static Binary binary_of(const struct ArrowArray *a, int64_t shift) {
    const int32_t *at = a->buffers[1];
    shift += a->offset;
    if (!at) /* allowed in an array without rows */
        return (Binary){0};
    static const uint8_t nothing[1];
    const uint8_t *p = a->buffers[2] ? a->buffers[2] : nothing;
    return (Binary){at + shift, p, p + at[a->offset + a->length], a->buffers[0], shift};
}
static Columns columns_of(const struct ArrowArray *records, const uint8_t *kinds) {
    Columns c = {0};
    for (int64_t i = 0; i < records->n_children; i++) {
        const struct ArrowArray *a = records->children[i];
        const int64_t shift = records->offset + a->offset;
        switch (kinds[i]) {
        case KEY: c.key = binary_of(a, records->offset); break;
        case VALUE: c.value = binary_of(a, records->offset); break;
        case PARTITION: c.partition = (Fixed){(const int32_t *)a->buffers[1] + shift, a->buffers[0], shift}; break;
        case TIMESTAMP: c.timestamp = (Fixed){(const int64_t *)a->buffers[1] + shift, a->buffers[0], shift}; break;
        case HEADERS: {
            const struct ArrowArray *pairs = a->children[0];
            c.lists = (const int32_t *)a->buffers[1] + shift;
            c.lists_ok = a->buffers[0];
            c.lists_shift = shift;
            c.pairs_ok = pairs->buffers[0];
            c.pairs_shift = pairs->offset;
            c.name = binary_of(pairs->children[0], pairs->offset);
            c.content = binary_of(pairs->children[1], pairs->offset);
            break;
        }
        }
    }
    return c;
}
static inline int is_valid(const uint8_t *ok, int64_t bit) { return !ok || ok[bit >> 3] >> (bit & 7) & 1; }
/* The size of a value, -1 for null. */
static inline int64_t size_of(const Binary *column, int64_t row) {
    return column->at && is_valid(column->ok, column->shift + row) ? column->at[row + 1] - column->at[row] : -1;
}

/* ---- records ---- */

static inline int64_t difference(int64_t a, int64_t b) { return (int64_t)((uint64_t)a - (uint64_t)b); } /* wraps, as Java's */
static inline uint64_t zigzag(int64_t n) { return (uint64_t)n << 1 ^ (uint64_t)(n >> 63); }
static inline int64_t varint_size(int64_t n) { return (70 - __builtin_clzll(zigzag(n) | 1)) / 7; }
static inline uint8_t *put_varint(uint8_t *to, int64_t n) {
    uint64_t v = zigzag(n);
    for (; v > 0x7f; v >>= 7)
        *to++ = (uint8_t)(v | 0x80);
    *to++ = (uint8_t)v;
    return to;
}
static inline int64_t field_size(int64_t size) { return varint_size(size) + (size < 0 ? 0 : size); }
static inline uint8_t *put_field(uint8_t *to, const Binary *column, int64_t row, int64_t size) {
    to = put_varint(to, size);
    if (size <= 0)
        return to;
    copy(to, column->p + column->at[row], size, column->end);
    return to + size;
}

/* The bytes of a row's headers; -1 if one has no name. */
static int64_t headers_size(const Columns *c, int64_t first, int64_t end) {
    int64_t size = 0;
    for (int64_t i = first; i < end; i++) {
        int64_t name = size_of(&c->name, i);
        if (name < 0 || !is_valid(c->pairs_ok, c->pairs_shift + i))
            return -1;
        size += field_size(name) + field_size(size_of(&c->content, i));
    }
    return size;
}

static int fail(Encoder *e, int error, int64_t row, int64_t partition, int64_t bytes) {
    e->report = (Report){.row = row, .partition = partition, .bytes = bytes};
    return error;
}

/* Adds rows from `row` on, until all are added or a partition's batch has no room: it is reported, and has to be taken
 * before the next call. Returns the first row that was not added, or an error about the reported row. */
EXPORT int64_t onceward_encoder_add(Encoder *e, const struct ArrowArray *records, const uint8_t *kinds, int64_t row,
                                    int64_t keyless, int64_t now) {
    if (!records->length) /* the buffers may be absent */
        return 0;
    const Columns c = columns_of(records, kinds);
    const Binary keys = c.key, values = c.value; /* whose addresses no call gets, so that they can be in registers */
    const Fixed wheres = c.partition, times = c.timestamp;
    const int32_t *lists = c.lists;
    const int64_t usual = e->usual, most = e->most, partitions = e->partitions;
    Open *const all = e->open;
    for (; row < records->length; row++) {
        const int64_t key = size_of(&keys, row), value = size_of(&values, row);
        int64_t partition = keyless;
        if (wheres.p && is_valid(wheres.ok, wheres.shift + row))
            partition = ((const int32_t *)wheres.p)[row];
        else if (key >= 0)
            partition = (murmur2(keys.p + keys.at[row], key) & 0x7fffffff) % (uint32_t)partitions;
        if (partition < 0 || partition >= partitions)
            return fail(e, WRONG_PARTITION, row, partition, 0);
        int64_t time = now, first = 0, headers = 0, headers_bytes = 0;
        if (times.p && is_valid(times.ok, times.shift + row))
            time = ((const int64_t *)times.p)[row];
        if (lists && is_valid(c.lists_ok, c.lists_shift + row)) {
            first = lists[row];
            headers = lists[row + 1] - first;
            if ((headers_bytes = headers_size(&c, first, first + headers)) < 0)
                return fail(e, NAMELESS_HEADER, row, partition, 0);
        }
        Open *o = &all[partition];
        const int64_t delta = o->count ? difference(time, o->base_timestamp) : 0;
        const int64_t body = 1 + varint_size(delta) + varint_size(o->count) + field_size(key) + field_size(value) +
                             varint_size(headers) + headers_bytes;
        const int64_t size = varint_size(body) + body;
        if (HEADER + o->used + size > (o->count ? usual : most) || o->count == INT32_MAX) {
            if (!o->count)
                return fail(e, RECORD_TOO_LARGE, row, partition, HEADER + size);
            e->report = (Report){.row = row, .partition = partition};
            return row;
        }
        if (HEADER + o->used + size + SLACK > o->memory.size) {
            int64_t wanted = o->count ? o->used + size : o->likely > size ? o->likely : size;
            if (grow(&o->memory, HEADER + (wanted > FIRST_SIZE ? wanted : FIRST_SIZE)))
                return fail(e, NO_MEMORY, row, partition, 0);
        }
        if (!o->count)
            o->base_timestamp = o->max_timestamp = time;
        else if (time > o->max_timestamp)
            o->max_timestamp = time;
        uint8_t *to = o->memory.p + HEADER + o->used;
        to = put_varint(to, body);
        *to++ = 0; /* attributes: unused */
        to = put_varint(to, delta);
        to = put_varint(to, o->count);
        to = put_field(to, &keys, row, key);
        to = put_field(to, &values, row, value);
        to = put_varint(to, headers);
        for (int64_t i = first; i < first + headers; i++) {
            to = put_field(to, &c.name, i, size_of(&c.name, i));
            to = put_field(to, &c.content, i, size_of(&c.content, i));
        }
        o->used += size;
        o->count++;
    }
    return row;
}

/* ---- batches ---- */

static void put16(uint8_t *p, uint16_t v) {
    v = __builtin_bswap16(v);
    memcpy(p, &v, sizeof v);
}
static void put32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, sizeof v);
}
static void put64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, sizeof v);
}

/* A batch as an array of bytes; it is freed with the last reference to it. */
typedef struct {
    uint8_t *p;
    const void *buffers[2];
} Bytes;
static void release_bytes(struct ArrowArray *array) {
    Bytes *bytes = array->private_data;
    free(bytes->p);
    free(bytes);
    array->release = NULL;
}

/* Ends a partition's open batch, which must have records, and fills `out` with its bytes. Returns their number, or an
 * error; then the batch stays open. */
EXPORT int64_t onceward_encoder_take(Encoder *e, int64_t partition, struct ArrowArray *out) {
    Open *o = &e->open[partition];
    Memory made = {0};
    int codec = e->codec;
    int64_t size = o->used;
    Bytes *bytes = malloc(sizeof *bytes);
    if (!bytes)
        return NO_MEMORY;
    if (codec) {
        size = deflate_batch(&e->deflater, codec, e->level, o->memory.p + HEADER, o->used, &made, HEADER);
        if (size < 0) {
            free(made.p);
            free(bytes);
            return size;
        }
        if (size >= o->used) { /* it became no smaller, and might be larger than the limit */
            free(made.p);
            made.p = NULL;
            codec = NONE;
            size = o->used;
        }
    }
    o->likely = o->used;
    if (!made.p) {
        made = o->memory;
        o->memory = (Memory){0};
    }
    uint8_t *batch = made.p;
    const int has_id = e->producer >= 0;
    put64(batch + BASE_OFFSET, 0);
    put32(batch + LENGTH, (uint32_t)(HEADER + size - AFTER_LENGTH));
    put32(batch + LEADER_EPOCH, UINT32_MAX);
    batch[MAGIC] = FORMAT;
    put16(batch + ATTRIBUTES, (uint16_t)(codec | (e->transactional ? TRANSACTIONAL : 0)));
    put32(batch + LAST_OFFSET_DELTA, (uint32_t)(o->count - 1));
    put64(batch + BASE_TIMESTAMP, (uint64_t)o->base_timestamp);
    put64(batch + MAX_TIMESTAMP, (uint64_t)o->max_timestamp);
    put64(batch + PRODUCER_ID, (uint64_t)e->producer);
    put16(batch + PRODUCER_EPOCH, (uint16_t)e->epoch);
    put32(batch + BASE_SEQUENCE, has_id ? (uint32_t)o->sequence : UINT32_MAX);
    put32(batch + RECORD_COUNT, (uint32_t)o->count);
    put32(batch + CRC, crc32c(batch + ATTRIBUTES, HEADER + size - ATTRIBUTES));
    e->report = (Report){.partition = partition,
                         .bytes = HEADER + size,
                         .count = o->count,
                         .sequence = has_id ? o->sequence : -1,
                         .max_timestamp = o->max_timestamp};
    o->sequence = (int32_t)(((int64_t)o->sequence + o->count) & INT32_MAX); /* after the largest comes 0 */
    o->count = 0;
    o->used = 0;
    *bytes = (Bytes){.p = batch, .buffers = {NULL, batch}};
    *out = (struct ArrowArray){.length = HEADER + size, .n_buffers = 2, .buffers = bytes->buffers,
                               .release = release_bytes, .private_data = bytes};
    return HEADER + size;
}

EXPORT void onceward_release(struct ArrowArray *array) {
    if (array->release)
        array->release(array);
}
