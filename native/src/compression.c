#include "compression.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

/* ---- the machine's libraries ----
 * Declared here, so that the library is built without their headers, and works with what it was built without. These
 * functions and structures have not changed within the libraries' major versions, which the files' names hold. */

typedef struct {
    const uint8_t *next_in;
    unsigned avail_in;
    unsigned long total_in;
    uint8_t *next_out;
    unsigned avail_out;
    unsigned long total_out;
    const char *msg;
    void *state, *alloc, *free, *opaque;
    int data_type;
    unsigned long adler, reserved;
} GzipStream; /* z_stream of zlib.h */
enum { Z_OK = 0, Z_STREAM_END = 1, Z_BUF_ERROR = -5, Z_NO_FLUSH = 0, Z_FINISH = 4, Z_DEFLATED = 8 };
enum { GZIP_WINDOW = 15 + 16 }; /* the largest, with gzip's header */

typedef struct {
    const uint8_t *src;
    size_t size, pos;
} ZstdIn; /* ZSTD_inBuffer of zstd.h */
typedef struct {
    uint8_t *dst;
    size_t size, pos;
} ZstdOut; /* ZSTD_outBuffer */
enum { ZSTD_RESET_SESSION = 1 };

typedef struct {
    int block_size, independent_blocks, content_checksum, frame_type;
    unsigned long long content_size;
    unsigned dictionary;
    int block_checksum;
    int level;
    unsigned auto_flush, favour_decompression, reserved[3];
} Lz4Preferences; /* LZ4F_preferences_t of lz4frame.h */
enum { LZ4_64KB = 4, LZ4_VERSION = 100 };

static struct {
    int (*inflateInit2_)(GzipStream *, int, const char *, int);
    int (*inflate)(GzipStream *, int);
    int (*inflateReset)(GzipStream *);
    int (*inflateEnd)(GzipStream *);
    int (*deflateInit2_)(GzipStream *, int, int, int, int, int, const char *, int);
    int (*deflate)(GzipStream *, int);
    int (*deflateReset)(GzipStream *);
    int (*deflateEnd)(GzipStream *);
    unsigned long (*deflateBound)(GzipStream *, unsigned long);
} zlib;
static struct {
    unsigned (*LZ4F_isError)(size_t);
    size_t (*LZ4F_createDecompressionContext)(void **, unsigned);
    size_t (*LZ4F_freeDecompressionContext)(void *);
    void (*LZ4F_resetDecompressionContext)(void *);
    size_t (*LZ4F_decompress)(void *, void *, size_t *, const void *, size_t *, const void *);
    size_t (*LZ4F_compressFrameBound)(size_t, const Lz4Preferences *);
    size_t (*LZ4F_compressFrame)(void *, size_t, const void *, size_t, const Lz4Preferences *);
} lz4;
static struct {
    unsigned (*ZSTD_isError)(size_t);
    void *(*ZSTD_createDCtx)(void);
    size_t (*ZSTD_freeDCtx)(void *);
    size_t (*ZSTD_DCtx_reset)(void *, int);
    size_t (*ZSTD_decompressStream)(void *, ZstdOut *, ZstdIn *);
    void *(*ZSTD_createCCtx)(void);
    size_t (*ZSTD_freeCCtx)(void *);
    size_t (*ZSTD_compressBound)(size_t);
    size_t (*ZSTD_compressCCtx)(void *, void *, size_t, const void *, size_t, int);
} zstd;

static const struct {
    const char *files[2]; /* Linux, macOS */
    void *functions;      /* pointers, in the order of the names */
    const char *names[10];
} libraries[CODECS] = {
    [GZIP] = {{"libz.so.1", "libz.1.dylib"},
              &zlib,
              {"inflateInit2_", "inflate", "inflateReset", "inflateEnd", "deflateInit2_", "deflate", "deflateReset",
               "deflateEnd", "deflateBound"}},
    [LZ4] = {{"liblz4.so.1", "liblz4.1.dylib"},
             &lz4,
             {"LZ4F_isError", "LZ4F_createDecompressionContext", "LZ4F_freeDecompressionContext",
              "LZ4F_resetDecompressionContext", "LZ4F_decompress", "LZ4F_compressFrameBound", "LZ4F_compressFrame"}},
    [ZSTD] = {{"libzstd.so.1", "libzstd.1.dylib"},
              &zstd,
              {"ZSTD_isError", "ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_DCtx_reset", "ZSTD_decompressStream",
               "ZSTD_createCCtx", "ZSTD_freeCCtx", "ZSTD_compressBound", "ZSTD_compressCCtx"}},
};
static int found[CODECS] = {[NONE] = 1, [SNAPPY] = 1};

