/* Snappy. Producers on librdkafka write one block; Java's library adds a header and a length before each block. The
 * format: a varint with the size, then literals and copies of what was written before (format_description.txt of Snappy). */
#include "compression.h"

enum { FRAGMENT = 1 << 16, MARGIN = 15 }; /* a copy reaches back within a fragment; matches are not sought at its end */
enum { JAVA_HEADER = 16 };                /* a magic number of eight bytes, and two versions */
static const uint8_t JAVA[8] = {0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0};

static int64_t get_little(const uint8_t *p, int64_t bytes) {
    int64_t v = 0;
    for (int64_t i = 0; i < bytes; i++)
        v |= (int64_t)p[i] << (8 * i);
    return v;
}

/* Writes `size` bytes from what lies `back` bytes before; the ranges may overlap, which repeats a pattern. */
static void repeat(uint8_t *to, int64_t back, int64_t size) {
    if (back >= 8)
        for (int64_t i = 0; i < size; i += 8)
            memcpy(to + i, to + i - back, 8);
    else
        for (int64_t i = 0; i < size; i++)
            to[i] = to[i - back];
}

/* Decompresses to exactly `size` bytes; up to SLACK more may be overwritten. */
static int read_elements(const uint8_t *p, const uint8_t *end, uint8_t *out, int64_t size) {
    uint8_t *to = out, *stop = out + size;
    while (p < end) {
        const uint8_t tag = *p++;
        if (!(tag & 3)) {
            int64_t n = (tag >> 2) + 1;
            if (n > 60) {
                int64_t bytes = n - 60;
                if (bytes > end - p)
                    return WRONG_COMPRESSION;
                n = get_little(p, bytes) + 1;
                p += bytes;
            }
            if (n > end - p || n > stop - to)
                return WRONG_COMPRESSION;
            copy(to, p, n, end);
            to += n;
            p += n;
            continue;
        }
        int64_t n = (tag >> 2) + 1, back, bytes = (tag & 3) == 3 ? 4 : tag & 3;
        if (bytes > end - p)
            return WRONG_COMPRESSION;
        back = get_little(p, bytes);
        p += bytes;
        if ((tag & 3) == 1) {
            n = (tag >> 2 & 7) + 4;
            back |= (tag >> 5) << 8;
        }
        if (!back || back > to - out || n > stop - to)
            return WRONG_COMPRESSION;
        repeat(to, back, n);
        to += n;
    }
    return to == stop ? 0 : WRONG_COMPRESSION;
}

static int64_t read_block(const uint8_t *p, int64_t n, Memory *out, int64_t at, int64_t most) {
    const uint8_t *end = p + n;
    int64_t size = 0;
    for (int shift = 0;; shift += 7) {
        if (p == end || shift > 28)
            return WRONG_COMPRESSION;
        size |= (int64_t)(*p & 0x7f) << shift;
        if (*p++ < 0x80)
            break;
    }
    if (size > most - at)
        return TOO_LARGE;
    if (size > n * 64) /* no element makes more of its bytes: do not ask for memory in vain */
        return WRONG_COMPRESSION;
    if (grow(out, at + size))
        return NO_MEMORY;
    int error = read_elements(p, end, out->p + at, size);
    return error ? error : size;
}

int64_t snappy_inflate(const uint8_t *p, int64_t n, Memory *out, int64_t most) {
    if (n < JAVA_HEADER || memcmp(p, JAVA, sizeof JAVA))
        return read_block(p, n, out, 0, most);
    int64_t used = 0;
    for (p += JAVA_HEADER, n -= JAVA_HEADER; n;) {
        if (n < 4)
            return WRONG_COMPRESSION;
        int64_t block = (int32_t)get32(p);
        p += 4;
        n -= 4;
        if (block < 0 || block > n)
            return WRONG_COMPRESSION;
        int64_t size = read_block(p, block, out, used, most);
        if (size < 0)
            return size;
        used += size;
        p += block;
        n -= block;
    }
    return used;
}

/* ---- compression: one block without Java's frame, which every reader reads ---- */

int64_t snappy_bound(int64_t n) { return 32 + n + n / 6; }

static uint32_t word_at(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
static uint8_t *put_literal(uint8_t *to, const uint8_t *p, int64_t n, const uint8_t *end) {
    int64_t size = n - 1;
    if (size < 60) {
        *to++ = (uint8_t)(size << 2);
    } else { /* a fragment needs at most two bytes */
        *to++ = (uint8_t)((size < 256 ? 60 : 61) << 2);
        *to++ = (uint8_t)size;
        if (size >= 256)
            *to++ = (uint8_t)(size >> 8);
    }
    copy(to, p, n, end);
    return to + n;
}
static uint8_t *put_copy(uint8_t *to, int64_t back, int64_t n) {
    for (; n > 0;) {
        int64_t part = n > 64 ? (n < 68 ? 60 : 64) : n; /* what remains has at least four bytes, */
        if (part >= 4 && part < 12 && back < 2048) {    /* for which the short form exists */
            *to++ = (uint8_t)(1 | (part - 4) << 2 | back >> 8 << 5);
            *to++ = (uint8_t)back;
        } else {
            *to++ = (uint8_t)(2 | (part - 1) << 2);
            *to++ = (uint8_t)back;
            *to++ = (uint8_t)(back >> 8);
        }
        n -= part;
    }
    return to;
}

static uint8_t *put_fragment(uint16_t *table, const uint8_t *p, int64_t n, uint8_t *to, const uint8_t *end) {
    int bits = 8;
    while (bits < 14 && 1 << bits < n)
        bits++;
    memset(table, 0, sizeof *table << bits);
    const uint8_t *start = p, *stop = p + n, *literal = p;
    if (n >= MARGIN)
        for (const uint8_t *limit = stop - MARGIN, *at = p + 1; at < limit;) {
            const uint8_t *match;
            for (uint32_t tries = 32;; tries++) { /* wider steps through what does not compress */
                uint16_t *slot = &table[word_at(at) * 0x1e35a7bdu >> (32 - bits)];
                match = start + *slot;
                *slot = (uint16_t)(at - start);
                if (word_at(match) == word_at(at) && match < at)
                    break;
                at += tries >> 5;
                if (at >= limit)
                    goto rest;
            }
            if (at > literal)
                to = put_literal(to, literal, at - literal, end);
            int64_t same = 4;
            while (at + same < stop && match[same] == at[same])
                same++;
            to = put_copy(to, at - match, same);
            literal = at += same;
        }
rest:
    return literal < stop ? put_literal(to, literal, stop - literal, end) : to;
}

int64_t snappy_deflate(uint16_t table[SNAPPY_TABLE], const uint8_t *p, int64_t n, uint8_t *to) {
    const uint8_t *begin = to, *end = p + n;
    for (uint64_t v = (uint64_t)n;; v >>= 7) {
        *to++ = (uint8_t)(v > 0x7f ? v | 0x80 : v);
        if (v <= 0x7f)
            break;
    }
    for (; p < end; p += FRAGMENT)
        to = put_fragment(table, p, end - p < FRAGMENT ? end - p : FRAGMENT, to, end);
    return to - begin;
}
