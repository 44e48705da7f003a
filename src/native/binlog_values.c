/* Values of the binary log of MariaDB and MySQL as JSON, for binlog.c.
 *
 * It gives the same text as connect/cdc/binlog/decoding (rows.py, decimals.py, temporal.py). A value
 * of an unexpected size or out of its range is left to the column's function in Python.
 *
 * Sources: MySQL's source documentation, "strings/decimal.cc" (decimal2bin) and
 * "sql-common/my_time.cc"; for days of the calendar, Howard Hinnant, "chrono-Compatible Low-Level
 * Date Algorithms".
 */
#include "changes.h"

#include <string.h>

static uint64_t little(const uint8_t *data, Py_ssize_t size)
{
    uint64_t value = 0;
    while (size--) value = value << 8 | data[size];
    return value;
}

static uint64_t big(const uint8_t *data, Py_ssize_t size)
{
    uint64_t value = 0;
    while (size--) value = value << 8 | *data++;
    return value;
}

/* Write a number with at least so many digits; return the place behind it. */
static char *digits(char *to, uint64_t value, int least)
{
    char reversed[24];
    int count = 0;
    do reversed[count++] = (char)('0' + value % 10);
    while (value /= 10);
    for (int zeros = least - count; zeros > 0; zeros--) *to++ = '0';
    while (count) *to++ = reversed[--count];
    return to;
}

static int put_quoted(tm_bytes *to, const char *text, const char *end)
{
    return PUT(to, "\"") < 0 || tm_put(to, text, (size_t)(end - text)) < 0 || PUT(to, "\"") < 0 ? -1 : 1;
}

/* --- numbers ------------------------------------------------------------------------------- */

static int put_integer(const Cell *cell, int is_signed, tm_bytes *to)
{
    if (cell->size < 1 || cell->size > 8) return 0;
    uint64_t value = little(cell->text, cell->size);
    if (!is_signed && value >> 63) return 0; /* a string */
    int unused = is_signed ? (int)(64 - 8 * cell->size) : 0;
    int64_t number = (int64_t)(value << unused) >> unused;
    return tm_put_number(to, number) < 0 ? -1 : 1;
}

static int put_number(PyObject *dumps, double number, tm_bytes *to)
{
    PyObject *value = PyFloat_FromDouble(number);
    if (value == NULL) return -1;
    int result = tm_put_float(dumps, value, to);
    Py_DECREF(value);
    return result < 0 ? -1 : 1;
}

/* Put a number of single precision with the fewest digits that give the same one. */
static int put_single(PyObject *dumps, const Cell *cell, tm_bytes *to)
{
    float single;
    memcpy(&single, cell->text, sizeof single);
    for (int count = 6; single - single == 0 && count < 10; count++) {
        char *text = PyOS_double_to_string(single, 'g', count, 0, NULL);
        if (text == NULL) return -1;
        double found = PyOS_string_to_double(text, NULL, NULL);
        PyMem_Free(text);
        if (found == -1.0 && PyErr_Occurred()) return -1;
        /* 2^128 - 2^103 is the least number that does not round to one of single precision. */
        if (found < 0x1.ffffffp127 && found > -0x1.ffffffp127 && (float)found == single)
            return put_number(dumps, found, to);
    }
    return put_number(dumps, single, to);
}

static int put_double(PyObject *dumps, const Cell *cell, tm_bytes *to)
{
    double number;
    memcpy(&number, cell->text, sizeof number);
    return put_number(dumps, number, to);
}

/* Put a decimal: groups of nine digits in four bytes; the first and the last group are shorter. */
static int put_decimal(const Cell *cell, int precision, int decimals, tm_bytes *to)
{
    enum { DIGITS = 9, MOST = 65, MOST_BYTES = 40 };
    static const uint8_t sizes[] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 4};
    int whole = precision - decimals;
    if (whole < 0 || precision < 1 || precision > MOST) return 0;
    Py_ssize_t size = whole / DIGITS * 4 + sizes[whole % DIGITS] + decimals / DIGITS * 4 +
                      sizes[decimals % DIGITS];
    if (cell->size != size || size > MOST_BYTES) return 0;
    uint8_t raw[MOST_BYTES];
    int is_negative = !(cell->text[0] & 0x80);
    for (Py_ssize_t i = 0; i < size; i++) raw[i] = cell->text[i] ^ (is_negative ? 0xFF : 0);
    raw[0] ^= 0x80;
    char text[160], *at = text, *start;
    const uint8_t *from = raw;
    if (is_negative) *at++ = '-';
    start = at;
    for (int left = whole; left;) {
        int count = left % DIGITS ? left % DIGITS : DIGITS;
        at = digits(at, big(from, sizes[count]), count);
        from += sizes[count];
        left -= count;
    }
    size_t zeros = 0, length = (size_t)(at - start);
    while (zeros < length && start[zeros] == '0') zeros++;
    memmove(start, start + zeros, length - zeros);
    at = start + length - zeros;
    if (at == start) *at++ = '0';
    if (decimals) *at++ = '.';
    for (int left = decimals; left;) {
        int count = left < DIGITS ? left : DIGITS;
        at = digits(at, big(from, sizes[count]), count);
        from += sizes[count];
        left -= count;
    }
    return put_quoted(to, text, at);
}

