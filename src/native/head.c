/* The structs of a partition as types of Python, and what is kept of it for the journal.
 *
 * Python's classes extend these types, or have an object of them; see head.h.
 */
#include "head.h"

#include <stddef.h>
#include <structmember.h>

PyTypeObject *tm_copies_type, *tm_file_type, *tm_segment_type, *tm_producer_type, *tm_head_type,
    *tm_target_type;

tm_head *tm_as_head(PyObject *object)
{
    tm_head *head = TM_AS(tm_head, object);
    if (!head) PyErr_SetString(PyExc_TypeError, "not the head of a partition");
    return head;
}

/* --- copies for the journal -------------------------------------------------------------------- */

static Py_ssize_t length(PyObject *object) { return object ? PyObject_Size(object) : 0; }

int tm_fits_journal(const tm_head *head)
{
    const tm_segment *segment = TM_AS(tm_segment, head->segment);
    return head->copied > 0 && head->copied_from >= 0 && !head->is_offline &&
           head->high_watermark > 0 && !head->new_folder && segment && segment->named &&
           length(head->topic_id) > 0 && length(head->closed) == 0;
}

int tm_drop_copies(tm_head *head, int64_t from_offset)
{
    tm_copies *memory = TM_AS(tm_copies, head->memory);
    PyObject *none = head->copied || !head->copies ? PyList_New(0) : NULL;
    if (!none && (head->copied || !head->copies)) return -1;
    if (memory) memory->used -= head->copied;
    if (none) tm_replace(&head->copies, none);
    head->copied = 0;
    head->copied_from = from_offset;
    return 0;
}

int tm_keep(tm_head *head, const struct iovec *parts, Py_ssize_t count, int64_t size)
{
    tm_copies *memory = TM_AS(tm_copies, head->memory);
    if (head->copied_from < 0) return 0;
    if (head->copied + size > head->copied_limit) {
        head->copied_limit = TM_STREAM_BYTES;
        return tm_drop_copies(head, -1);
    }
    if (!memory || memory->used + size > memory->limit) return tm_drop_copies(head, -1);
    if (!head->copies && tm_drop_copies(head, head->copied_from) < 0) return -1;
    PyObject *copy = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!copy) { /* the file has the bytes */
        PyErr_Clear();
        return tm_drop_copies(head, -1);
    }
    char *to = PyBytes_AsString(copy);
    for (Py_ssize_t i = 0; i < count; i++) {
        memcpy(to, parts[i].iov_base, parts[i].iov_len);
        to += parts[i].iov_len;
    }
    int failed = PyList_Append(head->copies, copy);
    Py_DECREF(copy);
    if (failed) return -1;
    head->copied += size;
    memory->used += size;
    return 0;
}

