/* Parses lines of StatsD.
 *
 * The same bytes mean different things in etsy's StatsD and in Datadog's, so the parser has a dialect.
 * Sources: stats.js and lib/helpers.js of statsd/statsd; comp/dogstatsd/server/impl/parse*.go of
 * DataDog/datadog-agent. Where ours is stricter: a rate is in (0, 1], and a number is finite.
 */
#include "statsd.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static tm_text text(const uint8_t *at, const uint8_t *end)
{
    return (tm_text){at, (size_t)(end - at)};
}

/* Return the text up to a character, and cut it and the character off the front of `rest`. Without
 * the character it is all of `rest`, and `rest` has no address then. */
static tm_text next_part(tm_text *rest, int character)
{
    const uint8_t *end = rest->size ? memchr(rest->at, character, rest->size) : NULL;
    if (!end) {
        tm_text all = *rest;
        *rest = (tm_text){NULL, 0};
        return all;
    }
    tm_text part = text(rest->at, end);
    *rest = text(end + 1, rest->at + rest->size);
    return part;
}

static int is_space(uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static tm_text trimmed(tm_text from)
{
    while (from.size && is_space(from.at[0])) from.at++, from.size--;
    while (from.size && is_space(from.at[from.size - 1])) from.size--;
    return from;
}

static int is_text(tm_text one, const char *other)
{
    return one.size == strlen(other) && memcmp(one.at, other, one.size) == 0;
}

static int starts_with(tm_text one, const char *other)
{
    size_t size = strlen(other);
    return one.size >= size && memcmp(one.at, other, size) == 0;
}

/* --- numbers ---------------------------------------------------------------------------------- */

#define NUMBER_LIMIT 64

static int rare_number(tm_text from, double *to)
{
    char copy[NUMBER_LIMIT + 1], *end;
    if (from.size > NUMBER_LIMIT) return 0;
    for (size_t i = 0; i < from.size; i++)
        if (!strchr("0123456789+-.eE", from.at[i]) || !from.at[i]) return 0;
    memcpy(copy, from.at, from.size);
    copy[from.size] = 0;
    *to = strtod(copy, &end);
    return from.size && end == copy + from.size && isfinite(*to);
}

/* Read a finite decimal number. Return whether it is one. */
static int read_number(tm_text from, double *to)
{
    static const double tens[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12,
                                  1e13, 1e14, 1e15};
    const uint8_t *at = from.at, *end = from.at + from.size;
    int is_negative = at < end && *at == '-', digits = 0, behind = 0;
    uint64_t mantissa = 0;
    if (at < end && (*at == '-' || *at == '+')) at++;
    for (; at < end && *at >= '0' && *at <= '9'; at++, digits++) mantissa = mantissa * 10 + *at - '0';
    if (at < end && *at == '.')
        for (at++; at < end && *at >= '0' && *at <= '9'; at++, digits++, behind++)
            mantissa = mantissa * 10 + *at - '0';
    /* Up to 15 digits, the mantissa and the power of ten are exact, and one division rounds right. */
    if (at < end || digits == 0 || digits > 15) return rare_number(from, to);
    double value = (double)mantissa / tens[behind];
    *to = is_negative ? -value : value;
    return 1;
}

/* Read a rate of sampling. Return whether it is in (0, 1]. */
static int read_rate(tm_text from, double *to)
{
    return read_number(from, to) && *to > 0 && *to <= 1;
}

/* --- the key of a series ---------------------------------------------------------------------- */

static int put(tm_parser *on, const uint8_t *from, size_t size)
{
    if (size > sizeof on->key - on->key_size) return 0;
    if (size) memcpy(on->key + on->key_size, from, size);
    on->key_size += size;
    return 1;
}

static int put_byte(tm_parser *on, uint8_t byte) { return put(on, &byte, 1); }

static int add_tag(tm_parser *on, tm_text tag)
{
    if (!tag.size) return 1;
    if (on->tag_count == TM_TAG_LIMIT) return 0;
    on->tags[on->tag_count++] = tag;
    return 1;
}

/* Add tags with `=` or `:` between name and value: all styles are the same in the key. */
static int add_tags(tm_parser *on, tm_text list, int separator, int equals)
{
    while (list.at) {
        tm_text tag = next_part(&list, separator);
        const uint8_t *sign = equals && tag.size ? memchr(tag.at, '=', tag.size) : NULL;
        if (sign) {
            if (sign == tag.at || tag.size > sizeof on->text - on->text_size) return 0;
            uint8_t *copy = on->text + on->text_size;
            memcpy(copy, tag.at, tag.size);
            copy[sign - tag.at] = ':';
            on->text_size += tag.size;
            tag.at = copy;
        }
        if (!add_tag(on, tag)) return 0;
    }
    return 1;
}

static int order_tags(const void *one, const void *other)
{
    const tm_text *a = one, *b = other;
    int order = memcmp(a->at, b->at, a->size < b->size ? a->size : b->size);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

static int put_tags(tm_parser *on)
{
    if (on->tag_count > 1) qsort(on->tags, on->tag_count, sizeof *on->tags, order_tags);
    for (size_t i = 0; i < on->tag_count; i++) {
        if (i && order_tags(&on->tags[i - 1], &on->tags[i]) == 0) continue;
        if (i && !put_byte(on, ',')) return 0;
        if (!put(on, on->tags[i].at, on->tags[i].size)) return 0;
    }
    return 1;
}

/* Put the name as etsy's StatsD cleans it. */
static int put_clean_name(tm_parser *on, tm_text name)
{
    for (size_t i = 0; i < name.size; i++) {
        uint8_t c = name.at[i];
        if (is_space(c)) {
            if (i && is_space(name.at[i - 1])) continue;
            c = '_';
        } else if (c == '/') {
            c = '-';
        } else if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                     c == '_' || c == '-' || c == '.' || c == ';' || c == '=')) {
            continue;
        }
        if (!put_byte(on, c)) return 0;
    }
    return 1;
}

