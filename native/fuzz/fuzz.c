/* Makes batches, damages most of them in random ways, reads them, and writes and reads again what was read. Built with sanitizers, which end the process at the
 * first access outside of an array, and at the first undefined operation (README.md).
 *
 *   fuzz SECONDS SEED [ROUNDS]
 *
 * A round's inputs follow from its seed, and the rounds have consecutive seeds. */
#include "../src/arrow.h"
#include "../src/batch.h"
#include "../src/compression.h"

#include <sanitizer/common_interface_defs.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct Decoder Decoder;
Decoder *onceward_decoder_new(const uint8_t *columns, int64_t count, int check_crc);
void onceward_decoder_free(Decoder *d);
void onceward_decoder_limit(Decoder *d, int64_t largest);
void onceward_decoder_open(Decoder *d, const uint8_t *data, int64_t size, int64_t start, int64_t end,
                           const int64_t *aborted, int64_t aborted_count);
int64_t onceward_decoder_read(Decoder *d, int64_t most, struct ArrowArray *out);
typedef struct Encoder Encoder;
Encoder *onceward_encoder_new(int64_t partitions, int codec, int level, int transactional, int64_t usual, int64_t most);
void onceward_encoder_free(Encoder *e);
void onceward_encoder_begin(Encoder *e, int64_t producer, int64_t epoch);
int64_t onceward_encoder_ready(const Encoder *e, int64_t from, int64_t least);
int64_t onceward_encoder_add(Encoder *e, const struct ArrowArray *records, const uint8_t *kinds, int64_t row,
                             int64_t keyless, int64_t now);
int64_t onceward_encoder_take(Encoder *e, int64_t partition, struct ArrowArray *out);

enum { INPUTS = 256, KINDS = 32, INFLATED = 1 << 20 };
static uint64_t seed, state;
static uint64_t read_rows, written_rows, outcomes[KINDS]; /* by the negative of an error; 0 for none */

