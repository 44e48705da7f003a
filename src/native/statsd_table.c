/* Aggregates samples of StatsD by series, in bounded memory.
 *
 * Packets come from anywhere, so: hashes are keyed (SipHash-1-3, Aumasson and Bernstein 2012), or many
 * names could be made to share a slot; there are limits for series, for the bytes of a key and for all
 * values together. A timer that can't keep another value keeps a uniform sample of them (Vitter 1985,
 * algorithm R): sum, smallest and largest stay exact. The work for a line does not depend on its rate.
 */
#include "statsd_table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- hashes ----------------------------------------------------------------------------------- */

#define ROTATE(x, by) (((x) << (by)) | ((x) >> (64 - (by))))
#define ROUND                                                                                       \
    (a += b, b = ROTATE(b, 13), b ^= a, a = ROTATE(a, 32), c += d, d = ROTATE(d, 16), d ^= c,       \
     a += d, d = ROTATE(d, 21), d ^= a, c += b, b = ROTATE(b, 17), b ^= c, c = ROTATE(c, 32))

static uint64_t hash_of(const uint64_t seed[2], const uint8_t *at, size_t size, uint64_t kind)
{
    uint64_t a = seed[0] ^ 0x736f6d6570736575u ^ kind << 56, b = seed[1] ^ 0x646f72616e646f6du;
    uint64_t c = seed[0] ^ 0x6c7967656e657261u, d = seed[1] ^ 0x7465646279746573u;
    uint64_t word, last = (uint64_t)size << 56;
    for (; size >= 8; size -= 8, at += 8) {
        memcpy(&word, at, 8);
        d ^= word;
        ROUND;
        a ^= word;
    }
    for (size_t i = 0; i < size; i++) last |= (uint64_t)at[i] << (8 * i);
    d ^= last;
    ROUND;
    a ^= last;
    c ^= 0xff;
    ROUND;
    ROUND;
    ROUND;
    return a ^ b ^ c ^ d;
}

static uint64_t next_random(tm_table *on)
{
    uint64_t x = on->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return on->random = x;
}

/* --- the table -------------------------------------------------------------------------------- */

int tm_table_prepare(tm_table *on, uint32_t limit, uint64_t value_limit, size_t raw_limit,
                     size_t notices_limit, const uint64_t seed[2])
{
    on->parser = calloc(1, sizeof *on->parser);
    on->slot_count = 1024;
    on->slots = calloc(on->slot_count, sizeof *on->slots);
    on->raw = raw_limit ? malloc(raw_limit) : NULL;
    on->notices = malloc(notices_limit ? notices_limit : 1);
    on->limit = limit;
    on->value_limit = value_limit;
    on->raw_limit = raw_limit;
    on->notices_limit = notices_limit;
    memcpy(on->seed, seed, sizeof on->seed);
    on->random = seed[0] | 1;
    return on->parser && on->slots && on->notices && (on->raw || !raw_limit) ? 0 : -1;
}

void tm_series_free(tm_series *series, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        free(series[i].key);
        free(series[i].values);
    }
    free(series);
}

void tm_table_dispose(tm_table *on)
{
    tm_series_free(on->series, on->count);
    for (int i = 0; i < TM_LINE_REASONS; i++) free(on->sample[i]);
    free(on->parser);
    free(on->slots);
    free(on->raw);
    free(on->notices);
}

static void put_slot(tm_table *on, uint32_t index)
{
    uint32_t mask = on->slot_count - 1, slot = (uint32_t)on->series[index].hash & mask;
    while (on->slots[slot]) slot = (slot + 1) & mask;
    on->slots[slot] = index + 1;
}

/* Make room for one more series. Return 0 without memory. */
static int grow(tm_table *on)
{
    if (on->count == on->room) {
        uint32_t room = on->room ? on->room * 2 : 256;
        tm_series *series = realloc(on->series, room * sizeof *series);
        if (!series) return 0;
        on->series = series;
        on->room = room;
    }
    if ((on->count + 1) * 2 > on->slot_count) {
        uint32_t *slots = calloc((size_t)on->slot_count * 2, sizeof *slots);
        if (!slots) return 0;
        free(on->slots);
        on->slots = slots;
        on->slot_count *= 2;
        for (uint32_t i = 0; i < on->count; i++) put_slot(on, i);
    }
    return 1;
}

