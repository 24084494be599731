/* The records that one partition has in an answer of Fetch, as Arrow columns.
 *
 * Every length is checked before it is used. Nothing is written into the answer. */
#include "arrow.h"
#include "batch.h"
#include "compression.h"

#include <stdlib.h>

enum { KEY, VALUE, OFFSET, TIMESTAMP, TIMESTAMP_TYPE, HEADERS, COLUMNS };
enum { LARGEST = 1 << 30 }; /* bytes of a chunk before its last batch, and of one batch: columns have 32-bit offsets */

typedef struct {
    int64_t rows, key, value, null_keys, null_values; /* bytes of keys and values, and how many are null */
    int64_t null_lists, headers, names, contents, null_contents;
} Counts;

/* The memory of a chunk's columns. Arrow's arrays point into it; it is freed with the last of them. */
enum { ARRAYS = 1 + COLUMNS + 3 };
typedef struct {
    Counts is;
    Memory key_at, key, key_ok, value_at, value, value_ok, offset, timestamp, type;
    Memory list_at, list_ok, name_at, name, content_at, content, content_ok;
    int alive; /* arrays that are not released */
    struct ArrowArray array[ARRAYS], *child[ARRAYS];
    const void *buffer[ARRAYS][3];
} Chunk;

/* What Python reads after each call (decode.py has the same fields). */
typedef struct {
    int64_t next_offset, bytes_used, leader_epoch;
    int64_t offset, position, record; /* of the batch and record that an error is about */
} Progress;

typedef struct {
    Progress progress; /* first: its address is the decoder's */
    const uint8_t *data;
    int64_t size, start, end;
    const int64_t *aborted; /* pairs of producer id and first offset, by offset */
    int64_t aborted_left;
    Memory active; /* ids of producers whose aborted transaction is open at this place */
    int64_t active_count;
    uint8_t columns[COLUMNS];
    int column_count, wanted, check_crc;
    int64_t largest;
    Memory inflated;
    Inflater inflater;
} Decoder;

#define AT(memory, type) ((type *)(void *)(memory).p)
#define WANTS(decoder, column) ((decoder)->wanted & 1 << (column))

EXPORT Decoder *onceward_decoder_new(const uint8_t *columns, int64_t count, int check_crc) {
    Decoder *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    for (int64_t i = 0; i < count && i < COLUMNS; i++) {
        d->columns[d->column_count++] = columns[i];
        d->wanted |= 1 << columns[i];
    }
    d->check_crc = check_crc;
    d->largest = LARGEST;
    return d;
}
EXPORT void onceward_decoder_free(Decoder *d) {
    free(d->active.p);
    free(d->inflated.p);
    inflater_free(&d->inflater);
    free(d);
}
EXPORT void onceward_decoder_limit(Decoder *d, int64_t largest) { d->largest = largest < LARGEST ? largest : LARGEST; }
EXPORT void onceward_decoder_open(Decoder *d, const uint8_t *data, int64_t size, int64_t start, int64_t end,
                                  const int64_t *aborted, int64_t aborted_count) {
    d->data = data;
    d->size = size;
    d->start = start;
    d->end = end;
    d->aborted = aborted;
    d->aborted_left = aborted_count;
    d->active_count = 0;
    d->progress = (Progress){.next_offset = start, .leader_epoch = -1, .offset = -1, .record = -1};
}

/* ---- memory of a chunk ---- */

/* A few freed chunks are kept: the system clears the pages of new memory, which takes longer than to fill them. The
 * exchanges are atomic, because Arrow frees in any thread, and no lock could be held while a process forks. */
#ifdef __SANITIZE_ADDRESS__
enum { KEPT = 0 }; /* so that a sanitizer sees what is used after it was freed */
#else
enum { KEPT = 4 };
#endif
enum { KEPT_BYTES = 8 << 20 }; /* of a chunk */
static Chunk *kept[KEPT + 1];