static void load(int codec) {
    void *library = dlopen(libraries[codec].files[0], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        library = dlopen(libraries[codec].files[1], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    void **functions = libraries[codec].functions;
    for (int i = 0; libraries[codec].names[i]; i++)
        if (!(functions[i] = dlsym(library, libraries[codec].names[i])))
            return;
    found[codec] = 1;
}
static void load_all(void) {
    load(GZIP);
    load(LZ4);
    load(ZSTD);
}
int has_codec(int codec) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load_all);
    return found[codec];
}
EXPORT int onceward_has_codec(int codec) { return codec >= 0 && codec < CODECS && has_codec(codec); }

/* ---- decompression: each codec's step takes what it can, and says by ENDED that a frame ends ---- */

enum { MORE = 0, ENDED = 1, STEP = 1 << 16 };
typedef int Step(void *context, uint8_t *to, size_t *to_size, const uint8_t *from, size_t *from_size);

static int step_gzip(void *context, uint8_t *to, size_t *to_size, const uint8_t *from, size_t *from_size) {
    GzipStream *stream = context;
    stream->next_in = from;
    stream->avail_in = (unsigned)*from_size;
    stream->next_out = to;
    stream->avail_out = (unsigned)*to_size;
    int state = zlib.inflate(stream, Z_NO_FLUSH);
    *from_size -= stream->avail_in;
    *to_size -= stream->avail_out;
    if (state == Z_STREAM_END)
        return zlib.inflateReset(stream) == Z_OK ? ENDED : WRONG_COMPRESSION;
    return state == Z_OK || state == Z_BUF_ERROR ? MORE : WRONG_COMPRESSION;
}
static int step_lz4(void *context, uint8_t *to, size_t *to_size, const uint8_t *from, size_t *from_size) {
    size_t left = lz4.LZ4F_decompress(context, to, to_size, from, from_size, NULL);
    return lz4.LZ4F_isError(left) ? WRONG_COMPRESSION : left ? MORE : ENDED;
}
static int step_zstd(void *context, uint8_t *to, size_t *to_size, const uint8_t *from, size_t *from_size) {
    ZstdIn in = {from, *from_size, 0};
    ZstdOut out = {to, *to_size, 0};
    size_t left = zstd.ZSTD_decompressStream(context, &out, &in);
    *from_size = in.pos;
    *to_size = out.pos;
    return zstd.ZSTD_isError(left) ? WRONG_COMPRESSION : left ? MORE : ENDED;
}

static int64_t inflate_by(Step *step, void *context, const uint8_t *p, int64_t n, Memory *out, int64_t most) {
    if (!context)
        return NO_MEMORY;
    for (int64_t used = 0;;) {
        if (grow(out, used + STEP))
            return NO_MEMORY;
        int64_t space = out->size - SLACK - used;
        if (space > most + 1 - used)
            space = most + 1 - used;
        size_t to = (size_t)space, from = (size_t)n;
        int state = step(context, out->p + used, &to, p, &from);
        used += (int64_t)to;
        p += from;
        n -= (int64_t)from;
        if (state < 0)
            return state;
        if (used > most)
            return TOO_LARGE;
        if (state == ENDED && !n)
            return used;
        if (!to && !from) /* cut off */
            return WRONG_COMPRESSION;
    }
}

static void *context_of(Inflater *inflater, int codec) {
    switch (codec) {
    case GZIP:
        if (inflater->gzip) {
            zlib.inflateReset(inflater->gzip);
        } else if ((inflater->gzip = calloc(1, sizeof(GzipStream))) &&
                   zlib.inflateInit2_(inflater->gzip, GZIP_WINDOW, "1", sizeof(GzipStream)) != Z_OK) {
            free(inflater->gzip);
            inflater->gzip = NULL;
        }
        return inflater->gzip;
    case LZ4:
        if (inflater->lz4)
            lz4.LZ4F_resetDecompressionContext(inflater->lz4);
        else if (lz4.LZ4F_isError(lz4.LZ4F_createDecompressionContext(&inflater->lz4, LZ4_VERSION)))
            inflater->lz4 = NULL;
        return inflater->lz4;
    default:
        if (inflater->zstd)
            zstd.ZSTD_DCtx_reset(inflater->zstd, ZSTD_RESET_SESSION);
        else
            inflater->zstd = zstd.ZSTD_createDCtx();
        return inflater->zstd;
    }
}