/* Return the series of the parser's key, or NULL if there are too many. */
static tm_series *find(tm_table *on, const tm_parser *parser, tm_kind kind)
{
    uint64_t hash = hash_of(on->seed, parser->key, parser->key_size, (uint64_t)kind);
    uint32_t mask = on->slot_count - 1;
    for (uint32_t slot = (uint32_t)hash & mask; on->slots[slot]; slot = (slot + 1) & mask) {
        tm_series *series = &on->series[on->slots[slot] - 1];
        if (series->hash == hash && series->kind == kind && series->key_size == parser->key_size &&
            memcmp(series->key, parser->key, parser->key_size) == 0)
            return series;
    }
    if (on->count >= on->limit || !grow(on)) return NULL;
    uint8_t *key = malloc(parser->key_size);
    if (!key) return NULL;
    memcpy(key, parser->key, parser->key_size);
    tm_series *series = &on->series[on->count++];
    *series = (tm_series){
        .hash = hash, .key = key, .key_size = (uint32_t)parser->key_size, .kind = (uint8_t)kind};
    put_slot(on, on->count - 1);
    return series;
}

/* --- values ----------------------------------------------------------------------------------- */

/* Make room for more values of a series. Return 0 if there is none. */
static int more_values(tm_table *on, tm_series *series, uint32_t capacity)
{
    uint64_t extra = capacity - series->capacity;
    if (capacity < series->capacity || extra > on->value_limit - on->held) return 0;
    double *values = realloc(series->values, capacity * sizeof *values);
    if (!values) return 0;
    series->values = values;
    series->capacity = capacity;
    on->held += extra;
    return 1;
}

static void add_value(tm_table *on, tm_series *series, double value)
{
    series->low = series->seen ? fmin(series->low, value) : value;
    series->high = series->seen ? fmax(series->high, value) : value;
    series->total += value;
    series->squares += value * value;
    series->seen++;
    if (series->kept < series->capacity ||
        more_values(on, series, series->capacity ? series->capacity * 2 : 4)) {
        series->values[series->kept++] = value;
        return;
    }
    series->is_sampled = 1;
    if (!series->kept) return;
    uint64_t place = next_random(on) % series->seen;
    if (place < series->kept) series->values[place] = value;
}

static void put_member(uint64_t *members, uint32_t capacity, uint64_t hash)
{
    uint32_t mask = capacity - 1, slot = (uint32_t)hash & mask;
    while (members[slot] && members[slot] != hash) slot = (slot + 1) & mask;
    members[slot] = hash;
}

/* Double the places for members. Return 0 if there is no room. */
static int more_members(tm_table *on, tm_series *series)
{
    uint32_t before = series->capacity, capacity = before ? before * 2 : 8;
    if (capacity - before > on->value_limit - on->held) return 0;
    uint64_t *members = calloc(capacity, sizeof *members);
    if (!members) return 0;
    const uint64_t *old = (const uint64_t *)series->values;
    for (uint32_t i = 0; i < before; i++)
        if (old[i]) put_member(members, capacity, old[i]);
    free(series->values);
    series->values = (double *)members;
    series->capacity = capacity;
    on->held += capacity - before;
    return 1;
}

/* Add a member to a set. Only its hash is kept: two of a million members are one by mistake in one of
 * 37 million intervals. */
static void add_member(tm_table *on, tm_series *series, tm_text member)
{
    uint64_t hash = hash_of(on->seed, member.at, member.size, TM_KINDS);
    if (!hash) hash = 1;
    series->seen++;
    if (series->capacity) {
        const uint64_t *members = (const uint64_t *)series->values;
        uint32_t mask = series->capacity - 1, slot = (uint32_t)hash & mask;
        while (members[slot] && members[slot] != hash) slot = (slot + 1) & mask;
        if (members[slot]) return;
    }
    if ((series->kept + 1) * 2 > series->capacity && !more_members(on, series)) {
        series->is_sampled = 1;
        return;
    }
    put_member((uint64_t *)series->values, series->capacity, hash);
    series->kept++;
}