static void chunk_free(Chunk *c) {
    Memory *all[] = {&c->key_at,    &c->key,     &c->key_ok,  &c->value_at, &c->value,      &c->value_ok,
                     &c->offset,    &c->timestamp, &c->type,  &c->list_at,  &c->list_ok,    &c->name_at,
                     &c->name,      &c->content_at, &c->content, &c->content_ok};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        bytes += all[i]->size;
    for (int i = 0; i < KEPT && bytes <= KEPT_BYTES; i++) {
        Chunk *none = NULL;
        if (__atomic_compare_exchange_n(&kept[i], &none, c, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
            return;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->p);
    free(c);
}
static Chunk *chunk_kept(void) {
    for (int i = 0; i < KEPT; i++) {
        Chunk *c = __atomic_exchange_n(&kept[i], NULL, __ATOMIC_ACQ_REL);
        if (c) {
            c->is = (Counts){0};
            c->alive = 0;
            return c;
        }
    }
    return calloc(1, sizeof(Chunk));
}

/* Makes room for the validity of more rows, and sets it. */
static int validity(Memory *ok, int64_t rows, int64_t more) {
    int64_t from = (rows + 7) / 8, to = (rows + more + 7) / 8;
    if (grow(ok, to))
        return NO_MEMORY;
    memset(ok->p + from, 0xff, (size_t)(to - from));
    return 0;
}
static inline void set_null(Memory *ok, int64_t row) { ok->p[row >> 3] &= (uint8_t)~(1u << (row & 7)); }

/* Makes room for `count` records that have `bytes` bytes. */
static int reserve(const Decoder *d, Chunk *c, int64_t count, int64_t bytes) {
    Counts *is = &c->is;
    int64_t rows = is->rows + count;
    int failed = 0;
    if (WANTS(d, KEY))
        failed |= grow(&c->key_at, (rows + 1) * 4) | grow(&c->key, is->key + bytes) | validity(&c->key_ok, is->rows, count);
    if (WANTS(d, VALUE))
        failed |= grow(&c->value_at, (rows + 1) * 4) | grow(&c->value, is->value + bytes) |
                  validity(&c->value_ok, is->rows, count);
    if (WANTS(d, OFFSET))
        failed |= grow(&c->offset, rows * 8);
    if (WANTS(d, TIMESTAMP))
        failed |= grow(&c->timestamp, rows * 8);
    if (WANTS(d, TIMESTAMP_TYPE))
        failed |= grow(&c->type, rows * 4);
    if (WANTS(d, HEADERS))
        failed |= grow(&c->list_at, (rows + 1) * 4) | validity(&c->list_ok, is->rows, count);
    return failed ? NO_MEMORY : 0;
}

/* The offset arrays begin with 0, also in a chunk without rows. */
static Chunk *chunk_new(const Decoder *d) {
    Chunk *c = chunk_kept();
    if (!c)
        return NULL;
    Memory *begins[] = {&c->key_at, &c->value_at, &c->list_at, &c->name_at, &c->content_at};
    int failed = reserve(d, c, 0, 0);
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        failed |= grow(begins[i], 4);
        if (begins[i]->p)
            memset(begins[i]->p, 0, 4);
    }
    if (failed) {
        chunk_free(c);
        return NULL;
    }
    return c;
}

/* ---- records ---- */

static int is_utf8(const uint8_t *p, int64_t n) {
    const uint8_t *end = p + n;
    while (p < end) {
        uint8_t first = *p++;
        if (first < 0x80)
            continue;
        int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
        if (first < 0xc2 || first > 0xf4 || end - p < more)
            return 0;
        uint8_t least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80; /* no longer form than needed */
        uint8_t most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;  /* no surrogates, nothing above 10ffff */
        if (*p < least || *p > most)
            return 0;
        for (p++, more--; more; p++, more--)
            if ((*p & 0xc0) != 0x80)
                return 0;
    }
    return 1;
}

/* Reads headers up to `end`, where the record must end. */
static int read_headers(Chunk *c, const uint8_t *p, const uint8_t *end, int64_t count) {
    Counts *is = &c->is;
    if (count < 0 || count > (end - p) / 2) /* a header has at least two bytes */
        return WRONG_HEADERS;
    if (grow(&c->name_at, (is->headers + count + 1) * 4) || grow(&c->content_at, (is->headers + count + 1) * 4) ||
        grow(&c->name, is->names + (end - p)) || grow(&c->content, is->contents + (end - p)) ||
        validity(&c->content_ok, is->headers, count))
        return NO_MEMORY;
    for (; count; count--) {
        int64_t size;
        if (!(p = get_varint(p, end, &size)) || size < 0 || size > end - p)
            return WRONG_HEADERS;
        if (!is_utf8(p, size))
            return NAME_NOT_UTF8;
        memcpy(c->name.p + is->names, p, (size_t)size);
        is->names += size;
        p += size;
        if (!(p = get_varint(p, end, &size)) || size > end - p)
            return WRONG_HEADERS;
        if (size >= 0) {
            memcpy(c->content.p + is->contents, p, (size_t)size);
            is->contents += size;
            p += size;
        } else {
            set_null(&c->content_ok, is->headers);
            is->null_contents++;
        }
        is->headers++;
        AT(c->name_at, int32_t)[is->headers] = (int32_t)is->names;
        AT(c->content_at, int32_t)[is->headers] = (int32_t)is->contents;
    }
    return p == end ? 0 : WRONG_RECORD;
}

static int read_records(Decoder *d, Chunk *c, const uint8_t *batch, const uint8_t *p, int64_t size, int64_t count) {
    const uint8_t *end = p + size;
    const int64_t base = (int64_t)get64(batch + BASE_OFFSET), last = base + (int32_t)get32(batch + LAST_OFFSET_DELTA);
    const int64_t base_time = (int64_t)get64(batch + BASE_TIMESTAMP), append_time = (int64_t)get64(batch + MAX_TIMESTAMP);
    const int appended = get16(batch + ATTRIBUTES) & LOG_APPEND_TIME;
    const int wanted = d->wanted;
    if (count > size / 7) /* a record has at least seven bytes */
        return WRONG_COUNT;
    if (reserve(d, c, count, size))
        return NO_MEMORY;
    Counts is = c->is;
    int32_t *key_at = AT(c->key_at, int32_t), *value_at = AT(c->value_at, int32_t);
    int64_t *offsets = AT(c->offset, int64_t), *times = AT(c->timestamp, int64_t);
    int64_t before = base - 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t n, delta, key_size, value_size;
        d->progress.record = i;
        if (!(p = get_varint(p, end, &n)) || n < 6 || n > end - p)
            return WRONG_RECORD;
        const uint8_t *stop = p + n;
        p++; /* attributes: unused */
        if (!(p = get_varint(p, stop, &n)) || !(p = get_varint(p, stop, &delta)))
            return WRONG_RECORD;
        if (delta < 0 || delta > last - base || base + delta <= before)
            return WRONG_RECORD_OFFSET;
        const int64_t offset = before = base + delta;
        const uint8_t *key, *value;
        if (!(p = get_varint(p, stop, &key_size)) || key_size > stop - p)
            return WRONG_RECORD;
        key = p;
        p += key_size < 0 ? 0 : key_size;
        if (!(p = get_varint(p, stop, &value_size)) || value_size > stop - p)
            return WRONG_RECORD;
        value = p;
        p += value_size < 0 ? 0 : value_size;
        int64_t headers;
        if (!(p = get_varint(p, stop, &headers)))
            return WRONG_RECORD;
        if (headers < 0)
            return WRONG_HEADERS;
        if (!headers && p != stop)
            return WRONG_RECORD;
        if (offset < d->start || offset >= d->end) {
            p = stop;
            continue;
        }
        if (wanted & 1 << KEY) {
            if (key_size >= 0) {
                copy(c->key.p + is.key, key, key_size, end);
                is.key += key_size;
            } else {
                set_null(&c->key_ok, is.rows);
                is.null_keys++;
            }
            key_at[is.rows + 1] = (int32_t)is.key;
        }
        if (wanted & 1 << VALUE) {
            if (value_size >= 0) {
                copy(c->value.p + is.value, value, value_size, end);
                is.value += value_size;
            } else {
                set_null(&c->value_ok, is.rows);
                is.null_values++;
            }
            value_at[is.rows + 1] = (int32_t)is.value;
        }
        if (wanted & 1 << OFFSET)
            offsets[is.rows] = offset;
        if (wanted & 1 << TIMESTAMP) /* wraps, as Java's */
            times[is.rows] = appended ? append_time : (int64_t)((uint64_t)base_time + (uint64_t)n);
        if (wanted & 1 << TIMESTAMP_TYPE)
            AT(c->type, int32_t)[is.rows] = appended ? 1 : 0;
        if (wanted & 1 << HEADERS) {
            if (headers) {
                c->is = is;
                int error = read_headers(c, p, stop, headers);
                if (error)
                    return error;
                is = c->is;
            } else {
                set_null(&c->list_ok, is.rows);
                is.null_lists++;
            }
            AT(c->list_at, int32_t)[is.rows + 1] = (int32_t)is.headers;
        }
        is.rows++;
        p = stop;
    }
    d->progress.record = -1;
    if (p != end)
        return WRONG_COUNT;
    c->is = is;
    return 0;
}

