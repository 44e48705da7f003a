/* What the files of the extension share. */
#ifndef TIDEMILL_NATIVE_H
#define TIDEMILL_NATIVE_H

/* No format of PyArg_ParseTuple or Py_BuildValue may have a '#': compiled with the headers of Python
 * 3.13, it fails in 3.11, although the interface is the same (see tests/test_native.py). */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

/* The headers of Python 3.12 and 3.13 don't count this reference, because None is immortal there. What
 * they compile can be used by 3.11, where it is not. */
#undef Py_RETURN_NONE
#define Py_RETURN_NONE return Py_NewRef(Py_None)

/* Read a number of up to eight bytes. */
static inline uint64_t tm_big_endian(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value = value << 8 | at[i];
    return value;
}

/* Write a number of up to eight bytes. */
static inline void tm_put_big_endian(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, value >>= 8) at[i] = (uint8_t)value;
}

/* The same for the common sizes, with an instruction of the processor. */
static inline int64_t tm_i64(const uint8_t *at)
{
    uint64_t number;
    memcpy(&number, at, 8);
    return (int64_t)__builtin_bswap64(number);
}
static inline int32_t tm_i32(const uint8_t *at)
{
    uint32_t number;
    memcpy(&number, at, 4);
    return (int32_t)__builtin_bswap32(number);
}
static inline int16_t tm_i16(const uint8_t *at) { return (int16_t)(at[0] << 8 | at[1]); }

/* Read a number of a tuple. Return 0, or -1 with an error. */
static inline int tm_item(PyObject *tuple, Py_ssize_t index, int64_t *to)
{
    PyObject *item = PyTuple_GetItem(tuple, index);
    *to = item ? PyLong_AsLongLong(item) : -1;
    return *to == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Return a new object of a named tuple's type without a call of its Python code.
 *
 * Args: `given` is a tuple that has the tuple of the fields; the reference is taken over. NULL: an
 * error was met before. */
static inline PyObject *tm_new_tuple(PyTypeObject *type, PyObject *given)
{
    if (!given) return NULL;
    PyObject *result = NULL;
    if (type && PyType_IsSubtype(type, &PyTuple_Type)) {
        newfunc make = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
        result = make(type, given, NULL);
    } else {
        PyErr_SetString(PyExc_TypeError, "not the type of a named tuple");
    }
    Py_DECREF(given);
    return result;
}

/* types.c */
/* Create a type and add it to the module; `to` gets it, unless it is NULL. Return 0, or -1. */
int tm_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **to);
/* The same for an ordinary class. */
int tm_add_class(PyObject *module, const char *name, const char *doc, size_t size, newfunc create,
                 destructor release, PyMethodDef *own, PyTypeObject **to);
/* Free an object of such a type; the last step of its deallocation. */
void tm_free_object(PyObject *self);

/* walk.c */
typedef struct {
    size_t end;               /* behind the last record that is right */
    Py_ssize_t index;         /* of the record that comes next */
    int64_t earliest, latest; /* timestamp deltas: the smallest, or 0; the largest, or INT64_MIN */
    Py_ssize_t without_key;
} tm_walked;
/* Check the records from `first` to `last`, up to one that is refused or has many headers. */
tm_walked tm_walk(const uint8_t *data, size_t size, size_t position, Py_ssize_t first,
                  Py_ssize_t last);
PyObject *tm_py_walk_records(PyObject *module, PyObject *args);

/* produce.c */
PyObject *tm_py_read_produce(PyObject *module, PyObject *args);
PyObject *tm_py_check_batch(PyObject *module, PyObject *args);
PyObject *tm_py_read_run(PyObject *module, PyObject *frames);

/* produced.c */
PyObject *tm_py_encode_produced(PyObject *module, PyObject *args);

/* head.c, index.c */
int tm_add_heads(PyObject *module);
int tm_add_index(PyObject *module);

/* admit.c */
PyObject *tm_py_admit_run(PyObject *module, PyObject *args);

/* producers.c */
PyObject *tm_py_prepare_producers(PyObject *module, PyObject *batch);

/* append.c */
PyObject *tm_py_append(PyObject *module, PyObject *args);
PyObject *tm_py_make_room(PyObject *module, PyObject *args);
PyObject *tm_py_append_run(PyObject *module, PyObject *args);

/* crc32c.c */
void tm_prepare_crc32c(void);
uint32_t tm_crc32c(const uint8_t *data, size_t size);

/* rounds.c */
PyObject *tm_py_take_pieces(PyObject *module, PyObject *args);
PyObject *tm_py_encode_pieces(PyObject *module, PyObject *pieces);
PyObject *tm_py_finish_pieces(PyObject *module, PyObject *args);
PyObject *tm_py_promised_ends(PyObject *module, PyObject *heads);

/* journal.c */
int tm_add_entry_thread(PyObject *module);

/* sync.c */
int tm_add_sync_thread(PyObject *module);

/* send.c */
PyObject *tm_py_send_parts(PyObject *module, PyObject *args);

/* block.c: memory that Arrow reads through the buffer protocol. */
typedef struct {
    uint8_t *data;
    size_t size, capacity;
} tm_bytes;
int tm_reserve_more(tm_bytes *to, size_t extra);
static inline int tm_reserve(tm_bytes *to, size_t extra)
{
    return to->capacity - to->size >= extra ? 0 : tm_reserve_more(to, extra);
}
static inline int tm_put(tm_bytes *to, const void *data, size_t size)
{
    if (tm_reserve(to, size) < 0) return -1;
    memcpy(to->data + to->size, data, size);
    to->size += size;
    return 0;
}
PyObject *tm_block(tm_bytes *from);
int tm_add_block(PyObject *module);

/* decoder.c */
int tm_add_decoder(PyObject *module);
PyObject *tm_py_scan_batches(PyObject *module, PyObject *arg);

/* encoder.c */
int tm_add_record_encoder(PyObject *module);
int tm_is_record_encoder(PyObject *object);
/* Append a record; a length of -1 is null. Return 0, 2 if it is too large, or -1 with an error. */
int tm_append_record(PyObject *encoder, const uint8_t *key, int64_t key_length,
                     const uint8_t *value, int64_t value_length, int64_t timestamp);

/* changes.c */
int tm_add_change_encoder(PyObject *module);
PyObject *tm_py_scan_pgoutput(PyObject *module, PyObject *args);
PyObject *tm_py_encode_pgoutput(PyObject *module, PyObject *args);
/* changes_rows.c, changes_copy.c */
PyObject *tm_py_encode_rows(PyObject *module, PyObject *args);
PyObject *tm_py_encode_copy(PyObject *module, PyObject *args);
PyObject *tm_py_encode_changelog(PyObject *module, PyObject *args);

/* binlog.c */
PyObject *tm_py_split_packets(PyObject *module, PyObject *args);
PyObject *tm_py_scan_binlog(PyObject *module, PyObject *args);
PyObject *tm_py_encode_binlog(PyObject *module, PyObject *args);

/* json_type.c */
int tm_add_json_parser(PyObject *module);

/* statsd.c */
int tm_add_statsd(PyObject *module);

#endif
