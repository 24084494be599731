#include "batch.h"

#include <stdlib.h>

int grow(Memory *memory, int64_t size) {
    if (size + SLACK <= memory->size)
        return 0;
    int64_t larger = memory->size ? memory->size : 1024;
    while (larger < size + SLACK)
        larger *= 2;
    uint8_t *p = realloc(memory->p, (size_t)larger);
    if (!p)
        return NO_MEMORY;
    memory->p = p;
    memory->size = larger;
    return 0;
}