static void take_sample(void *table, const tm_parser *parser, const tm_sample *sample)
{
    tm_table *on = table;
    tm_series *series = find(on, parser, sample->kind);
    if (!series) {
        on->counts.excess++;
        return;
    }
    series->is_fresh = 1;
    series->idle = 0;
    series->has_time = (uint8_t)sample->has_time;
    if (sample->kind == TM_SET) {
        add_member(on, series, sample->member);
        return;
    }
    for (size_t i = 0; i < sample->count; i++) {
        double value = sample->values[i];
        switch (sample->kind) {
        case TM_COUNTER:
            series->total += value / sample->rate;
            series->seen++;
            break;
        case TM_GAUGE:
            series->total = sample->is_delta ? series->total + value : value;
            series->seen++;
            break;
        default: add_value(on, series, value); series->weight += 1 / sample->rate;
        }
    }
}

/* --- lines ------------------------------------------------------------------------------------ */

static void report(void *table, tm_line_reason reason, tm_text line)
{
    tm_table *on = table;
    on->counts.malformed[reason]++;
    uint32_t size = line.size < TM_SAMPLE_SIZE ? (uint32_t)line.size : TM_SAMPLE_SIZE;
    if (!on->sample[reason]) on->sample[reason] = malloc(TM_SAMPLE_SIZE);
    if (!on->sample[reason]) return;
    memcpy(on->sample[reason], line.at, size);
    on->sample_size[reason] = size;
}

/* Keep a line for others. Return 0 if there is no room. */
static int keep(uint8_t *to, size_t *size, size_t limit, tm_text line)
{
    if (line.size + 1 > limit - *size) return 0;
    memcpy(to + *size, line.at, line.size);
    *size += line.size;
    to[(*size)++] = '\n';
    return 1;
}

static void take_line(tm_table *on, tm_text line)
{
    on->counts.lines++;
    if (on->raw && !keep(on->raw, &on->raw_size, on->raw_limit, line)) on->counts.lost_raw++;
    if (tm_is_notice(on->parser, line)) {
        on->counts.notices++;
        if (!keep(on->notices, &on->notices_size, on->notices_limit, line))
            on->counts.lost_notices++;
        return;
    }
    tm_parse_line(on->parser, line, on, take_sample, report);
}

void tm_table_feed(tm_table *on, tm_text packet)
{
    const uint8_t *at = packet.at, *end = packet.at + packet.size;
    while (at < end) {
        const uint8_t *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        size_t size = (size_t)(stop - at);
        if (size && at[size - 1] == '\r') size--;
        if (size) take_line(on, (tm_text){at, size});
        at = stop + 1;
    }
}

void tm_table_cut(tm_table *on, tm_text packet)
{
    on->counts.lines++;
    report(on, TM_LINE_CUT, packet);
}

/* --- the end of an interval ------------------------------------------------------------------- */

/* Start the next interval of a series. */
static void restart(tm_series *series)
{
    series->is_fresh = series->is_sampled = 0;
    series->seen = 0;
    series->weight = series->low = series->high = series->squares = 0;
    series->values = NULL;
    series->kept = series->capacity = 0;
    if (series->kind != TM_GAUGE) series->total = 0;
}

tm_series *tm_table_take(tm_table *on, const uint32_t expiry[TM_KINDS], uint32_t *count)
{
    uint32_t kept = 0;
    tm_series *taken = malloc((on->count ? on->count : 1) * sizeof *taken);
    if (!taken) return NULL;
    for (uint32_t i = 0; i < on->count; i++) {
        taken[i] = on->series[i];
        taken[i].key = malloc(taken[i].key_size);
        if (!taken[i].key) {
            while (i--) free(taken[i].key);
            free(taken);
            return NULL;
        }
        memcpy(taken[i].key, on->series[i].key, taken[i].key_size);
    }
    *count = on->count;
    on->held = 0;
    for (uint32_t i = 0; i < on->count; i++) {
        tm_series series = on->series[i];
        int ends = series.has_time || series.idle >= expiry[series.kind];
        restart(&series);
        if (ends) {
            free(series.key);
            continue;
        }
        series.idle++;
        on->series[kept++] = series;
    }
    on->count = kept;
    memset(on->slots, 0, on->slot_count * sizeof *on->slots);
    for (uint32_t i = 0; i < kept; i++) put_slot(on, i);
    return taken;
}