int64_t inflate_batch(Inflater *inflater, int codec, const uint8_t *p, int64_t n, Memory *out, int64_t most) {
    if (codec >= CODECS)
        return UNKNOWN_CODEC;
    if (codec == SNAPPY)
        return snappy_inflate(p, n, out, most);
    if (!has_codec(codec))
        return NO_LIBRARY;
    static Step *const steps[CODECS] = {[GZIP] = step_gzip, [LZ4] = step_lz4, [ZSTD] = step_zstd};
    return inflate_by(steps[codec], context_of(inflater, codec), p, n, out, most);
}

void inflater_free(Inflater *inflater) {
    if (inflater->gzip)
        zlib.inflateEnd(inflater->gzip);
    free(inflater->gzip);
    if (inflater->lz4)
        lz4.LZ4F_freeDecompressionContext(inflater->lz4);
    if (inflater->zstd)
        zstd.ZSTD_freeDCtx(inflater->zstd);
}

/* ---- compression: of a whole batch at once ---- */

static int64_t deflate_gzip(Deflater *deflater, int level, const uint8_t *p, int64_t n, Memory *out, int64_t at) {
    if (level == DEFAULT_LEVEL)
        level = -1;
    GzipStream *stream = deflater->gzip;
    if (!stream) {
        if (!(stream = calloc(1, sizeof *stream)))
            return NO_MEMORY;
        if (zlib.deflateInit2_(stream, level, Z_DEFLATED, GZIP_WINDOW, 8, 0, "1", sizeof *stream) != Z_OK) {
            free(stream);
            return NO_MEMORY;
        }
        deflater->gzip = stream;
    }
    int64_t bound = (int64_t)zlib.deflateBound(stream, (unsigned long)n);
    if (grow(out, at + bound))
        return NO_MEMORY;
    stream->next_in = p;
    stream->avail_in = (unsigned)n;
    stream->next_out = out->p + at;
    stream->avail_out = (unsigned)bound;
    int state = zlib.deflate(stream, Z_FINISH);
    int64_t size = bound - stream->avail_out;
    zlib.deflateReset(stream);
    return state == Z_STREAM_END ? size : WRONG_COMPRESSION;
}
static int64_t deflate_lz4(int level, const uint8_t *p, int64_t n, Memory *out, int64_t at) {
    /* as Java's producers do; Kafka's own reader of lz4 knows no dependent blocks */
    const Lz4Preferences preferences = {.block_size = LZ4_64KB,
                                        .independent_blocks = 1,
                                        .level = level == DEFAULT_LEVEL ? 0 : level};
    size_t bound = lz4.LZ4F_compressFrameBound((size_t)n, &preferences);
    if (grow(out, at + (int64_t)bound))
        return NO_MEMORY;
    size_t size = lz4.LZ4F_compressFrame(out->p + at, bound, p, (size_t)n, &preferences);
    return lz4.LZ4F_isError(size) ? WRONG_COMPRESSION : (int64_t)size;
}
static int64_t deflate_zstd(Deflater *deflater, int level, const uint8_t *p, int64_t n, Memory *out, int64_t at) {
    if (!deflater->zstd && !(deflater->zstd = zstd.ZSTD_createCCtx()))
        return NO_MEMORY;
    size_t bound = zstd.ZSTD_compressBound((size_t)n);
    if (grow(out, at + (int64_t)bound))
        return NO_MEMORY;
    size_t size =
        zstd.ZSTD_compressCCtx(deflater->zstd, out->p + at, bound, p, (size_t)n, level == DEFAULT_LEVEL ? 0 : level);
    return zstd.ZSTD_isError(size) ? WRONG_COMPRESSION : (int64_t)size;
}

int64_t deflate_batch(Deflater *deflater, int codec, int level, const uint8_t *p, int64_t n, Memory *out, int64_t at) {
    if (codec != SNAPPY && !has_codec(codec))
        return NO_LIBRARY;
    switch (codec) {
    case GZIP: return deflate_gzip(deflater, level, p, n, out, at);
    case LZ4: return deflate_lz4(level, p, n, out, at);
    case ZSTD: return deflate_zstd(deflater, level, p, n, out, at);
    default:
        if (!deflater->snappy && !(deflater->snappy = malloc(SNAPPY_TABLE * sizeof *deflater->snappy)))
            return NO_MEMORY;
        if (grow(out, at + snappy_bound(n)))
            return NO_MEMORY;
        return snappy_deflate(deflater->snappy, p, n, out->p + at);
    }
}

void deflater_free(Deflater *deflater) {
    if (deflater->gzip)
        zlib.deflateEnd(deflater->gzip);
    free(deflater->gzip);
    if (deflater->zstd)
        zstd.ZSTD_freeCCtx(deflater->zstd);
    free(deflater->snappy);
}
