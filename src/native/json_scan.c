/* The syntax of JSON (RFC 8259): strings, numbers, and where a value ends. Knows no columns. */
#include "json.h"
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Return the length of the UTF-8 sequence at a position; 0 if it is invalid. */
static int sequence(const uint8_t *at, const uint8_t *end) {
    ptrdiff_t left = end - at;
    uint8_t a = at[0];
    if (a < 0x80) return 1;
    if (a < 0xC2 || left < 2 || (at[1] & 0xC0) != 0x80) return 0;
    if (a < 0xE0) return 2;
    if (left < 3 || (at[2] & 0xC0) != 0x80) return 0;
    if (a < 0xF0) {
        if (a == 0xE0 && at[1] < 0xA0) return 0;  /* could be shorter */
        if (a == 0xED && at[1] >= 0xA0) return 0; /* a surrogate */
        return 3;
    }
    if (a > 0xF4 || left < 4 || (at[3] & 0xC0) != 0x80) return 0;
    if (a == 0xF0 && at[1] < 0x90) return 0;
    if (a == 0xF4 && at[1] >= 0x90) return 0; /* behind U+10FFFF */
    return 4;
}

bool json_is_utf8(const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        int length = sequence(at, end);
        if (length == 0) return false;
        at += length;
    }
    return true;
}

/* Return the end of the plain ASCII at a position: the next quote, backslash, control character,
 * byte from 0x80 on, or the end. Copies it to out, which may be overwritten for 16 bytes more. */
static inline const uint8_t *plain(json_scan *scan, const uint8_t *at, uint8_t *out) {
    const uint8_t *end = scan->end;
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\');
    const __m128i space = _mm_set1_epi8(0x20);
    while (at < end && scan->data_end - at >= 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)at);
        if (out) {
            _mm_storeu_si128((__m128i *)out, bytes);
            out += 16;
        }
        /* Compared as signed numbers, bytes from 0x80 on are less than a space, too. */
        __m128i stop = _mm_or_si128(_mm_cmplt_epi8(bytes, space),
                                    _mm_or_si128(_mm_cmpeq_epi8(bytes, quote),
                                                 _mm_cmpeq_epi8(bytes, slash)));
        unsigned mask = (unsigned)_mm_movemask_epi8(stop);
        if (mask) {
            at += __builtin_ctz(mask);
            return at < end ? at : end;
        }
        at += 16;
    }
    if (at > end) return end;
#else
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    while (end - at >= 8) {
        uint64_t bytes, quotes, slashes;
        memcpy(&bytes, at, 8);
        quotes = bytes ^ ones * '"';
        slashes = bytes ^ ones * '\\';
        if ((((bytes - ones * 0x20) | (quotes - ones) | (slashes - ones)) | bytes) & highs) break;
        if (out) {
            memcpy(out, &bytes, 8);
            out += 8;
        }
        at += 8;
    }
#endif
    while (at < end && *at >= 0x20 && *at < 0x80 && *at != '"' && *at != '\\') {
        if (out) *out++ = *at;
        at++;
    }
    return at;
}

static int hex4(const uint8_t *at) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value << 4 | digit;
    }
    return value;
}

