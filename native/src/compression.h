/* The codecs of Kafka's batches. */
#ifndef COMPRESSION_H
#define COMPRESSION_H

#include "batch.h"

/* State that decompression keeps from batch to batch. */
typedef struct {
    void *lz4, *zstd;
} Inflater;

/* Decompresses into `out`. Returns the size, or an error; TOO_LARGE if there are more than `most` bytes. */
int64_t inflate_batch(Inflater *inflater, int codec, const uint8_t *p, int64_t n, Memory *out, int64_t most);
void inflater_free(Inflater *inflater);

#endif
