/* The array of Arrow's C data interface. Its layout is fixed by Arrow's specification. */
#ifndef ARROW_H
#define ARROW_H

#include <stdint.h>

struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};

#endif
