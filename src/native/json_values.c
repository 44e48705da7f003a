/* The text of one JSON string or number as a value of a column's type.
 *
 * docs/json-values.md has the rules.
 */
#include "json.h"
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

static const int64_t DAY_US = 86400000000;
static const int64_t FIRST_US = -62135596800000000; /* of the year 1 */
static const int64_t LAST_US = 253402300799999999;  /* of the year 9999 */

static locale_t plain_locale;

bool json_values_start(void) {
    if (!plain_locale) plain_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return plain_locale != (locale_t)0;
}

static inline bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

/* Take a number apart. It may have any sign, zeros in front, and no digit on a side of the point. */
static void parts(const uint8_t *at, const uint8_t *end, json_number *number) {
    int64_t fraction = 0, power = 0;
    bool point = false;
    number->negative = at < end && *at == '-';
    number->count = 0;
    if (at < end && (*at == '-' || *at == '+')) at++;
    for (; at < end && (is_digit(*at) || *at == '.'); at++) {
        if (*at == '.') {
            point = true;
            continue;
        }
        fraction += point;
        if (number->count || *at != '0') number->digits[number->count++] = (char)*at;
    }
    if (at < end) { /* an e */
        bool negative = *++at == '-';
        if (*at == '-' || *at == '+') at++;
        for (; at < end; at++) {
            if (power < 1000000000) power = power * 10 + (*at - '0');
        }
        if (negative) power = -power;
    }
    number->exponent = power - fraction;
    while (number->count && number->digits[number->count - 1] == '0') {
        number->count--;
        number->exponent++;
    }
    if (!number->count) number->exponent = 0;
}

/* Return digits times ten to a power that is not negative. There are at most 19 digits in all. */
static uint64_t whole(const char *digits, int count, int64_t power) {
    uint64_t value = 0;
    for (int i = 0; i < count; i++) value = value * 10 + (uint64_t)(digits[i] - '0');
    for (; power > 0; power--) value *= 10;
    return value;
}

bool json_integer(const uint8_t *at, const uint8_t *end, int width, int64_t *value) {
    uint64_t size = 0, limit = (uint64_t)1 << (8 * width - 1);
    const uint8_t *digit = at;
    bool negative = at < end && *at == '-';
    digit += negative;
    if (end - digit <= 18) {
        for (; digit < end && is_digit(*digit); digit++) size = size * 10 + (uint64_t)(*digit - '0');
    }
    if (digit < end) {
        json_number number;
        parts(at, end, &number);
        if (number.exponent < 0 || number.count + number.exponent > 19) return false;
        size = number.count ? whole(number.digits, number.count, number.exponent) : 0;
    }
    if (size > limit - !negative) return false;
    *value = negative ? (int64_t)(0 - size) : (int64_t)size;
    return true;
}

/* Read a number with at most 19 digits and a small power of ten. Returns false for others. */
static bool small(const uint8_t *at, const uint8_t *end, uint64_t *digits, int *power,
                  bool *negative) {
    uint64_t value = 0;
    int count = 0, fraction = 0, exponent = 0;
    *negative = *at == '-';
    at += *negative;
    for (; at < end && is_digit(*at); at++) {
        if ((value || *at != '0') && ++count > 19) return false;
        value = value * 10 + (uint64_t)(*at - '0');
    }
    if (at < end && *at == '.') {
        const uint8_t *point = ++at;
        for (; at < end && is_digit(*at); at++) {
            if ((value || *at != '0') && ++count > 19) return false;
            value = value * 10 + (uint64_t)(*at - '0');
        }
        if (at - point > 100) return false;
        fraction = (int)(at - point);
    }
    if (at < end) {
        bool minus = *++at == '-';
        if (*at == '-' || *at == '+') at++;
        if (end - at > 3) return false;
        for (; at < end; at++) exponent = exponent * 10 + (*at - '0');
        if (minus) exponent = -exponent;
    }
    *digits = value;
    *power = exponent - fraction;
    return true;
}

static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                              1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                              1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
static const float SMALL_TENS[] = {1e0f, 1e1f, 1e2f, 1e3f, 1e4f, 1e5f,
                                   1e6f, 1e7f, 1e8f, 1e9f, 1e10f};

