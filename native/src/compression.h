/* The codecs of Kafka's batches. Snappy is here; the others are the machine's libraries, found when they are first needed. */
#ifndef COMPRESSION_H
#define COMPRESSION_H

#include "batch.h"

/* What is kept from batch to batch; all zero at first. */
typedef struct {
    void *gzip, *lz4, *zstd;
} Inflater;
typedef struct {
    void *gzip, *zstd;
    uint16_t *snappy;
} Deflater;

int has_codec(int codec);

/* Decompresses into `out`. Returns the size, or an error; TOO_LARGE if there are more than `most` bytes. */
int64_t inflate_batch(Inflater *inflater, int codec, const uint8_t *p, int64_t n, Memory *out, int64_t most);
void inflater_free(Inflater *inflater);

enum { DEFAULT_LEVEL = INT32_MIN };
/* Compresses, and writes to `out` from byte `at` on. Returns the size, or an error. */
int64_t deflate_batch(Deflater *deflater, int codec, int level, const uint8_t *p, int64_t n, Memory *out, int64_t at);
void deflater_free(Deflater *deflater);

/* snappy.c */
enum { SNAPPY_TABLE = 1 << 14 };
int64_t snappy_inflate(const uint8_t *p, int64_t n, Memory *out, int64_t most);
int64_t snappy_bound(int64_t n);
int64_t snappy_deflate(uint16_t table[SNAPPY_TABLE], const uint8_t *p, int64_t n, uint8_t *to);

#endif
