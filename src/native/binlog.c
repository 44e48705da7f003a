/* Finds and encodes rows in the events of the binary log of MariaDB and MySQL.
 *
 * scan_binlog() says how many packets need no decision: they hold statements for people, table maps
 * that are known, or complete rows of known tables. The other ones are left to Python, which also
 * finds the words for what is damaged. Numbers are little-endian.
 *
 * Sources: MariaDB's documentation, "Replication protocol" (packets, event header, TABLE_MAP_EVENT,
 * ROWS_EVENT_V1/V2, ANNOTATE_ROWS_EVENT); MySQL's source documentation, "Rows_event".
 */
#include "changes.h"

#include <string.h>

enum { TABLE_MAP = 19, WRITE_V1 = 23, DELETE_V1 = 25, WRITE_V2 = 30, DELETE_V2 = 32 };
enum { ROWS_QUERY = 29, ANNOTATE = 160 }; /* statements for people: of MySQL, of MariaDB */
enum { PACKET_HEADER = 4, EVENT_HEADER = 20, CHECKSUM = 4, LONGEST_PACKET = 0xFFFFFF };

static inline uint32_t u16(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static inline uint32_t u24(const uint8_t *p) { return u16(p) | (uint32_t)p[2] << 16; }
static inline uint32_t u32(const uint8_t *p) { return u24(p) | (uint32_t)p[3] << 24; }
static inline uint64_t u48(const uint8_t *p) { return u32(p) | (uint64_t)u16(p + 4) << 32; }

/* --- packets ------------------------------------------------------------------------------- */

/* Measure a packet, or a series of packets that belong together. Return the bytes with the headers, 0
 * if the end is not there yet, or -1 if a number is not the next one. */
static Py_ssize_t measure(const uint8_t *data, size_t left, unsigned *number, size_t *content)
{
    size_t at = 0;
    *content = 0;
    for (;;) {
        if (left - at < PACKET_HEADER) return 0;
        size_t length = u24(data + at);
        if (data[at + 3] != (uint8_t)*number) return -1;
        if (length > left - at - PACKET_HEADER) return 0;
        ++*number;
        at += PACKET_HEADER + length;
        *content += length;
        if (length < LONGEST_PACKET) return (Py_ssize_t)at;
    }
}

static PyObject *packet_of(const uint8_t *data, size_t content)
{
    if (content < LONGEST_PACKET)
        return PyBytes_FromStringAndSize((const char *)data + PACKET_HEADER, (Py_ssize_t)content);
    PyObject *packet = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)content);
    char *to = packet ? PyBytes_AsString(packet) : NULL;
    if (to == NULL) return NULL;
    for (size_t length = LONGEST_PACKET; length == LONGEST_PACKET; data += PACKET_HEADER + length) {
        length = u24(data);
        memcpy(to, data + PACKET_HEADER, length);
        to += length;
    }
    return packet;
}

static PyObject *split(const uint8_t *data, size_t size, unsigned number)
{
    size_t at = 0, content;
    PyObject *packets = PyList_New(0);
    while (packets != NULL) {
        unsigned next = number;
        Py_ssize_t whole = measure(data + at, size - at, &next, &content);
        if (whole < 0) PyErr_SetString(PyExc_ValueError, "a packet is out of order");
        if (whole <= 0) break;
        PyObject *packet = packet_of(data + at, content);
        if (packet == NULL || PyList_Append(packets, packet) < 0) {
            Py_XDECREF(packet);
            break;
        }
        Py_DECREF(packet);
        at += (size_t)whole;
        number = next & 0xFF;
    }
    if (packets == NULL || PyErr_Occurred()) {
        Py_XDECREF(packets);
        return NULL;
    }
    return Py_BuildValue("(NnI)", packets, (Py_ssize_t)at, number);
}

/* split_packets(buffer, bytes that are filled, number of the next packet)
 *   -> (packets, bytes that they took, number of the next packet) */
