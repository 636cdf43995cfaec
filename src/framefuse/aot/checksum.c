/* The CRC-32 of zlib: by products without carries where the processor has them, else by tables. */

enum { PIECE = 64 }; /* bytes */
typedef struct { uint32_t of[8][256]; } crc_tables; /* of a byte with 0 to 7 zeros behind it */

static void make_tables(crc_tables *tables)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t sum = byte;
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? UINT32_C(0xedb88320) : 0);
        tables->of[0][byte] = sum;
    }
    for (int zeros = 1; zeros < 8; zeros++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t sum = tables->of[zeros - 1][byte];
            tables->of[zeros][byte] = sum >> 8 ^ tables->of[0][sum & 255];
        }
}

static uint32_t by_tables(const crc_tables *tables, uint32_t sum, const unsigned char *data, size_t count)
{
    for (; count >= 8; count -= 8, data += 8) {
        sum ^= data[0] | data[1] << 8 | data[2] << 16 | (uint32_t)data[3] << 24;
        uint32_t behind = 0;
        for (int k = 0; k < 4; k++)
            behind ^= tables->of[7 - k][sum >> 8 * k & 255] ^ tables->of[3 - k][data[4 + k]];
        sum = behind;
    }
    for (; count > 0; count--)
        sum = sum >> 8 ^ tables->of[0][(sum ^ *data++) & 255];
    return sum;
}

#if defined(__PCLMUL__) && defined(__SSE4_1__)
#include <immintrin.h>

static inline __m128i folded(__m128i one, __m128i by, __m128i onto)
{
    return _mm_xor_si128(onto, _mm_xor_si128(_mm_clmulepi64_si128(one, by, 0x00), _mm_clmulepi64_si128(one, by, 0x11)));
}

/* Whole pieces, each folded onto the next one: 16 bytes are left that have the remainder of all. */
static uint32_t by_pieces(const crc_tables *tables, uint32_t sum, const unsigned char *data, size_t count)
{
    const __m128i far = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), near = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i *from = (const __m128i *)data;
    __m128i rest[4];
    unsigned char last[16];
    for (int k = 0; k < 4; k++)
        rest[k] = _mm_loadu_si128(from + k);
    rest[0] = _mm_xor_si128(rest[0], _mm_cvtsi32_si128((int)sum));
    for (from += 4, count -= PIECE; count > 0; from += 4, count -= PIECE)
        for (int k = 0; k < 4; k++)
            rest[k] = folded(rest[k], far, _mm_loadu_si128(from + k));
    for (int k = 1; k < 4; k++)
        rest[k] = folded(rest[k - 1], near, rest[k]);
    _mm_storeu_si128((__m128i *)last, rest[3]);
    return by_tables(tables, 0, last, sizeof last);
}
#else
#define by_pieces by_tables
#endif

static uint32_t checksum(const void *bytes, size_t count)
{
    crc_tables tables;
    make_tables(&tables);
    const unsigned char *data = bytes;
    uint32_t sum = UINT32_MAX;
    size_t pieces = count / PIECE * PIECE;
    if (pieces > 0)
        sum = by_pieces(&tables, sum, data, pieces);
    return ~by_tables(&tables, sum, data + pieces, count - pieces);
}
