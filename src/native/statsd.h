/* StatsD: what the parser of lines, the table of series and the Python type share.
 *
 * None of these functions needs Python's lock: a thread receives and aggregates without it.
 */
#ifndef TIDEMILL_STATSD_H
#define TIDEMILL_STATSD_H

#include <stddef.h>
#include <stdint.h>

/* The order is that of KINDS in tidemill.direct.statsd.series. */
typedef enum {
    TM_COUNTER,
    TM_GAUGE,
    TM_TIMER,
    TM_HISTOGRAM,
    TM_DISTRIBUTION,
    TM_SET,
    TM_KINDS,
} tm_kind;

/* Why a line is malformed. The order is that of REASONS in tidemill.direct.statsd.series. */
typedef enum {
    TM_LINE_FINE,
    TM_LINE_NO_NAME,
    TM_LINE_NO_VALUE,
    TM_LINE_BAD_NUMBER,
    TM_LINE_NEGATIVE_TIME,
    TM_LINE_NO_TYPE,
    TM_LINE_UNKNOWN_TYPE,
    TM_LINE_BAD_RATE,
    TM_LINE_BAD_TAGS,
    TM_LINE_BAD_TIMESTAMP,
    TM_LINE_TOO_LONG,
    TM_LINE_CUT,
    TM_LINE_REASONS,
} tm_line_reason;

typedef enum { TM_DIALECT_STATSD, TM_DIALECT_DOGSTATSD } tm_dialect;
typedef enum {
    TM_NAME_TAGS_NONE,
    TM_NAME_TAGS_INFLUX,
    TM_NAME_TAGS_LIBRATO,
    TM_NAME_TAGS_SIGNALFX,
    TM_NAME_TAGS_GRAPHITE,
} tm_name_tags;

#define TM_KEY_LIMIT 2048    /* bytes of a series' name, tags and fields */
#define TM_TAG_LIMIT 128     /* tags of a line */
#define TM_VALUE_LIMIT 32768 /* values of a line: more than a packet of 64 KiB can have */

typedef struct {
    const uint8_t *at;
    size_t size;
} tm_text;

/* A parser's place to work in. */
typedef struct {
    tm_dialect dialect;
    tm_name_tags name_tags;
    uint8_t key[TM_KEY_LIMIT]; /* name, tags, container, external data, cardinality, time; '\n' between */
    size_t key_size;
    tm_text tags[TM_TAG_LIMIT];
    size_t tag_count;
    uint8_t text[TM_KEY_LIMIT]; /* tags whose '=' has become ':' */
    size_t text_size;
    double values[TM_VALUE_LIMIT];
} tm_parser;

/* What a line says of one series: values of one kind with one rate, or a member of a set. */
typedef struct {
    tm_kind kind;
    int is_delta; /* a gauge's change */
    int has_time; /* the sample is of the time in the key, and is not part of the interval */
    double rate;  /* > 0, <= 1 */
    const double *values;
    size_t count;
    tm_text member;
} tm_sample;

/* Takes a sample of the series `parser->key`. */
typedef void (*tm_take_sample)(void *table, const tm_parser *parser, const tm_sample *sample);

/* Parse a line without its end. Good parts of a line of etsy's dialect count, whatever the others are:
 * `report` is called for each part that is malformed. */
void tm_parse_line(tm_parser *parser, tm_text line, void *table, tm_take_sample take,
                   void (*report)(void *table, tm_line_reason reason, tm_text line));
/* Return whether a line is an event or a service check of DogStatsD. */
int tm_is_notice(const tm_parser *parser, tm_text line);

#endif