#if LDBL_MANT_DIG == 64
static const long double LONG_TENS[] = {
    1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,  1e7L,  1e8L,  1e9L,  1e10L, 1e11L, 1e12L, 1e13L,
    1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};

/* As below with 64 bits, where digits and power are exact, too. It is rounded twice then, which is
 * the same as once unless the first result is halfway between two doubles, or next to that. */
static bool long_double(uint64_t digits, int power, double *value) {
    uint64_t bits;
    long double size = (long double)digits;
    size = power < 0 ? size / LONG_TENS[-power] : size * LONG_TENS[power];
    memcpy(&bits, &size, sizeof bits);
    *value = (double)size;
    return (bits & 0x7FF) < 0x3FF || (bits & 0x7FF) > 0x401;
}
#else
static bool long_double(uint64_t digits, int power, double *value) { return false; }
#endif

/* Copy a number of at most JSON_MAX_NUMBER characters as a text of C. */
static void c_text(const uint8_t *at, const uint8_t *end, char *text) {
    memcpy(text, at, (size_t)(end - at));
    text[end - at] = 0;
}

bool json_double(const uint8_t *at, const uint8_t *end, double *value) {
    uint64_t digits;
    int power;
    bool negative;
    if (small(at, end, &digits, &power, &negative) && power >= -27 && power <= 27) {
        double size = (double)digits;
        bool found = true;
        if (digits <= (uint64_t)1 << 53 && power >= -22 && power <= 22) {
            /* Both the digits and the power of ten are doubles: one operation rounds once (Clinger). */
            size = power < 0 ? size / TENS[-power] : size * TENS[power];
        } else {
            found = long_double(digits, power, &size);
        }
        if (found) {
            *value = negative ? -size : size;
            return true;
        }
    }
    char text[JSON_MAX_NUMBER + 1];
    c_text(at, end, text);
    *value = strtod_l(text, NULL, plain_locale);
    return isfinite(*value);
}

bool json_single(const uint8_t *at, const uint8_t *end, float *value) {
    uint64_t digits;
    int power;
    bool negative;
    if (small(at, end, &digits, &power, &negative) && digits <= (uint64_t)1 << 24 &&
        power >= -10 && power <= 10) {
        float size = (float)digits;
        size = power < 0 ? size / SMALL_TENS[-power] : size * SMALL_TENS[power];
        *value = negative ? -size : size;
        return true;
    }
    char text[JSON_MAX_NUMBER + 1];
    c_text(at, end, text);
    *value = strtof_l(text, NULL, plain_locale);
    return isfinite(*value);
}

/* Read a string that stands for a number that JSON can't write. */
bool json_special(const uint8_t *at, size_t length, double *value) {
    static const struct {
        const char *text;
        double value;
    } known[] = {
        {"NaN", NAN},           {"Infinity", INFINITY}, {"+Infinity", INFINITY},
        {"-Infinity", -INFINITY}, {"+INF", INFINITY},     {"-INF", -INFINITY},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].text) == length && !memcmp(known[i].text, at, length)) {
            *value = known[i].value;
            return true;
        }
    }
    return false;
}

/* Whether a string is a decimal: like a number, but with any sign, zeros in front, and maybe no
 * digit on one side of the point. */
bool json_is_decimal(const uint8_t *at, const uint8_t *end) {
    if (end - at > JSON_MAX_NUMBER) return false;
    if (at < end && (*at == '-' || *at == '+')) at++;
    bool any = false;
    for (; at < end && is_digit(*at); at++) any = true;
    if (at < end && *at == '.') {
        for (at++; at < end && is_digit(*at); at++) any = true;
    }
    if (!any) return false;
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '-' || *at == '+')) at++;
        if (at >= end) return false;
        while (at < end && is_digit(*at)) at++;
    }
    return at == end;
}

