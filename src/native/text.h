/* Appends bytes, numbers and JSON strings to a buffer, as orjson writes them. Functions return -1 with an
 * error.
 *
 * They are inline: with a call for each value, a row takes about 5 % longer.
 */
#ifndef TIDEMILL_TEXT_H
#define TIDEMILL_TEXT_H

#include "native.h"

/* --- bytes --------------------------------------------------------------------------------- */

#define PUT(to, text) tm_put(to, text, sizeof(text) - 1)

static inline int tm_put_digits(tm_bytes *to, unsigned long long number, int is_negative)
{
    char digits[24], *p = digits + sizeof digits;
    do *--p = (char)('0' + number % 10);
    while (number /= 10);
    if (is_negative) *--p = '-';
    return tm_put(to, p, (size_t)(digits + sizeof digits - p));
}

static inline int tm_put_number(tm_bytes *to, long long number)
{
    unsigned long long size = (unsigned long long)number;
    return tm_put_digits(to, number < 0 ? 0 - size : size, number < 0);
}

static inline int tm_put_object_bytes(tm_bytes *to, PyObject *from)
{
    char *data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(from, &data, &size) < 0) return -1;
    return tm_put(to, data, (size_t)size);
}

/* --- strings ------------------------------------------------------------------------------- */

/* Return the place of the first byte that a JSON string can't have, or that is not ASCII if `ascii`. */
static inline size_t tm_plain_until(const uint8_t *data, size_t size, int ascii)
{
    size_t i = 0;
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    for (; i + 8 <= size; i += 8) {
        uint64_t w, quote, slash;
        memcpy(&w, data + i, 8);
        quote = w ^ ones * '"';
        slash = w ^ ones * '\\';
        uint64_t odd = ((w - ones * 0x20) & ~w) | ((quote - ones) & ~quote) | ((slash - ones) & ~slash);
        if (ascii) odd |= w;
        if (odd & tops) break;
    }
    for (; i < size; i++)
        if (data[i] < 0x20 || data[i] == '"' || data[i] == '\\' || (ascii && data[i] >= 0x80)) break;
    return i;
}

/* Put valid UTF-8 as a JSON string, as orjson does. */
static inline int put_string(tm_bytes *to, const uint8_t *data, size_t size)
{
    static const char hex[] = "0123456789abcdef";
    if (PUT(to, "\"") < 0) return -1;
    while (size) {
        size_t some = tm_plain_until(data, size, 0);
        if (tm_put(to, data, some) < 0) return -1;
        data += some;
        size -= some;
        if (!size) break;
        char escape[6] = {'\\', 'u', '0', '0', hex[*data >> 4], hex[*data & 15]};
        static const char letters[] = "btn?fr"; /* of 8 to 13 */
        size_t length = 6;
        if (*data == '"' || *data == '\\') escape[1] = (char)*data, length = 2;
        else if (*data >= 8 && *data <= 13 && *data != 11) escape[1] = letters[*data - 8], length = 2;
        if (tm_put(to, escape, length) < 0) return -1;
        data++;
        size--;
    }
    return PUT(to, "\"");
}

static inline int tm_put_unicode(tm_bytes *to, PyObject *text)
{
    Py_ssize_t size;
    const char *data = PyUnicode_AsUTF8AndSize(text, &size);
    return data == NULL ? -1 : put_string(to, (const uint8_t *)data, (size_t)size);
}

/* Put bytes as a JSON string. `errors` says what happens if they are not UTF-8, as in Python. */
static inline int tm_put_text(tm_bytes *to, const uint8_t *data, size_t size, const char *errors)
{
    if (tm_plain_until(data, size, 1) == size) {
        if (tm_reserve(to, size + 2) < 0) return -1;
        uint8_t *p = to->data + to->size;
        *p++ = '"';
        memcpy(p, data, size);
        p[size] = '"';
        to->size += size + 2;
        return 0;
    }
    PyObject *text = PyUnicode_DecodeUTF8((const char *)data, (Py_ssize_t)size, errors);
    if (text == NULL) return -1;
    int result = tm_put_unicode(to, text);
    Py_DECREF(text);
    return result;
}

static inline int tm_put_base64(tm_bytes *to, const uint8_t *data, size_t size)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    if (tm_reserve(to, (size / 3 + 1) * 4 + 2) < 0) return -1;
    uint8_t *p = to->data + to->size;
    *p++ = '"';
    for (; size >= 3; data += 3, size -= 3) {
        uint32_t n = (uint32_t)data[0] << 16 | (uint32_t)data[1] << 8 | data[2];
        *p++ = (uint8_t)letters[n >> 18];
        *p++ = (uint8_t)letters[n >> 12 & 63];
        *p++ = (uint8_t)letters[n >> 6 & 63];
        *p++ = (uint8_t)letters[n & 63];
    }
    if (size) {
        uint32_t n = (uint32_t)data[0] << 16 | (size == 2 ? (uint32_t)data[1] << 8 : 0);
        *p++ = (uint8_t)letters[n >> 18];
        *p++ = (uint8_t)letters[n >> 12 & 63];
        *p++ = size == 2 ? (uint8_t)letters[n >> 6 & 63] : '=';
        *p++ = '=';
    }
    *p++ = '"';
    to->size = (size_t)(p - to->data);
    return 0;
}

/* --- objects ------------------------------------------------------------------------------- */

/* Put what `dumps` returns for an object. */
static inline int tm_put_dumped(PyObject *dumps, PyObject *value, tm_bytes *to)
{
    PyObject *text = PyObject_CallFunctionObjArgs(dumps, value, NULL);
    if (text == NULL) return -1;
    int result = tm_put_object_bytes(to, text);
    Py_DECREF(text);
    return result;
}

static inline int tm_put_float(PyObject *dumps, PyObject *value, tm_bytes *to)
{
    double number = PyFloat_AsDouble(value);
    if (number != number) return PUT(to, "\"NaN\"");
    if (number - number != 0) return number > 0 ? PUT(to, "\"Infinity\"") : PUT(to, "\"-Infinity\"");
    return tm_put_dumped(dumps, value, to);
}

#endif
