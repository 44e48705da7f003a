/* The series of an interval, by name and tags. See statsd_table.c. */
#ifndef TIDEMILL_STATSD_TABLE_H
#define TIDEMILL_STATSD_TABLE_H

#include "statsd.h"

typedef struct {
    uint64_t hash;
    uint8_t *key;
    uint32_t key_size;
    uint8_t kind;
    uint8_t has_time;
    uint8_t is_fresh;   /* had a sample in this interval */
    uint8_t is_sampled; /* has more values, or members, than it could keep */
    uint32_t idle;      /* intervals without a sample */
    uint64_t seen;      /* values of this interval */
    double total;       /* a counter's sum, a gauge's value, the sum of a timer's values */
    double weight;      /* the sum of 1/rate */
    double low, high, squares;
    double *values;     /* a timer's; for a set, hashes of its members (0: free) */
    uint32_t kept, capacity;
} tm_series;

typedef struct {
    uint64_t lines, malformed[TM_LINE_REASONS], excess, notices, lost_notices, lost_raw;
} tm_counts;

typedef struct {
    tm_parser *parser;
    uint64_t seed[2], random;
    tm_series *series;
    uint32_t count, limit;  /* series */
    uint32_t room;          /* of `series` */
    uint32_t *slots;        /* indexes of series, plus one; 0: free */
    uint32_t slot_count;    /* a power of two */
    uint64_t held, value_limit; /* values and members of all series */
    tm_counts counts;
    uint8_t *sample[TM_LINE_REASONS]; /* the last malformed line of each reason */
    uint32_t sample_size[TM_LINE_REASONS];
    uint8_t *raw, *notices; /* lines for others: as they came; events and service checks */
    size_t raw_size, raw_limit, notices_size, notices_limit;
} tm_table;

#define TM_SAMPLE_SIZE 256 /* bytes of a malformed line that are kept */

int tm_table_prepare(tm_table *on, uint32_t limit, uint64_t value_limit, size_t raw_limit,
                     size_t notices_limit, const uint64_t seed[2]);
void tm_table_dispose(tm_table *on);
/* Take the lines of a packet. */
void tm_table_feed(tm_table *on, tm_text packet);
/* Count a packet that was cut because it was too long. */
void tm_table_cut(tm_table *on, tm_text packet);
/* End the interval: return copies of all series, which the caller frees, and remove those that have
 * been idle for `expiry[kind]` intervals. The copies own the values; a gauge keeps its value. Return
 * NULL without memory; then nothing has changed. */
tm_series *tm_table_take(tm_table *on, const uint32_t expiry[TM_KINDS], uint32_t *count);
void tm_series_free(tm_series *series, uint32_t count);

#endif