/* Take the tags out of a name; `name` is what comes before them, and `more` what comes behind. */
static int split_name(tm_parser *on, tm_text *name, tm_text *more)
{
    tm_text rest = *name;
    switch (on->name_tags) {
    case TM_NAME_TAGS_INFLUX:
        *name = next_part(&rest, ',');
        return !rest.at || add_tags(on, rest, ',', 1);
    case TM_NAME_TAGS_LIBRATO:
        *name = next_part(&rest, '#');
        return !rest.at || add_tags(on, rest, ',', 1);
    case TM_NAME_TAGS_GRAPHITE:
        *name = next_part(&rest, ';');
        return !rest.at || add_tags(on, rest, ';', 1);
    case TM_NAME_TAGS_SIGNALFX: {
        *name = next_part(&rest, '[');
        if (!rest.at) return 1;
        tm_text tags = next_part(&rest, ']');
        if (!rest.at) return 0;
        *more = rest;
        return add_tags(on, tags, ',', 1);
    }
    default: return 1;
    }
}

typedef struct {
    tm_text tags, container, external, cardinality, time;
} fields;

/* Write the key of a line's series to `on->key`. */
static tm_line_reason make_key(tm_parser *on, tm_text name, const fields *of)
{
    tm_text more = {NULL, 0};
    on->key_size = on->tag_count = on->text_size = 0;
    if (on->name_tags != TM_NAME_TAGS_NONE && !split_name(on, &name, &more)) return TM_LINE_BAD_TAGS;
    if (on->tag_count && of->tags.at) return TM_LINE_BAD_TAGS; /* two styles in one line */
    if (of->tags.at && !add_tags(on, of->tags, ',', 0)) return TM_LINE_BAD_TAGS;
    int fits = on->dialect == TM_DIALECT_STATSD
                   ? put_clean_name(on, name) && put_clean_name(on, more)
                   : put(on, name.at, name.size) && put(on, more.at, more.size);
    if (fits && !on->key_size) return TM_LINE_NO_NAME;
    fits = fits && put_byte(on, '\n') && put_tags(on);
    if (fits && (of->container.size || of->external.size || of->cardinality.size || of->time.size)) {
        const tm_text parts[] = {of->container, of->external, of->cardinality, of->time};
        for (int i = 0; fits && i < 4; i++)
            fits = put_byte(on, '\n') && put(on, parts[i].at, parts[i].size);
    }
    return fits ? TM_LINE_FINE : TM_LINE_TOO_LONG;
}

