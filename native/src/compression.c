#include "compression.h"

int64_t inflate_batch(Inflater *inflater, int codec, const uint8_t *p, int64_t n, Memory *out, int64_t most) {
    (void)inflater, (void)codec, (void)p, (void)n, (void)out, (void)most;
    return UNKNOWN_CODEC;
}
void inflater_free(Inflater *inflater) { (void)inflater; }