/* ---- batches ---- */

/* Reads which producers' aborted transactions have begun up to offset `last`. */
static int open_aborted(Decoder *d, int64_t last) {
    while (d->aborted_left && d->aborted[1] <= last) {
        if (grow(&d->active, (d->active_count + 1) * 8))
            return NO_MEMORY;
        AT(d->active, int64_t)[d->active_count++] = d->aborted[0];
        d->aborted += 2;
        d->aborted_left--;
    }
    return 0;
}
/* Returns the place of an open aborted transaction of the producer, -1 if it has none. */
static int64_t find_aborted(const Decoder *d, int64_t producer) {
    for (int64_t i = 0; i < d->active_count; i++)
        if (AT(d->active, int64_t)[i] == producer)
            return i;
    return -1;
}

/* Whether the first record says that a transaction was aborted: its key is a version and a type of 16 bits, 0 for abort. */
static int is_abort(const uint8_t *p, int64_t size) {
    const uint8_t *end = p + size;
    int64_t n;
    if (!(p = get_varint(p, end, &n)) || n < 6 || n > end - p)
        return WRONG_MARKER;
    end = p++ + n;
    if (!(p = get_varint(p, end, &n)) || !(p = get_varint(p, end, &n)) || !(p = get_varint(p, end, &n)) || n < 4 ||
        n > end - p)
        return WRONG_MARKER;
    return get16(p + 2) == 0;
}