/* Read the escape at a position, which has a backslash. Returns its end, or NULL. */
static const uint8_t *escape(json_scan *scan, const uint8_t *at, uint32_t *code) {
    static const char letters[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
    const uint8_t *end = scan->end;
    if (end - at < 2) return NULL;
    if (at[1] != 'u') {
        const char *found = at[1] ? strchr(letters, at[1]) : NULL;
        if (!found) return NULL;
        *code = (uint8_t)means[found - letters];
        return at + 2;
    }
    if (end - at < 6) return NULL;
    int high = hex4(at + 2);
    if (high < 0 || (high >= 0xDC00 && high < 0xE000)) return NULL;
    at += 6;
    if (high < 0xD800 || high >= 0xE000) {
        *code = (uint32_t)high;
        return at;
    }
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u') return NULL;
    int low = hex4(at + 2);
    if (low < 0xDC00 || low >= 0xE000) return NULL;
    *code = 0x10000u + ((uint32_t)(high - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
    return at + 6;
}

static uint8_t *encode(uint32_t code, uint8_t *out) {
    if (code < 0x80) {
        *out++ = (uint8_t)code;
    } else if (code < 0x800) {
        *out++ = (uint8_t)(0xC0 | code >> 6);
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *out++ = (uint8_t)(0xE0 | code >> 12);
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        *out++ = (uint8_t)(0xF0 | code >> 18);
        *out++ = (uint8_t)(0x80 | (code >> 12 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return out;
}

/* Read a string, which begins with a quote. The text goes to out, if that is not NULL: it is never
 * longer than the string, and 16 bytes behind it may be overwritten. */
static inline json_status string(json_scan *scan, const uint8_t **position, uint8_t **out) {
    const uint8_t *at = *position, *end = scan->end;
    uint8_t *text = out ? *out : NULL;
    if (at >= end || *at != '"') return JSON_MALFORMED;
    at++;
    for (;;) {
        const uint8_t *stop = plain(scan, at, text);
        if (text) text += stop - at;
        at = stop;
        if (at >= end) return JSON_MALFORMED;
        if (*at == '"') break;
        if (*at == '\\') {
            uint32_t code;
            at = escape(scan, at, &code);
            if (!at) return JSON_MALFORMED;
            if (text) text = encode(code, text);
        } else if (*at < 0x20) {
            return JSON_MALFORMED;
        } else {
            do {
                int length = sequence(at, end);
                if (length == 0) return JSON_MALFORMED;
                if (text) {
                    for (int i = 0; i < length; i++) *text++ = at[i];
                }
                at += length;
            } while (at < end && *at >= 0x80);
        }
    }
    *position = at + 1;
    if (out) *out = text;
    return JSON_OK;
}

json_status json_skip_string(json_scan *scan, const uint8_t **at) {
    return string(scan, at, NULL);
}

/* Append the text of a string. */
json_status json_copy_string(json_scan *scan, const uint8_t **at, json_buffer *out) {
    json_status status = json_reserve(scan, out, (size_t)(scan->end - *at) + JSON_PADDING);
    if (status) return status;
    uint8_t *text = out->at + out->length;
    status = string(scan, at, &text);
    if (status == JSON_OK) out->length = (size_t)(text - out->at);
    return status;
}

static const uint8_t *digits(const uint8_t *at, const uint8_t *end) {
    while (at < end && *at >= '0' && *at <= '9') at++;
    return at;
}

json_status json_skip_number(json_scan *scan, const uint8_t **position) {
    const uint8_t *start = *position, *at = start, *end = scan->end, *part;
    if (at < end && *at == '-') at++;
    if (at >= end || *at < '0' || *at > '9') return JSON_MALFORMED;
    at = *at == '0' ? at + 1 : digits(at, end);
    if (at < end && *at == '.') {
        part = at + 1;
        at = digits(part, end);
        if (at == part) return JSON_MALFORMED;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        part = at + 1;
        if (part < end && (*part == '+' || *part == '-')) part++;
        at = digits(part, end);
        if (at == part) return JSON_MALFORMED;
    }
    if (at - start > JSON_MAX_NUMBER) return JSON_MALFORMED;
    *position = at;
    return JSON_OK;
}

static json_status scalar(json_scan *scan, const uint8_t **position) {
    const uint8_t *at = *position;
    size_t left = (size_t)(scan->end - at);
    if (left == 0) return JSON_MALFORMED;
    if (*at == '"') return json_skip_string(scan, position);
    if (*at == 't' || *at == 'n') {
        if (left < 4 || (memcmp(at, "true", 4) && memcmp(at, "null", 4))) return JSON_MALFORMED;
        *position = at + 4;
        return JSON_OK;
    }
    if (*at == 'f') {
        if (left < 5 || memcmp(at, "false", 5)) return JSON_MALFORMED;
        *position = at + 5;
        return JSON_OK;
    }
    return json_skip_number(scan, position);
}

/* Read the white space, the name and the colon before a field's value. */
static json_status skip_name(json_scan *scan, const uint8_t **position) {
    const uint8_t *at = json_space(*position, scan->end);
    if (json_skip_string(scan, &at)) return JSON_MALFORMED;
    at = json_space(at, scan->end);
    if (at >= scan->end || *at != ':') return JSON_MALFORMED;
    *position = at + 1;
    return JSON_OK;
}

/* Read a value of any kind, with so many objects and arrays around it. */
json_status json_skip(json_scan *scan, const uint8_t **position, int depth) {
    const uint8_t *at = *position, *end = scan->end;
    uint8_t closing[JSON_MAX_DEPTH]; /* brackets that are missing yet */
    int inside = 0;
    for (;;) {
        at = json_space(at, end);
        if (at < end && (*at == '{' || *at == '[')) {
            uint8_t bracket = *at == '{' ? '}' : ']';
            if (depth + inside >= JSON_MAX_DEPTH) return JSON_MALFORMED;
            at = json_space(at + 1, end);
            if (at >= end) return JSON_MALFORMED;
            if (*at != bracket) {
                closing[inside++] = bracket;
                if (bracket == '}' && skip_name(scan, &at)) return JSON_MALFORMED;
                continue;
            }
            at++;
        } else if (scalar(scan, &at)) {
            return JSON_MALFORMED;
        }
        for (;;) {
            if (inside == 0) {
                *position = at;
                return JSON_OK;
            }
            at = json_space(at, end);
            if (at >= end) return JSON_MALFORMED;
            if (*at == ',') {
                at++;
                if (closing[inside - 1] == '}' && skip_name(scan, &at)) return JSON_MALFORMED;
                break;
            }
            if (*at++ != closing[--inside]) return JSON_MALFORMED;
        }
    }
}

/* Append the text of a valid value without the white space between its parts. */
json_status json_compact(json_scan *scan, const uint8_t *at, const uint8_t *end, json_buffer *out) {
    json_status status = json_reserve(scan, out, (size_t)(end - at) + JSON_PADDING);
    if (status) return status;
    uint8_t *text = out->at + out->length;
    bool quoted = false;
    for (; at < end; at++) {
        uint8_t c = *at;
        if (quoted) {
            if (c == '\\') *text++ = *at++;
            else if (c == '"') quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
            continue;
        }
        *text++ = *at;
    }
    out->length = (size_t)(text - out->at);
    return JSON_OK;
}
