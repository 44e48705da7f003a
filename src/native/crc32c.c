/* CRC-32C (Castagnoli), with the processor's instruction where there is one.
 *
 * Source: RFC 3720, appendix B.4; the slicing-by-8 method of Kounavis and Berry.
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

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const uint8_t *p,
                                                                 size_t size)
{
    uint64_t wide = crc;
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; size; p++, size--) crc = __builtin_ia32_crc32qi(crc, *p);
    return crc;
}
static int has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static uint32_t by_instruction(uint32_t crc, const uint8_t *p, size_t size)
{
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        crc = __crc32cd(crc, word);
    }
    for (; size; p++, size--) crc = __crc32cb(crc, *p);
    return crc;
}
static int has_instruction(void) { return 1; }
#else
#define by_instruction by_tables
static int has_instruction(void) { return 0; }
#endif

uint32_t tm_crc32c(const uint8_t *data, size_t size) { return tm_crc32c_more(0, data, size); }

uint32_t tm_crc32c_more(uint32_t crc, const uint8_t *data, size_t size)
{
    static int method; /* 0 before the first use, 1 tables, 2 the instruction */
    if (!method) {
        fill_tables();
        method = has_instruction() ? 2 : 1;
    }
    crc = method == 2 ? by_instruction(~crc, data, size) : by_tables(~crc, data, size);
    return ~crc;
}

PyObject *tm_py_crc32c(PyObject *module, PyObject *arg)
{
    Py_buffer view;
    if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE) < 0) return NULL;
    uint32_t crc = tm_crc32c(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}