static int read_batch(Decoder *d, Chunk *c, const uint8_t *batch, int64_t length, int64_t last) {
    const int attributes = get16(batch + ATTRIBUTES);
    const int64_t count = (int32_t)get32(batch + RECORD_COUNT);
    if (count < 0)
        return WRONG_COUNT;
    if (d->check_crc && crc32c(batch + ATTRIBUTES, length - ATTRIBUTES) != get32(batch + CRC))
        return WRONG_CRC;
    if (open_aborted(d, last))
        return NO_MEMORY;
    int64_t aborted = find_aborted(d, (int64_t)get64(batch + PRODUCER_ID));
    if (attributes & CONTROL ? aborted < 0 : last < d->start || ((attributes & TRANSACTIONAL) && aborted >= 0))
        return 0;
    if (!count) /* compaction keeps a batch without records for its producer's sequence */
        return 0;
    const uint8_t *p = batch + HEADER;
    int64_t size = length - HEADER;
    if (attributes & CODEC) {
        size = inflate_batch(&d->inflater, attributes & CODEC, p, size, &d->inflated, d->largest);
        if (size < 0)
            return (int)size;
        p = d->inflated.p;
    } else if (size > d->largest) {
        return TOO_LARGE;
    }
    if (attributes & CONTROL) {
        int abort = is_abort(p, size);
        if (abort == 1)
            AT(d->active, int64_t)[aborted] = AT(d->active, int64_t)[--d->active_count];
        return abort < 0 ? abort : 0;
    }
    return read_records(d, c, batch, p, size, count);
}

/* Reads whole batches into a chunk until it has `most` bytes, or the data or the range ends. */
static int read_batches(Decoder *d, Chunk *c, int64_t most) {
    Progress *now = &d->progress;
    while (now->next_offset < d->end && now->bytes_used < d->size) {
        Counts is = c->is;
        if (is.rows && is.key + is.value + is.names + is.contents + 16 * is.rows >= most)
            break;
        const uint8_t *batch = d->data + now->bytes_used;
        int64_t left = d->size - now->bytes_used;
        if (left < ATTRIBUTES)
            break;
        int64_t base = (int64_t)get64(batch + BASE_OFFSET), length = (int64_t)(int32_t)get32(batch + LENGTH) + AFTER_LENGTH;
        now->offset = base;
        now->position = now->bytes_used;
        now->record = -1;
        if (batch[MAGIC] < FORMAT)
            return OLD_FORMAT;
        if (batch[MAGIC] > FORMAT)
            return UNKNOWN_FORMAT;
        if (length < HEADER)
            return WRONG_LENGTH;
        if (length > left) /* the rest comes with the next answer */
            break;
        int64_t delta = (int32_t)get32(batch + LAST_OFFSET_DELTA);
        if (base < 0 || delta < 0 || base > INT64_MAX - 1 - delta)
            return WRONG_OFFSETS;
        int error = read_batch(d, c, batch, length, base + delta);
        if (error) {
            c->is = is;
            return error;
        }
        now->bytes_used += length;
        now->leader_epoch = (int32_t)get32(batch + LEADER_EPOCH);
        int64_t next = base + delta + 1 < d->end ? base + delta + 1 : d->end;
        if (next > now->next_offset)
            now->next_offset = next;
    }
    return 0;
}