/* --- etsy's dialect --------------------------------------------------------------------------- */

static tm_line_reason etsy_values(tm_parser *on, tm_text given, tm_text type, double rate,
                                  tm_sample *to)
{
    *to = (tm_sample){.kind = TM_COUNTER, .rate = rate, .values = on->values, .count = 1};
    if (is_text(type, "s")) {
        static const uint8_t zero[] = "0"; /* a set without a value has the member 0 */
        to->kind = TM_SET;
        to->count = 0;
        to->member = given.size ? given : text(zero, zero + 1);
        return TM_LINE_FINE;
    }
    if (!read_number(given, on->values)) return given.size ? TM_LINE_BAD_NUMBER : TM_LINE_NO_VALUE;
    if (is_text(type, "ms")) {
        to->kind = TM_TIMER;
        if (on->values[0] < 0) return TM_LINE_NEGATIVE_TIME;
    } else if (is_text(type, "g")) {
        to->kind = TM_GAUGE;
        to->is_delta = given.at[0] == '-' || given.at[0] == '+';
    } /* etsy's StatsD counts any other type */
    return TM_LINE_FINE;
}

/* One `value|type|@rate` of a line. */
static tm_line_reason etsy_part(tm_parser *on, tm_text part, tm_sample *to)
{
    tm_text value = next_part(&part, '|');
    if (!part.at) return TM_LINE_NO_TYPE;
    tm_text type = trimmed(next_part(&part, '|'));
    if (!type.size) return TM_LINE_NO_TYPE;
    double rate = 1;
    if (part.at) {
        tm_text given = trimmed(next_part(&part, '|'));
        if (!given.size || given.at[0] != '@') return TM_LINE_BAD_RATE;
        if (!read_rate(text(given.at + 1, given.at + given.size), &rate)) return TM_LINE_BAD_RATE;
    }
    return etsy_values(on, trimmed(value), type, rate, to);
}

static const uint8_t *find_tags(tm_text line)
{
    const uint8_t *at = line.at, *end = line.at + line.size;
    while (at < end && (at = memchr(at, '|', (size_t)(end - at))) && at + 1 < end) {
        if (at[1] == '#') return at;
        at++;
    }
    return NULL;
}

static void parse_etsy(tm_parser *on, tm_text line, void *table, tm_take_sample take,
                       void (*report)(void *, tm_line_reason, tm_text))
{
    fields of = {0};
    tm_text rest = line;
    const uint8_t *tags = find_tags(line);
    if (tags) {
        rest = text(line.at, tags);
        of.tags = trimmed(text(tags + 2, line.at + line.size));
        if (memchr(of.tags.at, '|', of.tags.size)) {
            report(table, TM_LINE_BAD_TAGS, line);
            return;
        }
    }
    tm_text name = next_part(&rest, ':');
    if (!rest.at) {
        report(table, TM_LINE_NO_VALUE, line);
        return;
    }
    tm_line_reason reason = make_key(on, name, &of);
    if (reason != TM_LINE_FINE) {
        report(table, reason, line);
        return;
    }
    while (rest.at) {
        tm_sample sample;
        reason = etsy_part(on, next_part(&rest, ':'), &sample);
        if (reason == TM_LINE_FINE) take(table, on, &sample);
        else report(table, reason, line);
    }
}

/* --- Datadog's dialect ------------------------------------------------------------------------ */