PyObject *tm_py_split_packets(PyObject *module, PyObject *args)
{
    PyObject *from;
    Py_buffer view;
    Py_ssize_t filled;
    unsigned number;
    if (!PyArg_ParseTuple(args, "OnI", &from, &filled, &number)) return NULL;
    if (PyObject_GetBuffer(from, &view, PyBUF_SIMPLE) < 0) return NULL;
    PyObject *found = NULL;
    if (filled < 0 || filled > view.len || number > 0xFF)
        PyErr_SetString(PyExc_ValueError, "invalid size or number");
    else
        found = split(view.buf, (size_t)filled, number);
    PyBuffer_Release(&view);
    return found;
}

/* --- checksums ----------------------------------------------------------------------------- */

/* The CRC-32 of zlib, eight bytes at a time. Source: Kounavis and Berry, "A systematic approach to
 * building high performance software-based CRC generators". */
static uint32_t crc_table[8][256];

static void make_crc_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        crc_table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (int k = 1; k < 8; k++)
            crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 0xFF];
}

static uint32_t crc32(const uint8_t *data, size_t size)
{
    if (!crc_table[0][1]) make_crc_table();
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = crc ^ u32(data), high = u32(data + 4);
        crc = crc_table[7][low & 0xFF] ^ crc_table[6][low >> 8 & 0xFF] ^
              crc_table[5][low >> 16 & 0xFF] ^ crc_table[4][low >> 24] ^
              crc_table[3][high & 0xFF] ^ crc_table[2][high >> 8 & 0xFF] ^
              crc_table[1][high >> 16 & 0xFF] ^ crc_table[0][high >> 24];
    }
    for (; size; data++, size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *data) & 0xFF];
    return ~crc;
}

/* --- events -------------------------------------------------------------------------------- */

typedef struct {
    const uint8_t *body;
    size_t size;
    uint32_t time_s, server, end;
    uint8_t type;
} Event;

/* Take an event from a packet. Return 1, 0 if it is damaged or not an event, or -1 with an error. */
static int take_event(PyObject *packet, int has_checksum, int is_checked, Event *to)
{
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(packet, &bytes, &size) < 0) return -1;
    const uint8_t *data = (const uint8_t *)bytes;
    size_t end = has_checksum ? CHECKSUM : 0;
    if ((size_t)size < EVENT_HEADER + end || data[0] != 0) return 0;
    if (u32(data + 10) != (size_t)size - 1) return 0;
    *to = (Event){data + EVENT_HEADER, (size_t)size - EVENT_HEADER - end, u32(data + 1),
                  u32(data + 6), u32(data + 14), data[5]};
    if (!has_checksum || is_checked) return 1;
    return crc32(data + 1, (size_t)size - 1 - CHECKSUM) == u32(data + size - CHECKSUM);
}

/* Rows of one event. */
typedef struct {
    uint64_t table;
    const uint8_t *rows, *end;
    size_t columns;
    char op;
} Rows;

/* Read a length-encoded number; return 0 if it is not there. */
static int take_length(const uint8_t **at, const uint8_t *end, uint64_t *to)
{
    if (*at >= end) return 0;
    uint8_t first = *(*at)++;
    size_t size = first < 0xFB ? 0 : first == 0xFC ? 2 : first == 0xFD ? 3 : first == 0xFE ? 8 : 9;
    *to = first;
    if (!size) return 1;
    if (size > 8 || (size_t)(end - *at) < size) return 0;
    *to = 0;
    for (size_t i = 0; i < size; i++) *to |= (uint64_t)(*at)[i] << 8 * i;
    *at += size;
    return 1;
}

/* Whether the bitmap of present columns has all of them. */
static int is_full(const uint8_t *bits, size_t columns)
{
    for (size_t i = 0; i < columns / 8; i++)
        if (bits[i] != 0xFF) return 0;
    uint8_t last = (uint8_t)((1u << columns % 8) - 1);
    return (bits[columns / 8 - (columns % 8 ? 0 : 1)] & last) == last;
}

static int is_rows(uint8_t type)
{
    return (type >= WRITE_V1 && type <= DELETE_V1) || (type >= WRITE_V2 && type <= DELETE_V2);
}