static void died(void) { fprintf(stderr, "\nfuzz: replay with: make fuzz SECONDS=0 SEED=%llu\n", (unsigned long long)seed); }
#define EXPECT(what)                                                                                                   \
    if (!(what)) {                                                                                                     \
        fprintf(stderr, "fuzz: line %d: not so: %s\n", __LINE__, #what);                                               \
        abort();                                                                                                       \
    }

/* ---- chance (splitmix64) ---- */

static uint64_t any(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static int64_t below(int64_t n) { return (int64_t)(any() % (uint64_t)n); }
static int one_in(int64_t n) { return !below(n); }

/* ---- input ---- */

static uint8_t data[1 << 20];
static int64_t used;

static void add(const void *p, int64_t n) {
    EXPECT(used + n <= (int64_t)sizeof data);
    memcpy(data + used, p, (size_t)n);
    used += n;
}
static void add_byte(int byte) { add(&(uint8_t){(uint8_t)byte}, 1); }
static void add_big(uint64_t v, int bytes) {
    while (bytes--)
        add_byte((int)(v >> (8 * bytes) & 255));
}
static void add_varint(int64_t n) {
    uint64_t v = (uint64_t)n << 1 ^ (uint64_t)(n >> 63);
    for (; v > 0x7f; v >>= 7)
        add_byte((int)(v | 0x80) & 255);
    add_byte((int)v);
}
static void add_field(int text) {
    if (!text && one_in(5)) {
        add_varint(-1);
        return;
    }
    int64_t n = one_in(20) ? below(600) : below(20);
    add_varint(n);
    for (int64_t i = 0; i < n; i++)
        add_byte(text || one_in(2) ? 'a' + (int)below(3) : (int)below(256));
}
static int64_t interesting(void) {
    static const int64_t some[] = {0, 1, -1, 2, 63, 64, -64, 127, 128, 255, 4096, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    return one_in(3) ? (int64_t)(any() >> below(64)) : some[below(sizeof some / sizeof *some)];
}

/* Changes what lies from `from` on, in up to four places: bytes, lengths, parts left out and repeated. */
static void damage(int64_t from) {
    for (int64_t times = 1 + below(4); times && used > from; times--) {
        int64_t size = used - from, some = size < 100 ? size : 100, few = size < 20 ? size : 20;
        int64_t at = one_in(3) ? from + below(size) : one_in(2) ? from + below(some) : used - 1 - below(few);
        int64_t left = used - at;
        switch (below(8)) {
        case 0: data[at] = (uint8_t)any(); break;
        case 1: data[at] ^= (uint8_t)(1 << below(8)); break;
        case 2: data[at] = (uint8_t)interesting(); break;
        case 7: data[at] += (uint8_t)(below(21) - 10); break; /* a length that is almost right */
        case 3: { /* a number of four or eight bytes */
            uint64_t v = __builtin_bswap64((uint64_t)interesting());
            int64_t n = left < 8 ? left : one_in(2) ? 4 : 8;
            memcpy(data + at, (uint8_t *)&v + 8 - n, (size_t)n);
            break;
        }
        case 4: { /* a varint, in the place of a byte */
            int64_t tail = left - 1;
            uint8_t *kept = malloc((size_t)tail + 1);
            memcpy(kept, data + at + 1, (size_t)tail);
            used = at;
            add_varint(interesting());
            add(kept, tail);
            free(kept);
            break;
        }
        case 5: { /* leave out */
            int64_t n = 1 + below(left < 8 ? left : 8);
            memmove(data + at, data + at + n, (size_t)(left - n));
            used -= n;
            break;
        }
        case 6: { /* repeat */
            int64_t n = 1 + below(left < 64 ? left : 64);
            EXPECT(used + n <= (int64_t)sizeof data);
            memmove(data + at + n, data + at, (size_t)left);
            used += n;
            break;
        }
        }
    }
}

static void fix_length(int64_t batch) {
    uint32_t length = __builtin_bswap32((uint32_t)(used - batch - AFTER_LENGTH));
    memcpy(data + batch + LENGTH, &length, 4);
}

/* Adds a batch from offset `base` on; returns the offset after it, and counts the records between `start` and `end`. */
static int64_t add_batch(Deflater *deflater, int64_t base, int harm, int64_t start, int64_t end, int64_t *visible) {
    int64_t batch = used, producer = one_in(3) ? below(4) : -1, count = one_in(12) ? 0 : 1 + below(12), last = 0;
    int control = producer >= 0 && one_in(4), codec = control || !count ? NONE : (int)below(CODECS);
    int transactional = producer >= 0 && (control || one_in(2));
    add_big((uint64_t)base, 8);
    add_big(0, 4);
    add_big(any() & 7, 4); /* leader epoch */
    add_byte(FORMAT);
    add_big(0, 4);
    add_big((uint64_t)(codec | (one_in(5) ? LOG_APPEND_TIME : 0) | (transactional ? TRANSACTIONAL : 0) | (control ? CONTROL : 0)), 2);
    add_big(0, 4);
    add_big((uint64_t)(one_in(4) ? interesting() : 1700000000000), 8);
    add_big((uint64_t)interesting(), 8);
    add_big((uint64_t)producer, 8);
    add_big(0, 2);
    add_big(0, 4);
    if (control)
        count = 1;
    add_big((uint64_t)count, 4);
    for (int64_t i = 0, delta = -1; i < count; i++) {
        int64_t before = used;
        last = delta += one_in(6) ? 1 + below(5) : 1;
        *visible += !control && base + delta >= start && base + delta < end;
        add_byte(0);
        add_varint(one_in(4) ? interesting() : below(1000));
        add_varint(delta);
        if (control) {
            add_varint(4);
            add_big((uint64_t)below(2), 4);
        } else {
            add_field(0);
        }
        add_field(0);
        int64_t headers = one_in(3) ? below(4) : 0;
        add_varint(headers);
        for (; headers; headers--) {
            add_field(1);
            add_field(0);
        }
        int64_t size = used - before;
        uint8_t *record = malloc((size_t)size);
        memcpy(record, data + before, (size_t)size);
        used = before;
        add_varint(size);
        add(record, size);
        free(record);
    }
    if (one_in(8))
        last += below(4);
    uint32_t delta = __builtin_bswap32((uint32_t)last);
    memcpy(data + batch + LAST_OFFSET_DELTA, &delta, 4);
    if (harm == 1)
        damage(batch + HEADER);
    if (codec && used > batch + HEADER) {
        static Memory packed;
        int64_t n = used - batch - HEADER;
        if (codec == SNAPPY && one_in(2)) { /* Java's frame */
            static const uint8_t frame[16] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1};
            uint8_t *raw = malloc((size_t)n);
            memcpy(raw, data + batch + HEADER, (size_t)n);
            used = batch + HEADER;
            add(frame, sizeof frame);
            for (int64_t at = 0, part; at < n; at += part) {
                part = 1 + below(n - at);
                int64_t size = deflate_batch(deflater, codec, DEFAULT_LEVEL, raw + at, part, &packed, 0);
                EXPECT(size > 0);
                add_big((uint64_t)size, 4);
                add(packed.p, size);
            }
            free(raw);
        } else {
            int64_t size = deflate_batch(deflater, codec, DEFAULT_LEVEL, data + batch + HEADER, n, &packed, 0);
            EXPECT(size > 0);
            used = batch + HEADER;
            add(packed.p, size);
        }
    }
    if (harm == 2)
        damage(batch + HEADER);
    fix_length(batch);
    if (harm == 3)
        damage(batch);
    if (harm != 3) {
        uint32_t crc = __builtin_bswap32(crc32c(data + batch + ATTRIBUTES, used - batch - ATTRIBUTES));
        memcpy(data + batch + CRC, &crc, 4);
    }
    return base + last + 1;
}

/* ---- output: every value is read, so that a sanitizer sees each ---- */

static volatile uint64_t sink;

static void read_bytes(const uint8_t *p, int64_t n) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += p[i];
    sink += sum;
}
static void read_offsets(const struct ArrowArray *a, int64_t most) {
    const int32_t *at = a->buffers[1];
    EXPECT(at[0] == 0);
    for (int64_t i = 0; i < a->length; i++)
        EXPECT(at[i] <= at[i + 1]);
    EXPECT(at[a->length] <= most);
}
static void read_nulls(const struct ArrowArray *a) {
    int64_t nulls = 0;
    const uint8_t *ok = a->buffers[0];
    for (int64_t i = 0; ok && i < a->length; i++)
        nulls += !(ok[i >> 3] >> (i & 7) & 1);
    EXPECT(nulls == a->null_count);
}
static void read_binary(const struct ArrowArray *a) {
    read_nulls(a);
    read_offsets(a, INT32_MAX);
    read_bytes(a->buffers[2], ((const int32_t *)a->buffers[1])[a->length]);
}
static void read_column(int column, const struct ArrowArray *a, int64_t rows) {
    EXPECT(a->length == rows && a->offset == 0);
    switch (column) {
    case 0:
    case 1: read_binary(a); break;
    case 5:
        read_nulls(a);
        read_offsets(a, a->children[0]->length);
        for (int i = 0; i < 2; i++) {
            EXPECT(a->children[0]->children[i]->length == a->children[0]->length);
            read_binary(a->children[0]->children[i]);
        }
        break;
    default: read_bytes(a->buffers[1], rows * (column == 4 ? 4 : 8));
    }
}

/* ---- what was read, written and read again ---- */

/* A sum over the values of a column, in any order. */
static uint64_t sum_of(const struct ArrowArray *a) {
    const uint8_t *ok = a->buffers[0], *p = a->buffers[2];
    const int32_t *at = a->buffers[1];
    uint64_t sum = 0;
    for (int64_t i = 0; i < a->length; i++) {
        uint64_t hash = 0xcbf29ce484222325u;
        if (!ok || ok[i >> 3] >> (i & 7) & 1)
            for (int32_t byte = at[i]; byte < at[i + 1]; byte++)
                hash = (hash ^ p[byte]) * 0x100000001b3u;
        else
            hash = 1;
        sum += hash;
    }
    return sum;
}
typedef struct {
    int64_t rows;
    uint64_t keys, values, names, contents, times;
} Sum;
static void add_to(Sum *sum, const uint8_t *columns, const struct ArrowArray *a) {
    sum->rows += a->length;
    for (int64_t i = 0; i < a->n_children; i++) {
        const struct ArrowArray *column = a->children[i];
        switch (columns[i]) {
        case 0: sum->keys += sum_of(column); break;
        case 1: sum->values += sum_of(column); break;
        case 3:
            for (int64_t row = 0; row < a->length; row++)
                sum->times += ((const uint64_t *)column->buffers[1])[row];
            break;
        case 5:
            sum->names += sum_of(column->children[0]->children[0]);
            sum->contents += sum_of(column->children[0]->children[1]);
            break;
        }
    }
}
static void take(Encoder *e, int64_t partition, int64_t most, Decoder *d, const uint8_t *columns, Sum *sum) {
    struct ArrowArray batch, a;
    int64_t size = onceward_encoder_take(e, partition, &batch), got;
    EXPECT(size > HEADER && size <= most && batch.length == size);
    onceward_decoder_open(d, batch.buffers[1], size, 0, INT64_MAX, NULL, 0);
    while ((got = onceward_decoder_read(d, 1000, &a)) > 0) {
        add_to(sum, columns, &a);
        a.release(&a);
    }
    EXPECT(got == 0);
    batch.release(&batch);
}
static void write_again(const struct ArrowArray *a, Decoder *d, const uint8_t *columns) {
    /* kinds of columns of the writer; the type of the timestamp is a partition, too, and the offset is no column */
    static const uint8_t kind_of[] = {0, 1, 255, 3, 2, 4};
    enum { TOO_MUCH = -19, PARTITIONS = 3 };
    uint8_t kinds[6];
    for (int64_t i = 0; i < a->n_children; i++)
        kinds[i] = kind_of[columns[i]];
    int64_t most = 100 + below(5000), row = 0;
    Sum before = {0}, after = {0};
    add_to(&before, columns, a);
    Encoder *e = onceward_encoder_new(PARTITIONS, (int)below(CODECS), DEFAULT_LEVEL, one_in(2), 1 + below(most), most);
    onceward_encoder_begin(e, below(3) - 1, 1);
    while ((row = onceward_encoder_add(e, a, kinds, row, 2, 7)) >= 0 && row < a->length)
        take(e, ((const int64_t *)(const void *)e)[1] /* its report.partition */, most, d, columns, &after);
    if (row == TOO_MUCH) {
        onceward_encoder_free(e);
        return;
    }
    EXPECT(row == a->length);
    for (int64_t i; (i = onceward_encoder_ready(e, 0, 0)) >= 0;)
        take(e, i, most, d, columns, &after);
    onceward_encoder_free(e);
    EXPECT(!memcmp(&before, &after, sizeof before));
    written_rows += (uint64_t)a->length;
}

static void run_input(Decoder *d, Decoder *again, const uint8_t *columns, int64_t count, Deflater *deflater) {
    int64_t aborted[8] = {0}, aborted_count = one_in(2) ? below(4) : 0, visible = 0;
    for (int64_t i = 0; i < aborted_count; i++) {
        aborted[2 * i] = below(4);
        aborted[2 * i + 1] = (i ? aborted[2 * i - 1] : 0) + below(20);
    }
    int64_t base = one_in(4) ? interesting() & INT64_MAX >> 1 : below(10), start = one_in(2) ? base : base + below(20);
    int64_t end = one_in(2) ? INT64_MAX : start + below(30), next = base;
    int harmed = 0;
    used = 0;
    for (int64_t batches = 1 + below(3); batches; batches--) {
        int harm = one_in(3) ? 0 : 1 + (int)below(3);
        harmed |= harm;
        next = add_batch(deflater, next, harm, start, end, &visible);
        next += one_in(3) ? below(5) : 0;
    }
    if (one_in(5)) {
        used = below(used + 1);
        harmed = 1;
    }
    uint8_t *exact = malloc((size_t)used); /* exactly as large, so that a sanitizer sees what is read behind it */
    memcpy(exact, data, (size_t)used);
    onceward_decoder_open(d, exact, used, start, end, aborted, aborted_count);
    int64_t rows = 0, got;
    do {
        struct ArrowArray a;
        got = onceward_decoder_read(d, one_in(2) ? 1 : below(5000), &a);
        if (got > 0) {
            EXPECT(a.length == got && a.n_children == count);
            for (int64_t i = 0; i < count; i++)
                read_column(columns[i], a.children[i], got);
            rows += got;
            if (one_in(4))
                write_again(&a, again, columns);
            a.release(&a);
        }
    } while (got > 0);
    free(exact);
    EXPECT(got > -KINDS);
    if (!harmed) { /* a correct result: what is in the range and not aborted */
        EXPECT(got == 0);
        EXPECT(aborted_count ? rows <= visible : rows == visible);
    }
    outcomes[-got]++;
    read_rows += (uint64_t)rows;
}

static void run_round(void) {
    state = seed * 0x2545f4914f6cdd1du;
    uint8_t columns[6];
    int64_t count = 0;
    for (uint8_t column = 0; column < 6; column++)
        if (!one_in(4))
            columns[count++] = column;
    Deflater deflater = {0};
    Decoder *d = onceward_decoder_new(columns, count, one_in(8));
    onceward_decoder_limit(d, INFLATED);
    Decoder *again = onceward_decoder_new(columns, count, 1);
    for (int i = 0; i < INPUTS; i++)
        run_input(d, again, columns, count, &deflater);
    onceward_decoder_free(d);
    onceward_decoder_free(again);
    deflater_free(&deflater);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: fuzz SECONDS SEED [ROUNDS]\n");
        return 2;
    }
    __sanitizer_set_death_callback(died);
    const uint64_t first = seed = strtoull(argv[2], NULL, 10), rounds = argc > 3 ? strtoull(argv[3], NULL, 10) : UINT64_MAX;
    const time_t until = time(NULL) + atoi(argv[1]);
    do
        run_round();
    while (++seed - first < rounds && (argc > 3 || time(NULL) < until));
    printf("fuzz: %llu inputs, seeds %llu to %llu, %llu records read, %llu written; inputs by outcome:",
           (unsigned long long)(seed - first) * INPUTS, (unsigned long long)first, (unsigned long long)seed - 1,
           (unsigned long long)read_rows, (unsigned long long)written_rows);
    for (int kind = 0; kind < KINDS; kind++)
        if (outcomes[kind])
            printf(" %d: %llu", -kind, (unsigned long long)outcomes[kind]);
    printf("\n");
    return 0;
}