/* Return the decimal as a number of 128 bits, lowest byte first, rounded half up. */
bool json_decimal(const uint8_t *at, const uint8_t *end, int precision, int scale,
                  uint8_t *value) {
    json_number number;
    parts(at, end, &number);
    int64_t shift = number.exponent + scale, kept = number.count + shift;
    uint64_t high = 0, low = 0; /* in base 10 ** 19 */
    const uint64_t base = 10000000000000000000u;
    int significant = 0;
    if (number.count && kept >= 0) {
        if (kept > precision) return false;
        for (int64_t i = 0; i < kept; i++) {
            uint64_t digit = i < number.count ? (uint64_t)(number.digits[i] - '0') : 0;
            high = high * 10 + low / (base / 10);
            low = low % (base / 10) * 10 + digit;
        }
        if (shift < 0 && number.digits[kept] >= '5' && ++low == base) {
            low = 0;
            high++;
        }
    }
    for (uint64_t rest = high ? high : low; rest; rest /= 10) significant++;
    if (high) significant += 19;
    if (significant > precision) return false;
    /* value = high * base + low, by halves of 32 bits */
    uint32_t words[4] = {(uint32_t)low, (uint32_t)(low >> 32), 0, 0};
    const uint32_t factors[2] = {(uint32_t)base, (uint32_t)(base >> 32)};
    const uint32_t highs[2] = {(uint32_t)high, (uint32_t)(high >> 32)};
    for (int i = 0; i < 2; i++) {
        uint64_t carry = 0;
        for (int j = 0; j < 2; j++) {
            uint64_t sum = (uint64_t)highs[i] * factors[j] + words[i + j] + carry;
            words[i + j] = (uint32_t)sum;
            carry = sum >> 32;
        }
        for (int k = i + 2; k < 4; k++) {
            uint64_t sum = (uint64_t)words[k] + carry;
            words[k] = (uint32_t)sum;
            carry = sum >> 32;
        }
    }
    if (number.negative) {
        uint64_t carry = 1;
        for (int k = 0; k < 4; k++) {
            uint64_t sum = (uint64_t)(uint32_t)~words[k] + carry;
            words[k] = (uint32_t)sum;
            carry = sum >> 32;
        }
    }
    uint64_t halves[2] = {words[0] | (uint64_t)words[1] << 32,
                          words[2] | (uint64_t)words[3] << 32};
    memcpy(value, halves, 16);
    return true;
}

