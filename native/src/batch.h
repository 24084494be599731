/* Kafka's record batches, format 2: the places of the fields, integers of variable length, and errors.
 * The format is defined by org.apache.kafka.common.record.DefaultRecordBatch and DefaultRecord. */
#ifndef BATCH_H
#define BATCH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Arrow's columns and these functions are for little-endian machines"
#endif

#define EXPORT __attribute__((visibility("default")))

/* Where the fields of a batch's header begin, in bytes. */
enum {
    BASE_OFFSET = 0,
    LENGTH = 8, /* of what follows this field */
    AFTER_LENGTH = 12,
    LEADER_EPOCH = 12,
    MAGIC = 16,
    CRC = 17, /* of what follows this field */
    ATTRIBUTES = 21,
    LAST_OFFSET_DELTA = 23,
    BASE_TIMESTAMP = 27,
    MAX_TIMESTAMP = 35,
    PRODUCER_ID = 43,
    PRODUCER_EPOCH = 51,
    BASE_SEQUENCE = 53,
    RECORD_COUNT = 57,
    HEADER = 61, /* the header's size */
};
enum { CODEC = 0x07, LOG_APPEND_TIME = 0x08, TRANSACTIONAL = 0x10, CONTROL = 0x20 }; /* attributes */
enum { NONE, GZIP, SNAPPY, LZ4, ZSTD, CODECS };
enum { FORMAT = 2 };

/* Reasons of a failure; onceward_native/errors.py has the same list. */
enum {
    NO_MEMORY = -1,
    OLD_FORMAT = -2,
    UNKNOWN_FORMAT = -3,
    WRONG_LENGTH = -4,
    WRONG_OFFSETS = -5,
    WRONG_CRC = -6,
    UNKNOWN_CODEC = -7,
    NO_LIBRARY = -8,
    WRONG_COMPRESSION = -9,
    TOO_LARGE = -10,
    WRONG_COUNT = -11,
    WRONG_RECORD = -12,
    WRONG_RECORD_OFFSET = -13,
    WRONG_HEADERS = -14,
    NAME_NOT_UTF8 = -15,
    WRONG_MARKER = -16,
    WRONG_PARTITION = -17,
    NAMELESS_HEADER = -18,
    RECORD_TOO_LARGE = -19,
};

static inline uint16_t get16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap16(v);
}
static inline uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap32(v);
}
static inline uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return __builtin_bswap64(v);
}

/* Reads a zigzag integer. Returns where the next field begins, NULL if it does not end before `end`. */
static inline const uint8_t *get_varint(const uint8_t *p, const uint8_t *end, int64_t *out) {
    uint64_t v = 0;
    for (int shift = 0; p < end && shift < 64; shift += 7) {
        uint8_t byte = *p++;
        if (shift == 63 && byte > 1)
            return NULL;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = (int64_t)(v >> 1) ^ -(int64_t)(v & 1);
            return p;
        }
    }
    return NULL;
}

/* Memory that grows. SLACK bytes follow what was asked for, for copies in steps of fixed size. */
enum { SLACK = 32 };
typedef struct {
    uint8_t *p;
    int64_t size;
} Memory;
int grow(Memory *memory, int64_t size);

/* Copies n bytes. May read and write up to SLACK - 1 bytes more, but reads nothing from `end` on: steps of fixed size
 * are cheaper than a call for short values. */
static inline void copy(uint8_t *to, const uint8_t *from, int64_t n, const uint8_t *end) {
    if (n <= 256 && end - from >= n + SLACK)
        for (int64_t i = 0; i < n; i += SLACK)
            memcpy(to + i, from + i, SLACK);
    else
        memcpy(to, from, (size_t)n);
}

uint32_t crc32c(const uint8_t *p, int64_t n);

#endif