/* Take the head of a rows event whose rows have all columns; return 0 if it is another one. */
static int take_rows(const Event *event, Rows *to)
{
    const uint8_t *at = event->body, *end = at + event->size;
    uint64_t columns;
    if (event->size < 8) return 0;
    to->table = u48(at);
    at += 8;
    if (event->type >= WRITE_V2) {
        if (end - at < 2 || u16(at) < 2 || u16(at) > end - at) return 0;
        at += u16(at);
    }
    if (!take_length(&at, end, &columns) || !columns || columns > MOST_COLUMNS) return 0;
    int kind = event->type - (event->type >= WRITE_V2 ? WRITE_V2 : WRITE_V1);
    to->columns = (size_t)columns;
    to->op = "cud"[kind];
    size_t bytes = (to->columns + 7) / 8;
    for (int images = to->op == 'u' ? 2 : 1; images; images--, at += bytes)
        if ((size_t)(end - at) < bytes || !is_full(at, to->columns)) return 0;
    to->rows = at;
    to->end = end;
    return 1;
}

/* Take a row image into `cells` unless it is NULL; return where it ends, NULL if it is cut off.
 * `layout`: a number of 16 bits for each column: its bytes, or minus the bytes of its length. */
static const uint8_t *take_row(const uint8_t *at, const uint8_t *end, const uint8_t *layout,
                               size_t columns, Cell *cells)
{
    const uint8_t *nulls = at;
    if ((size_t)(end - at) < (columns + 7) / 8) return NULL;
    at += (columns + 7) / 8;
    for (size_t i = 0; i < columns; i++, layout += 2) {
        if (nulls[i >> 3] >> (i & 7) & 1) {
            if (cells) cells[i] = (Cell){0};
            continue;
        }
        int16_t width = (int16_t)u16(layout);
        size_t size = (size_t)width;
        if (width < 0) {
            size_t bytes = (size_t)-width;
            if ((size_t)(end - at) < bytes) return NULL;
            size = bytes == 1 ? at[0] : bytes == 2 ? u16(at) : bytes == 3 ? u24(at) : u32(at);
            at += bytes;
        }
        if ((size_t)(end - at) < size) return NULL;
        if (cells) cells[i] = (Cell){.text = at, .size = (Py_ssize_t)size};
        at += size;
    }
    return at;
}

/* --- tables -------------------------------------------------------------------------------- */

/* The last table that was looked up. */
typedef struct {
    uint64_t id;
    PyObject *found; /* borrowed */
} Lookup;

static PyObject *look_up(Lookup *last, PyObject *tables, uint64_t id, PyObject *used)
{
    if (last->found != NULL && last->id == id) return last->found;
    PyObject *number = PyLong_FromUnsignedLongLong(id);
    if (number == NULL) return NULL;
    last->id = id;
    last->found = PyDict_GetItemWithError(tables, number);
    if (last->found != NULL && used != NULL && PyDict_SetItem(used, number, last->found) < 0)
        last->found = NULL;
    Py_DECREF(number);
    return last->found;
}

static int bytes_at(PyObject *tuple, Py_ssize_t place, const uint8_t **data, size_t *size)
{
    char *bytes;
    Py_ssize_t length;
    PyObject *item = PyTuple_GetItem(tuple, place);
    if (item == NULL || PyBytes_AsStringAndSize(item, &bytes, &length) < 0) return -1;
    *data = (const uint8_t *)bytes;
    *size = (size_t)length;
    return 0;
}

/* Whether a layout is one of so many columns, with lengths of one to four bytes. */
static int is_layout(const uint8_t *layout, size_t size, size_t columns)
{
    if (size != 2 * columns) return 0;
    for (size_t i = 0; i < columns; i++)
        if ((int16_t)u16(layout + 2 * i) < -4) return 0;
    return 1;
}

/* --- scanning ------------------------------------------------------------------------------ */

typedef struct {
    PyObject *tables, *used;
    Lookup map, rows;
    long long changes, events, first_s;
} Scan;

