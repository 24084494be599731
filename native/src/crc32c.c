/* CRC-32C, which Kafka's batches carry: by the processor's instruction where it has one, else by a table. */
#include "batch.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define BY_PROCESSOR __attribute__((target("sse4.2")))
static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#define CRC_WORD(crc, word) _mm_crc32_u64(crc, word)
#define CRC_BYTE(crc, byte) _mm_crc32_u8((uint32_t)(crc), byte)
#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__))
#include <arm_acle.h>
#define BY_PROCESSOR __attribute__((target("+crc")))
#ifdef __linux__
#include <sys/auxv.h>
static int has_instruction(void) { return (getauxval(AT_HWCAP) & 1 << 7) != 0; } /* HWCAP_CRC32 */
#else
static int has_instruction(void) { return 1; } /* each Mac has it */
#endif
#define CRC_WORD(crc, word) __crc32cd((uint32_t)(crc), word)
#define CRC_BYTE(crc, byte) __crc32cb((uint32_t)(crc), byte)
#endif

enum { POLYNOMIAL = 0x82f63b78 }; /* its bits reversed */
enum { LONG = 8192, SHORT = 256 };
typedef uint32_t Table[4][256];
static uint32_t by_byte[8][256];
static Table after_long, after_short; /* what so many zero bytes change */

static uint32_t times(const uint32_t *matrix, uint32_t vector) {
    uint32_t sum = 0;
    for (; vector; vector >>= 1, matrix++)
        if (vector & 1)
            sum ^= *matrix;
    return sum;
}

/* Fills the table for a number of zero bytes that is a power of two (after Mark Adler's crc32c.c). */
static void zeros(Table table, uint32_t bytes) {
    uint32_t matrix[32] = {POLYNOMIAL}, square[32]; /* of one zero bit */
    for (int n = 1; n < 32; n++)
        matrix[n] = 1u << (n - 1);
    for (uint32_t bits = 1; bits < bytes * 8; bits *= 2) {
        for (int n = 0; n < 32; n++)
            square[n] = times(matrix, matrix[n]);
        memcpy(matrix, square, sizeof matrix);
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int byte = 0; byte < 4; byte++)
            table[byte][n] = times(matrix, n << (8 * byte));
}

static inline uint64_t word_at(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static uint32_t by_table(uint32_t crc, const uint8_t *p, int64_t n) {
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v = word_at(p) ^ crc;
        crc = 0;
        for (int byte = 0; byte < 8; byte++)
            crc ^= by_byte[7 - byte][v >> (8 * byte) & 255];
    }
    for (; n; n--)
        crc = by_byte[0][(crc ^ *p++) & 255] ^ crc >> 8;
    return crc;
}

#ifdef BY_PROCESSOR
static inline uint64_t shifted(const Table table, uint64_t crc) {
    return table[0][crc & 255] ^ table[1][crc >> 8 & 255] ^ table[2][crc >> 16 & 255] ^ table[3][crc >> 24 & 255];
}

/* The instruction takes three cycles and one can begin in each, so three streams run side by side. */
#define THREE(SIZE, TABLE)                                                                                             \
    for (; n >= 3 * SIZE; p += 2 * SIZE, n -= 3 * SIZE) {                                                              \
        uint64_t second = 0, third = 0;                                                                                \
        for (const uint8_t *end = p + SIZE; p < end; p += 8) {                                                         \
            crc = CRC_WORD(crc, word_at(p));                                                                           \
            second = CRC_WORD(second, word_at(p + SIZE));                                                              \
            third = CRC_WORD(third, word_at(p + 2 * SIZE));                                                            \
        }                                                                                                              \
        crc = shifted(TABLE, shifted(TABLE, crc) ^ second) ^ third;                                                    \
    }
BY_PROCESSOR static uint32_t by_processor(uint32_t from, const uint8_t *p, int64_t n) {
    uint64_t crc = from;
    THREE(LONG, after_long)
    THREE(SHORT, after_short)
    for (; n >= 8; n -= 8, p += 8)
        crc = CRC_WORD(crc, word_at(p));
    for (; n; n--)
        crc = CRC_BYTE(crc, *p++);
    return (uint32_t)crc;
}
#else
#define by_processor by_table
static int has_instruction(void) { return 0; }
#endif

static uint32_t (*way)(uint32_t, const uint8_t *, int64_t) = by_table;

__attribute__((constructor)) static void prepare(void) {
    zeros(after_long, LONG);
    zeros(after_short, SHORT);
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? (uint32_t)POLYNOMIAL : 0);
        by_byte[0][n] = crc;
    }
    for (int byte = 1; byte < 8; byte++)
        for (uint32_t n = 0; n < 256; n++)
            by_byte[byte][n] = by_byte[0][by_byte[byte - 1][n] & 255] ^ by_byte[byte - 1][n] >> 8;
    if (has_instruction())
        way = by_processor;
}

uint32_t crc32c(const uint8_t *p, int64_t n) { return ~way(~0u, p, n); }
EXPORT uint32_t onceward_crc32c(const uint8_t *p, int64_t n, int without_instruction) {
    return without_instruction ? ~by_table(~0u, p, n) : crc32c(p, n);
}
EXPORT int onceward_has_crc_instruction(void) { return way != by_table; }
