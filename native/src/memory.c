#include "batch.h"

#include <stdlib.h>

int grow(Memory *memory, int64_t size) {
#ifdef __SANITIZE_ADDRESS__
    int64_t larger = size + SLACK; /* never more, so that a sanitizer sees what is read or written behind it */
#else
    if (size + SLACK <= memory->size)
        return 0;
    int64_t larger = memory->size ? memory->size : 1024;
    while (larger < size + SLACK)
        larger *= 2;
#endif
    uint8_t *p = realloc(memory->p, (size_t)larger);
    if (!p)
        return NO_MEMORY;
    memory->p = p;
    memory->size = larger;
    return 0;
}