/* ---- Arrow's arrays ---- */

static void release(struct ArrowArray *array) {
    Chunk *c = array->private_data;
    for (int64_t i = 0; i < array->n_children; i++)
        if (array->children[i]->release)
            array->children[i]->release(array->children[i]);
    array->release = NULL;
    if (!__atomic_sub_fetch(&c->alive, 1, __ATOMIC_ACQ_REL))
        chunk_free(c);
}

/* Fills the next array. A buffer of validity is left out where nothing is null. */
static struct ArrowArray *add(Chunk *c, int64_t length, int64_t nulls, const Memory *ok, int buffers, const void *second,
                              const void *third) {
    int n = c->alive++;
    const void **buffer = c->buffer[n];
    buffer[0] = nulls ? ok->p : NULL;
    buffer[1] = second;
    buffer[2] = third;
    c->array[n] = (struct ArrowArray){.length = length, .null_count = nulls, .n_buffers = buffers, .buffers = buffer,
                                      .release = release, .private_data = c};
    c->child[n] = &c->array[n];
    return &c->array[n];
}
static void adopt(struct ArrowArray *parent, struct ArrowArray **children, int64_t count) {
    parent->children = children;
    parent->n_children = count;
}

static void build(const Decoder *d, Chunk *c, struct ArrowArray *out) {
    const Counts *is = &c->is;
    int64_t rows = is->rows;
    struct ArrowArray *all = add(c, rows, 0, NULL, 1, NULL, NULL), *list = NULL;
    adopt(all, &c->child[c->alive], d->column_count);
    for (int i = 0; i < d->column_count; i++)
        switch (d->columns[i]) {
        case KEY: add(c, rows, is->null_keys, &c->key_ok, 3, c->key_at.p, c->key.p); break;
        case VALUE: add(c, rows, is->null_values, &c->value_ok, 3, c->value_at.p, c->value.p); break;
        case OFFSET: add(c, rows, 0, NULL, 2, c->offset.p, NULL); break;
        case TIMESTAMP: add(c, rows, 0, NULL, 2, c->timestamp.p, NULL); break;
        case TIMESTAMP_TYPE: add(c, rows, 0, NULL, 2, c->type.p, NULL); break;
        case HEADERS: list = add(c, rows, is->null_lists, &c->list_ok, 2, c->list_at.p, NULL); break;
        }
    if (list) {
        adopt(list, &c->child[c->alive], 1);
        struct ArrowArray *pair = add(c, is->headers, 0, NULL, 1, NULL, NULL);
        adopt(pair, &c->child[c->alive], 2);
        add(c, is->headers, 0, NULL, 3, c->name_at.p, c->name.p);
        add(c, is->headers, is->null_contents, &c->content_ok, 3, c->content_at.p, c->content.p);
    }
    *out = *all; /* moved: the caller releases it */
    all->release = NULL;
}

/* Fills `out` with the next records and returns their number; 0 at the end, and an error if the next batch has one.
 * `out` is filled only if there are records. After an error the decoder stays before the batch. */
EXPORT int64_t onceward_decoder_read(Decoder *d, int64_t most, struct ArrowArray *out) {
    Chunk *c = chunk_new(d);
    if (!c)
        return NO_MEMORY;
    int error = read_batches(d, c, most < LARGEST ? most : LARGEST);
    int64_t rows = c->is.rows;
    if (!rows) {
        chunk_free(c);
        return error;
    }
    build(d, c, out); /* an error comes with the next call, after the records before it */
    return rows;
}