/* Whether a table map is the known one of its number; -1 with an error. */
static int is_known_map(Scan *scan, const Event *event)
{
    const uint8_t *body;
    size_t size;
    if (event->size < 6) return 0;
    PyObject *found = look_up(&scan->map, scan->tables, u48(event->body), NULL);
    if (found == NULL) return PyErr_Occurred() ? -1 : 0;
    if (bytes_at(found, 0, &body, &size) < 0) return -1;
    return size == event->size - 6 && memcmp(body, event->body + 6, size) == 0;
}

/* Count the rows of an event; return 0 if Python has to look at it, -1 with an error. */
static int count_rows(Scan *scan, const Event *event)
{
    Rows rows;
    const uint8_t *layout;
    size_t size;
    if (!take_rows(event, &rows)) return 0;
    PyObject *found = look_up(&scan->rows, scan->tables, rows.table, scan->used);
    if (found == NULL) return PyErr_Occurred() ? -1 : 0;
    if (bytes_at(found, 1, &layout, &size) < 0) return -1;
    scan->events++;
    if (!size) return 1; /* the table is not captured */
    long long count = 0;
    if (is_layout(layout, size, rows.columns)) {
        const uint8_t *at = rows.rows;
        while (at != NULL && at < rows.end) {
            at = take_row(at, rows.end, layout, rows.columns, NULL);
            if (at != NULL && rows.op == 'u') at = take_row(at, rows.end, layout, rows.columns, NULL);
            count++;
        }
        if (at != NULL) {
            if (!scan->changes && count) scan->first_s = event->time_s;
            scan->changes += count;
            return 1;
        }
    }
    scan->events--;
    return 0;
}

static int scan_packet(Scan *scan, PyObject *packet, int has_checksum)
{
    Event event;
    int result = take_event(packet, has_checksum, 0, &event);
    if (result <= 0 || event.type == ANNOTATE || event.type == ROWS_QUERY) return result;
    if (event.type == TABLE_MAP) return is_known_map(scan, &event);
    return is_rows(event.type) ? count_rows(scan, &event) : 0;
}

/* scan_binlog(tables, packets, begin, most changes, whether events have checksums)
 *   -> (end, changes, rows events, time of the first change in s, the tables of the rows events)
 * A table: its map without the number, its layout, and more. */
PyObject *tm_py_scan_binlog(PyObject *module, PyObject *args)
{
    Scan scan = {0};
    PyObject *packets;
    Py_ssize_t begin;
    long long most;
    int has_checksum;
    if (!PyArg_ParseTuple(args, "OOnLp", &scan.tables, &packets, &begin, &most, &has_checksum))
        return NULL;
    if (!PyDict_Check(scan.tables) || !PyList_Check(packets) || begin < 0) {
        PyErr_SetString(PyExc_TypeError, "a dict, a list and a place are expected");
        return NULL;
    }
    if ((scan.used = PyDict_New()) == NULL) return NULL;
    Py_ssize_t end = begin;
    for (; end < PyList_Size(packets) && scan.changes < most; end++) {
        PyObject *packet = PyList_GetItem(packets, end);
        int result = packet == NULL ? -1 : scan_packet(&scan, packet, has_checksum);
        if (result < 0) {
            Py_DECREF(scan.used);
            return NULL;
        }
        if (!result) break;
    }
    return Py_BuildValue("(nLLLN)", end, scan.changes, scan.events, scan.first_s, scan.used);
}

/* --- encoding ------------------------------------------------------------------------------ */

typedef struct {
    PyObject *encoders;
    Lookup last;
    Moment moment;
    long long committed_ms;
    const uint8_t *head, *middle;
    size_t head_size, middle_size;
} Encoding;