/* --- dates and times ----------------------------------------------------------------------- */

static char *write_clock(char *to, unsigned hours, unsigned minutes, unsigned seconds)
{
    to = digits(to, hours, 2);
    *to++ = ':';
    to = digits(to, minutes, 2);
    *to++ = ':';
    return digits(to, seconds, 2);
}

static char *write_date(char *to, unsigned year, unsigned month, unsigned day)
{
    to = digits(to, year, 4);
    *to++ = '-';
    to = digits(to, month, 2);
    *to++ = '-';
    return digits(to, day, 2);
}

/* Read the fraction of a second: one byte holds hundredths, two 1/10,000, three 1/1,000,000. */
static uint64_t micros_of(const uint8_t *data, Py_ssize_t size)
{
    static const unsigned units[] = {0, 10000, 100, 1};
    return big(data, size) * units[size];
}

static char *write_fraction(char *to, uint64_t micros, int decimals)
{
    if (!decimals) return to;
    *to++ = '.';
    digits(to, micros, 6);
    return to + decimals;
}

static int put_date(const Cell *cell, tm_bytes *to)
{
    if (cell->size != 3) return 0;
    unsigned value = (unsigned)little(cell->text, 3);
    char text[32];
    return put_quoted(to, text, write_date(text, value >> 9, value >> 5 & 15, value & 31));
}

/* Whether a value has `size` bytes and the fraction that the decimals need. */
static int has_fraction(const Cell *cell, Py_ssize_t size, int decimals)
{
    return decimals <= 6 && cell->size == size + (decimals + 1) / 2;
}

static int put_datetime(const Cell *cell, int decimals, tm_bytes *to)
{
    if (!has_fraction(cell, 5, decimals)) return 0;
    uint64_t value = big(cell->text, 5), offset = 0x8000000000u;
    uint64_t micros = micros_of(cell->text + 5, cell->size - 5);
    if (value < offset || micros > 999999) return 0;
    value -= offset;
    unsigned month = (unsigned)(value >> 22), rest = (unsigned)value;
    char text[48], *at = write_date(text, month / 13, month % 13, rest >> 17 & 31);
    *at++ = 'T';
    at = write_clock(at, rest >> 12 & 31, rest >> 6 & 63, rest & 63);
    return put_quoted(to, text, write_fraction(at, micros, decimals));
}

/* Write the date of a number of days since 1970. */
static char *write_day(char *to, unsigned days)
{
    unsigned shifted = days + 719468, era = shifted / 146097, in_era = shifted % 146097;
    unsigned year = (in_era - in_era / 1460 + in_era / 36524 - in_era / 146096) / 365;
    unsigned in_year = in_era - (365 * year + year / 4 - year / 100);
    unsigned march = (5 * in_year + 2) / 153, day = in_year - (153 * march + 2) / 5 + 1;
    unsigned month = march < 10 ? march + 3 : march - 9;
    return write_date(to, year + era * 400 + (month <= 2), month, day);
}

/* Put a TIMESTAMP: seconds since 1970 and the fraction. Zero is the zero date. */
static int put_seconds(const Cell *cell, int decimals, tm_bytes *to)
{
    if (!has_fraction(cell, 4, decimals)) return 0;
    unsigned seconds = (unsigned)big(cell->text, 4), clock = seconds % 86400;
    uint64_t micros = micros_of(cell->text + 4, cell->size - 4);
    if (micros > 999999) return 0;
    char text[48], *at;
    at = seconds || micros ? write_day(text, seconds / 86400) : write_date(text, 0, 0, 0);
    *at++ = 'T';
    at = write_fraction(write_clock(at, clock / 3600, clock / 60 % 60, clock % 60), micros, decimals);
    *at++ = 'Z';
    return put_quoted(to, text, at);
}

/* --- all ----------------------------------------------------------------------------------- */

int tm_put_binlog_value(PyObject *dumps, int rule, const Cell *cell, tm_bytes *to)
{
    int first = rule >> 8 & 0xFF, second = rule >> 16 & 0xFF;
    size_t size = (size_t)cell->size;
    switch (rule & 0xFF) {
    case SIGNED:
    case UNSIGNED:
        return put_integer(cell, (rule & 0xFF) == SIGNED, to);
    case SINGLE:
        return size == sizeof(float) ? put_single(dumps, cell, to) : 0;
    case DOUBLE:
        return size == sizeof(double) ? put_double(dumps, cell, to) : 0;
    case DECIMAL:
        return put_decimal(cell, first, second, to);
    case DATE:
        return put_date(cell, to);
    case DATETIME:
        return put_datetime(cell, first, to);
    case SECONDS:
        return put_seconds(cell, first, to);
    case ASCII:
        if (tm_plain_until(cell->text, size, 1) != size) return 0;
        return tm_put_text(to, cell->text, size, "strict") < 0 ? -1 : 1;
    case UTF8:
        return tm_put_text(to, cell->text, size, "backslashreplace") < 0 ? -1 : 1;
    case BYTES:
        return tm_put_base64(to, cell->text, size) < 0 ? -1 : 1;
    default:
        return 0;
    }
}