static int base64_digit(uint8_t c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (is_digit(c)) return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decode Base64 with padding (RFC 4648) in its place. */
bool json_base64(uint8_t *text, size_t length, size_t *decoded) {
    uint8_t *out = text;
    if (length % 4) return false;
    for (size_t i = 0; i < length; i += 4) {
        int padding = 0;
        if (i + 4 == length && text[i + 3] == '=') padding = text[i + 2] == '=' ? 2 : 1;
        int bits = 0;
        for (int k = 0; k < 4; k++) {
            int digit = k >= 4 - padding ? 0 : base64_digit(text[i + (size_t)k]);
            if (digit < 0) return false;
            bits = bits << 6 | digit;
        }
        *out++ = (uint8_t)(bits >> 16);
        if (padding < 2) *out++ = (uint8_t)(bits >> 8);
        if (padding < 1) *out++ = (uint8_t)bits;
    }
    *decoded = (size_t)(out - text);
    return true;
}

bool json_in_years(int64_t us) { return us >= FIRST_US && us <= LAST_US; }

/* Return a number times a power of ten as microseconds. What is smaller is cut off, downwards. */
bool json_epoch(const uint8_t *at, const uint8_t *end, int power, int64_t *us) {
    json_number number;
    parts(at, end, &number);
    int64_t shift = number.exponent + power, kept = number.count + shift, value = 0;
    if (number.count) {
        if (kept > 18) return false;
        if (kept > 0) value = (int64_t)whole(number.digits, (int)(shift < 0 ? kept : number.count),
                                             shift < 0 ? 0 : shift);
        if (number.negative) value = -value - (shift < 0);
    }
    *us = value;
    return json_in_years(value);
}

/* Read digits, as many as there are from least to most. Returns false if there are fewer. */
static bool field(const uint8_t **at, const uint8_t *end, int least, int most, int *value) {
    int count = 0;
    *value = 0;
    while (count < most && *at < end && is_digit(**at)) {
        *value = *value * 10 + (*(*at)++ - '0');
        count++;
    }
    return count >= least;
}

static bool literal(const uint8_t **at, const uint8_t *end, uint8_t c) {
    if (*at >= end || **at != c) return false;
    (*at)++;
    return true;
}

/* Return days from 1970-01-01 (the algorithm of H. Hinnant's days_from_civil). */
static int32_t days(int year, int month, int day) {
    year -= month <= 2;
    int era = year / 400, of_era = year - era * 400;
    int of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static bool read_date(const uint8_t **at, const uint8_t *end, int32_t *day) {
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int year, month, of_month;
    if (!field(at, end, 4, 4, &year) || !literal(at, end, '-') || !field(at, end, 1, 2, &month) ||
        !literal(at, end, '-') || !field(at, end, 1, 2, &of_month)) {
        return false;
    }
    if (year < 1 || month < 1 || month > 12 || of_month < 1) return false;
    bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (of_month > lengths[month - 1] + (leap && month == 2)) return false;
    *day = days(year, month, of_month);
    return true;
}

static bool read_clock(const uint8_t **at, const uint8_t *end, int64_t *us) {
    int hour, minute = 0, second = 0;
    int64_t fraction = 0;
    if (!field(at, end, 1, 2, &hour)) return false;
    if (literal(at, end, ':')) {
        if (!field(at, end, 1, 2, &minute)) return false;
        if (literal(at, end, ':')) {
            if (!field(at, end, 1, 2, &second)) return false;
            if (literal(at, end, '.')) {
                const uint8_t *start = *at;
                int64_t unit = 100000;
                for (; *at < end && is_digit(**at); (*at)++, unit /= 10) {
                    fraction += unit * (**at - '0');
                }
                if (*at == start) return false;
            }
        }
    }
    if (hour > 23 || minute > 59 || second > 59) return false;
    *us = ((int64_t)hour * 3600 + minute * 60 + second) * 1000000 + fraction;
    return true;
}

/* Read a zone up to the end. Returns its offset in seconds. */
static bool read_zone(const uint8_t *at, const uint8_t *end, int *offset) {
    *offset = 0;
    while (at < end && *at == ' ') at++;
    if (end - at == 1 && *at == 'Z') return true;
    if (end - at == 3 && (!memcmp(at, "UTC", 3) || !memcmp(at, "GMT", 3))) return true;
    if (at >= end || (*at != '+' && *at != '-')) return false;
    bool negative = *at++ == '-';
    int hour, minute = 0, second = 0;
    if (end - at == 4 && is_digit(at[1])) {
        if (!field(&at, end, 2, 2, &hour) || !field(&at, end, 2, 2, &minute)) return false;
    } else {
        if (!field(&at, end, 1, 2, &hour)) return false;
        if (literal(&at, end, ':')) {
            if (!field(&at, end, 2, 2, &minute)) return false;
            if (literal(&at, end, ':') && !field(&at, end, 2, 2, &second)) return false;
        }
    }
    int size = hour * 3600 + minute * 60 + second;
    if (at != end || minute > 59 || second > 59 || size > 18 * 3600) return false;
    *offset = negative ? -size : size;
    return true;
}

/* Read a date or a moment in ISO 8601: its date as it is written, the microseconds since 1970 in
 * UTC, and whether it has a zone. */
bool json_moment(const uint8_t *at, const uint8_t *end, int32_t *day, int64_t *us, bool *zone) {
    int64_t clock = 0;
    int offset = 0;
    while (at < end && *at <= ' ') at++;
    while (at < end && end[-1] <= ' ') end--;
    *zone = false;
    if (!read_date(&at, end, day)) return false;
    if (at < end) {
        if (*at != 'T' && *at != ' ') return false;
        at++;
        if (!read_clock(&at, end, &clock)) return false;
        if (at < end) {
            *zone = true;
            if (!read_zone(at, end, &offset)) return false;
        }
    }
    *us = *day * DAY_US + clock - (int64_t)offset * 1000000;
    return true;
}
