/* CRC-32C (Castagnoli), with the processor's instruction where there is one.
 *
 * Sources: RFC 3720, appendix B.4; the slicing-by-8 method of Kounavis and Berry. The instruction has
 * a latency of three cycles, so three blocks are computed side by side, and then put together: the CRC
 * is linear, so the CRC of a block that is followed by n bytes is found by appending n zeros to it.
 */
#include "native.h"

#include <string.h>

static uint32_t tables[8][256];

static void fill_tables(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
        tables[0][i] = crc;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++)
            tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xff];
}

static uint32_t by_tables(uint32_t crc, const uint8_t *p, size_t size)
{
    for (; size >= 8; p += 8, size -= 8) {
        uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                              (uint32_t)p[3] << 24);
        crc = tables[7][low & 0xff] ^ tables[6][(low >> 8) & 0xff] ^ tables[5][(low >> 16) & 0xff] ^
              tables[4][low >> 24] ^ tables[3][p[4]] ^ tables[2][p[5]] ^ tables[1][p[6]] ^
              tables[0][p[7]];
    }
    for (; size; p++, size--) crc = (crc >> 8) ^ tables[0][(crc ^ *p) & 0xff];
    return crc;
}

/* --- the instruction -------------------------------------------------------------------------- */

#if defined(__x86_64__)
#define WITH_INSTRUCTION __attribute__((target("sse4.2")))
#define STEP_8(crc, word) __builtin_ia32_crc32di(crc, word)
#define STEP_1(crc, byte) __builtin_ia32_crc32qi(crc, byte)
static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define WITH_INSTRUCTION
#define STEP_8(crc, word) __crc32cd((uint32_t)(crc), word)
#define STEP_1(crc, byte) __crc32cb(crc, byte)
static int has_instruction(void) { return 1; }
#endif

#ifdef WITH_INSTRUCTION
#define LARGE 4096
#define SMALL 256

typedef struct {
    uint32_t of_byte[4][256];
} Zeros; /* appends a number of zeros to a CRC */

static Zeros large_zeros, small_zeros;

static void fill_zeros(Zeros *to, size_t count)
{
    static const uint8_t zeros[LARGE];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t shifted = by_tables((uint32_t)1 << bit, zeros, count);
        for (uint32_t byte = 0; byte < 256; byte++)
            if (byte >> (bit % 8) & 1) to->of_byte[bit / 8][byte] ^= shifted;
    }
}

static uint32_t append_zeros(const Zeros *by, uint32_t crc)
{
    return by->of_byte[0][crc & 0xff] ^ by->of_byte[1][crc >> 8 & 0xff] ^
           by->of_byte[2][crc >> 16 & 0xff] ^ by->of_byte[3][crc >> 24];
}

static uint64_t word_at(const uint8_t *p)
{
    uint64_t word;
    memcpy(&word, p, 8);
    return word;
}

/* Return the CRC of three blocks of `block` bytes, which is a multiple of 8. */
WITH_INSTRUCTION static inline uint32_t three_blocks(uint32_t crc, const uint8_t *p, size_t block,
                                                     const Zeros *by)
{
    uint64_t first = crc, second = 0, third = 0;
    for (const uint8_t *end = p + block; p < end; p += 8) {
        first = STEP_8(first, word_at(p));
        second = STEP_8(second, word_at(p + block));
        third = STEP_8(third, word_at(p + 2 * block));
    }
    uint32_t two = append_zeros(by, (uint32_t)first) ^ (uint32_t)second;
    return append_zeros(by, two) ^ (uint32_t)third;
}

WITH_INSTRUCTION static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t size)
{
    for (; size >= 3 * LARGE; p += 3 * LARGE, size -= 3 * LARGE)
        crc = three_blocks(crc, p, LARGE, &large_zeros);
    for (; size >= 3 * SMALL; p += 3 * SMALL, size -= 3 * SMALL)
        crc = three_blocks(crc, p, SMALL, &small_zeros);
    uint64_t wide = crc;
    for (; size >= 8; p += 8, size -= 8) wide = STEP_8(wide, word_at(p));
    crc = (uint32_t)wide;
    for (; size; p++, size--) crc = STEP_1(crc, *p);
    return crc;
}
#endif

/* --- for the others --------------------------------------------------------------------------- */

static uint32_t (*method)(uint32_t crc, const uint8_t *p, size_t size);

/* Choose the method. Called once, before any thread. */
void tm_prepare_crc32c(void)
{
    if (method) return;
    fill_tables();
    method = by_tables;
#ifdef WITH_INSTRUCTION
    if (!has_instruction()) return;
    fill_zeros(&large_zeros, LARGE);
    fill_zeros(&small_zeros, SMALL);
    method = by_instruction;
#endif
}

uint32_t tm_crc32c(const uint8_t *data, size_t size) { return ~method(~(uint32_t)0, data, size); }