static PyObject *head_drop_copies(PyObject *self, PyObject *args)
{
    long long from_offset = -1;
    if (!PyArg_ParseTuple(args, "|L:drop_copies", &from_offset)) return NULL;
    if (tm_drop_copies((tm_head *)self, from_offset) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *head_fits_journal(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyBool_FromLong(tm_fits_journal((tm_head *)self));
}

static PyObject *producer_add(PyObject *self, PyObject *args)
{
    long long first_sequence, last_offset, delta, timestamp;
    if (!PyArg_ParseTuple(args, "LLLL:add", &first_sequence, &last_offset, &delta, &timestamp) ||
        tm_producer_add((tm_producer *)self, first_sequence, last_offset, delta, timestamp) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* --- the types ----------------------------------------------------------------------------------- */

TM_OBJECTS(tm_segment, 3)
TM_OBJECTS(tm_producer, 1)
TM_OBJECTS(tm_head, 11)
TM_OBJECTS(tm_target, 7)

static PyObject *file_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *file = PyType_GenericNew(type, args, kwargs);
    if (file) ((tm_file *)file)->fd = -1;
    return file;
}

#define MEMBER(kind, type, name) {#name, type, offsetof(kind, name), 0, NULL}
#define END {NULL, 0, 0, 0, NULL}

static PyMemberDef copies_members[] = {
    MEMBER(tm_copies, T_LONGLONG, used), MEMBER(tm_copies, T_LONGLONG, limit), END};

static PyMemberDef file_members[] = {
    MEMBER(tm_file, T_LONGLONG, size),  MEMBER(tm_file, T_INT, fd),
    MEMBER(tm_file, T_BOOL, dirty),     MEMBER(tm_file, T_BOOL, broken),
    MEMBER(tm_file, T_BOOL, retired),   MEMBER(tm_file, T_BOOL, releasing),
    MEMBER(tm_file, T_BOOL, used),      END};

static PyMemberDef segment_members[] = {
    MEMBER(tm_segment, T_OBJECT, log_file),      MEMBER(tm_segment, T_OBJECT, table),
    MEMBER(tm_segment, T_OBJECT, first_timestamp), MEMBER(tm_segment, T_LONGLONG, base_offset),
    MEMBER(tm_segment, T_LONGLONG, size),        MEMBER(tm_segment, T_LONGLONG, end_offset),
    MEMBER(tm_segment, T_LONGLONG, max_timestamp), MEMBER(tm_segment, T_LONGLONG, created_ms),
    MEMBER(tm_segment, T_BOOL, named), END};

static PyMemberDef producer_members[] = {
    MEMBER(tm_producer, T_OBJECT, batches),
    MEMBER(tm_producer, T_LONGLONG, epoch),
    MEMBER(tm_producer, T_LONGLONG, known_sequences),
    MEMBER(tm_producer, T_LONGLONG, last_offset),
    MEMBER(tm_producer, T_LONGLONG, last_timestamp_ms),
    MEMBER(tm_producer, T_LONGLONG, txn_first_offset),
    END};

static PyMemberDef head_members[] = {
    MEMBER(tm_head, T_OBJECT, segment),          MEMBER(tm_head, T_OBJECT, end_segment),
    MEMBER(tm_head, T_OBJECT, config),           MEMBER(tm_head, T_OBJECT, copies),
    MEMBER(tm_head, T_OBJECT, closed),           MEMBER(tm_head, T_OBJECT, topic_id),
    MEMBER(tm_head, T_OBJECT, memory),           MEMBER(tm_head, T_OBJECT, producers),
    MEMBER(tm_head, T_OBJECT, refused),          MEMBER(tm_head, T_OBJECT, ended),
    MEMBER(tm_head, T_OBJECT, settle),           MEMBER(tm_head, T_LONGLONG, partition),
    MEMBER(tm_head, T_LONGLONG, start_offset),   MEMBER(tm_head, T_LONGLONG, end_offset),
    MEMBER(tm_head, T_LONGLONG, leader_epoch),   MEMBER(tm_head, T_LONGLONG, bytes_since),
    MEMBER(tm_head, T_LONGLONG, high_watermark), MEMBER(tm_head, T_LONGLONG, end_position),
    MEMBER(tm_head, T_LONGLONG, copied),         MEMBER(tm_head, T_LONGLONG, copied_from),
    MEMBER(tm_head, T_LONGLONG, copied_limit),   MEMBER(tm_head, T_LONGLONG, segment_bytes),
    MEMBER(tm_head, T_LONGLONG, segment_ms),     MEMBER(tm_head, T_LONGLONG, index_bytes),
    MEMBER(tm_head, T_LONGLONG, index_interval), MEMBER(tm_head, T_BOOL, changed),
    MEMBER(tm_head, T_BOOL, is_offline),         MEMBER(tm_head, T_BOOL, new_folder),
    END};

static PyMemberDef target_members[] = {
    MEMBER(tm_target, T_OBJECT, tp),     MEMBER(tm_target, T_OBJECT, topic_id),
    MEMBER(tm_target, T_OBJECT, log),    MEMBER(tm_target, T_OBJECT, head),
    MEMBER(tm_target, T_OBJECT, appender), MEMBER(tm_target, T_OBJECT, config),
    MEMBER(tm_target, T_OBJECT, limits), END};

static PyMethodDef producer_methods[] = {
    {"add", producer_add, METH_VARARGS, "Add the next batch of the epoch."},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef head_methods[] = {
    {"drop_copies", head_drop_copies, METH_VARARGS, "Drop the copies for the journal."},
    {"fits_journal", head_fits_journal, METH_NOARGS,
     "Return whether the journal can take what is unsynced."},
    {NULL, NULL, 0, NULL},
};

#define FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE)
#define OBJECT_SLOTS(kind)                                                                       \
    {Py_tp_traverse, kind##_traverse}, {Py_tp_clear, kind##_clear}, {Py_tp_dealloc, kind##_dealloc}

static int add_type(PyObject *module, PyTypeObject **to, const char *name, size_t size,
                    unsigned int flags, PyType_Slot *slots)
{
    PyType_Spec spec = {name, (int)size, 0, flags, slots};
    return tm_add_type(module, &spec, to);
}

int tm_add_heads(PyObject *module)
{
    PyType_Slot copies[] = {{Py_tp_members, copies_members}, {Py_tp_new, PyType_GenericNew}, {0, NULL}};
    PyType_Slot file[] = {{Py_tp_members, file_members}, {Py_tp_new, file_new}, {0, NULL}};
    PyType_Slot segment[] = {{Py_tp_members, segment_members}, {Py_tp_new, PyType_GenericNew},
                             OBJECT_SLOTS(tm_segment), {0, NULL}};
    PyType_Slot producer[] = {{Py_tp_members, producer_members}, {Py_tp_methods, producer_methods},
                              {Py_tp_new, PyType_GenericNew},
                              OBJECT_SLOTS(tm_producer), {0, NULL}};
    PyType_Slot head[] = {{Py_tp_members, head_members}, {Py_tp_methods, head_methods},
                          {Py_tp_new, PyType_GenericNew}, OBJECT_SLOTS(tm_head), {0, NULL}};
    PyType_Slot target[] = {{Py_tp_members, target_members}, {Py_tp_new, PyType_GenericNew},
                            OBJECT_SLOTS(tm_target), {0, NULL}};
    unsigned int collected = FLAGS | Py_TPFLAGS_HAVE_GC;
#define ADD(kind, name, flags, slots) \
    add_type(module, &tm_##kind##_type, "tidemill._native." name, sizeof(tm_##kind), flags, slots)
    return ADD(copies, "CopiesFields", FLAGS, copies) < 0 || ADD(file, "FileFields", FLAGS, file) < 0 ||
                   ADD(segment, "SegmentFields", collected, segment) < 0 ||
                   ADD(producer, "ProducerFields", collected, producer) < 0 ||
                   ADD(head, "Head", collected, head) < 0 ||
                   ADD(target, "TargetFields", collected, target) < 0 ||
                   PyModule_AddIntConstant(module, "LOG_BYTES", TM_LOG_BYTES) < 0 ||
                   PyModule_AddIntConstant(module, "STREAM_BYTES", TM_STREAM_BYTES) < 0 ||
                   PyModule_AddIntConstant(module, "WINDOW", TM_WINDOW) < 0
               ? -1
               : 0;
}