/* Set the end of the block `source` for a row of an event. */
static int put_source(ChangeEncoder *e, const Encoding *all, const Event *event, long long row)
{
    e->more.size = 0;
    if (tm_put(&e->more, all->head, all->head_size) < 0) return -1;
    if (tm_put_number(&e->more, event->server) < 0) return -1;
    if (tm_put(&e->more, all->middle, all->middle_size) < 0) return -1;
    if (tm_put_number(&e->more, event->end) < 0) return -1;
    if (tm_put(&e->more, ",\"row\":", 7) < 0 || tm_put_number(&e->more, row) < 0) return -1;
    return tm_put(&e->more, "}", 1);
}

static long long encode_rows(ChangeEncoder *e, const Encoding *all, const Event *event,
                             const Rows *rows, const uint8_t *layout)
{
    long long records = 0, row = 0;
    const uint8_t *at = rows->rows;
    for (; at < rows->end; row++) {
        Cell *one = rows->op == 'c' ? e->after : e->before;
        at = take_row(at, rows->end, layout, rows->columns, one);
        if (at != NULL && rows->op == 'u')
            at = take_row(at, rows->end, layout, rows->columns, e->after);
        if (at == NULL) {
            PyErr_SetString(PyExc_ValueError, "invalid row of the binary log");
            return -1;
        }
        if (put_source(e, all, event, row) < 0) return -1;
        int count = tm_put_change(e, rows->op, rows->op == 'c' ? NULL : e->before, 0,
                                  rows->op == 'd' ? NULL : e->after, &all->moment);
        if (count < 0) return -1;
        records += count;
    }
    return records;
}

static long long encode_event(Encoding *all, const Event *event)
{
    Rows rows;
    const uint8_t *layout;
    size_t size;
    PyObject *found = NULL;
    if (take_rows(event, &rows)) found = look_up(&all->last, all->encoders, rows.table, NULL);
    if (found == NULL) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_KeyError, "the table has no encoder");
        return -1;
    }
    if (found == Py_None) return 0; /* the table is not captured */
    PyObject *encoder = PyTuple_GetItem(found, 0);
    ChangeEncoder *e = encoder ? tm_change_encoder(encoder) : NULL;
    if (e == NULL || bytes_at(found, 1, &layout, &size) < 0) return -1;
    if (rows.columns != (size_t)e->count || !is_layout(layout, size, rows.columns)) {
        PyErr_SetString(PyExc_ValueError, "the rows don't fit the encoder");
        return -1;
    }
    all->moment.ts_ms = all->committed_ms ? all->committed_ms : (long long)event->time_s * 1000;
    return encode_rows(e, all, event, &rows, layout);
}

/* encode_binlog(encoders and layouts by table, packets, beginning and middle of the end of the block
 * source, whether events have checksums, time of processing, time of the commit or 0) */
PyObject *tm_py_encode_binlog(PyObject *module, PyObject *args)
{
    Encoding all = {.moment = {.snapshot = "false"}};
    PyObject *packets, *parts;
    int has_checksum;
    if (!PyArg_ParseTuple(args, "OOOpL|L", &all.encoders, &packets, &parts, &has_checksum,
                          &all.moment.stamp_ms, &all.committed_ms))
        return NULL;
    if (!PyDict_Check(all.encoders) || !PyList_Check(packets) || !PyTuple_Check(parts)) {
        PyErr_SetString(PyExc_TypeError, "a dict, a list and a tuple are expected");
        return NULL;
    }
    if (bytes_at(parts, 0, &all.head, &all.head_size) < 0) return NULL;
    if (bytes_at(parts, 1, &all.middle, &all.middle_size) < 0) return NULL;
    long long records = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(packets); i++) {
        Event event;
        PyObject *packet = PyList_GetItem(packets, i);
        int result = packet == NULL ? -1 : take_event(packet, has_checksum, 1, &event);
        if (result == 0) PyErr_SetString(PyExc_ValueError, "invalid event of the binary log");
        if (result <= 0) return NULL;
        if (!is_rows(event.type)) continue;
        Py_INCREF(packet); /* a column's function could change the list */
        long long count = encode_event(&all, &event);
        Py_DECREF(packet);
        if (count < 0) return NULL;
        records += count;
    }
    return PyLong_FromLongLong(records);
}