static int read_type(tm_text type, tm_kind *to)
{
    if (type.size == 1) {
        switch (type.at[0]) {
        case 'c': *to = TM_COUNTER; return 1;
        case 'g': *to = TM_GAUGE; return 1;
        case 'h': *to = TM_HISTOGRAM; return 1;
        case 'd': *to = TM_DISTRIBUTION; return 1;
        case 's': *to = TM_SET; return 1;
        }
    }
    *to = TM_TIMER;
    return is_text(type, "ms");
}

static int is_timestamp(tm_text from)
{
    int is_positive = 0;
    if (!from.size || from.size > 12) return 0;
    for (size_t i = 0; i < from.size; i++) {
        if (from.at[i] < '0' || from.at[i] > '9') return 0;
        is_positive |= from.at[i] != '0';
    }
    return is_positive;
}

/* Read the fields behind the type, in any order. Unknown ones are ignored, as the agent does. */
static tm_line_reason read_fields(tm_text rest, fields *of, double *rate)
{
    while (rest.at) {
        tm_text field = next_part(&rest, '|');
        if (starts_with(field, "@")) {
            if (!read_rate(text(field.at + 1, field.at + field.size), rate)) return TM_LINE_BAD_RATE;
        } else if (starts_with(field, "#")) {
            of->tags = text(field.at + 1, field.at + field.size);
        } else if (starts_with(field, "c:")) {
            of->container = text(field.at + 2, field.at + field.size);
        } else if (starts_with(field, "e:")) {
            of->external = text(field.at + 2, field.at + field.size);
        } else if (starts_with(field, "card:")) {
            of->cardinality = text(field.at + 5, field.at + field.size);
        } else if (starts_with(field, "T")) {
            of->time = text(field.at + 1, field.at + field.size);
            if (!is_timestamp(of->time)) return TM_LINE_BAD_TIMESTAMP;
        }
    }
    return TM_LINE_FINE;
}

static tm_line_reason read_values(tm_parser *on, tm_text given, size_t *count)
{
    *count = 0;
    while (given.at) {
        tm_text value = next_part(&given, ':');
        if (!value.size) continue; /* the agent skips empty values */
        if (*count == TM_VALUE_LIMIT) return TM_LINE_TOO_LONG;
        if (!read_number(value, &on->values[(*count)++])) return TM_LINE_BAD_NUMBER;
    }
    return *count ? TM_LINE_FINE : TM_LINE_NO_VALUE;
}

static tm_line_reason parse_dogstatsd(tm_parser *on, tm_text line, tm_sample *to)
{
    fields of = {0};
    tm_text rest = line, values = next_part(&rest, '|');
    *to = (tm_sample){.rate = 1, .values = on->values};
    if (!rest.at) return TM_LINE_NO_TYPE;
    tm_text name = next_part(&values, ':');
    if (!values.at || !values.size) return TM_LINE_NO_VALUE;
    tm_text type = next_part(&rest, '|');
    if (!read_type(type, &to->kind)) return type.size ? TM_LINE_UNKNOWN_TYPE : TM_LINE_NO_TYPE;
    tm_line_reason reason = read_fields(rest, &of, &to->rate);
    if (reason != TM_LINE_FINE) return reason;
    to->has_time = of.time.size > 0;
    if (to->kind == TM_SET) to->member = values; /* a member may have colons */
    else if ((reason = read_values(on, values, &to->count)) != TM_LINE_FINE) return reason;
    return make_key(on, name, &of);
}

/* --- lines ------------------------------------------------------------------------------------ */

int tm_is_notice(const tm_parser *parser, tm_text line)
{
    return parser->dialect == TM_DIALECT_DOGSTATSD &&
           (starts_with(line, "_e{") || starts_with(line, "_sc|"));
}

void tm_parse_line(tm_parser *parser, tm_text line, void *table, tm_take_sample take,
                   void (*report)(void *table, tm_line_reason reason, tm_text line))
{
    if (parser->dialect == TM_DIALECT_STATSD) {
        parse_etsy(parser, line, table, take, report);
        return;
    }
    tm_sample sample;
    tm_line_reason reason = parse_dogstatsd(parser, line, &sample);
    if (reason == TM_LINE_FINE) take(table, parser, &sample);
    else report(table, reason, line);
}
