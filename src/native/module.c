/* The compiled part of tidemill: the module tidemill._native.
 *
 * Each other file in this folder implements functions for one purpose and declares them in native.h.
 * All of them take bytes from outside, so every length is checked before it is used, in slices that
 * the caller bounds, and a fault is reported with its position. Only append.c, journal.c and sync.c
 * write to files or sync them, only send.c writes to a socket, and only statsd.c reads from one. Python
 * has opened them.
 */
#include "native.h"

static PyMethodDef methods[] = {
    {"walk_records", tm_py_walk_records, METH_VARARGS, NULL},
    {"read_produce", tm_py_read_produce, METH_VARARGS, "Decode a Produce request."},
    {"encode_produced", tm_py_encode_produced, METH_VARARGS,
     "Encode the responses to Produce requests."},
    {"check_batch", tm_py_check_batch, METH_VARARGS,
     "Check an ordinary batch of a client; return None for another one."},
    {"read_run", tm_py_read_run, METH_O,
     "Decode and check the ordinary Produce requests at the front of a list."},
    {"prepare_producers", tm_py_prepare_producers, METH_O,
     "Give the type of a batch in the state of a producer."},
    {"admit_run", tm_py_admit_run, METH_VARARGS,
     "Return how much of a run can be appended as it is."},
    {"append", tm_py_append, METH_VARARGS, "Append batches to one log, all or none."},
    {"make_room", tm_py_make_room, METH_VARARGS,
     "Start a new segment if a batch does not fit into the active one."},
    {"append_run", tm_py_append_run, METH_VARARGS,
     "Append a run of checked batches; return how many were appended to each log."},
    {"take_pieces", tm_py_take_pieces, METH_VARARGS,
     "Return the unsynced batches of logs for the journal."},
    {"encode_pieces", tm_py_encode_pieces, METH_O,
     "Return the buffers of pieces, as an entry of the journal has them."},
    {"promised_ends", tm_py_promised_ends, METH_O,
     "Return topic ids, partitions and high watermarks of logs."},
    {"finish_pieces", tm_py_finish_pieces, METH_VARARGS,
     "Raise the high watermarks of logs to the ends of their pieces."},
    {"scan_batches", tm_py_scan_batches, METH_O, "Return the end of the complete record batches."},
    {"send_parts", tm_py_send_parts, METH_VARARGS,
     "Send buffers and ranges of files; return the sent bytes and what ended the call."},
    {"scan_pgoutput", tm_py_scan_pgoutput, METH_VARARGS,
     "Return how many messages of pgoutput are complete rows."},
    {"encode_pgoutput", tm_py_encode_pgoutput, METH_VARARGS,
     "Encode rows of pgoutput to records."},
    {"encode_rows", tm_py_encode_rows, METH_VARARGS, "Encode tuples of a snapshot."},
    {"encode_copy", tm_py_encode_copy, METH_VARARGS, "Encode lines of PostgreSQL's COPY."},
    {"encode_changelog", tm_py_encode_changelog, METH_VARARGS,
     "Encode rows of SQLite's change log to records."},
    {"split_packets", tm_py_split_packets, METH_VARARGS,
     "Split received bytes into the packets of MariaDB's protocol."},
    {"scan_binlog", tm_py_scan_binlog, METH_VARARGS,
     "Return how many events of a binary log are complete rows."},
    {"encode_binlog", tm_py_encode_binlog, METH_VARARGS,
     "Encode rows of a binary log to records."},
    {NULL, NULL, 0, NULL},
};

static int add_types(PyObject *module)
{
    tm_prepare_crc32c();
    if (PyModule_AddIntConstant(module, "SOURCES", TM_SOURCES) < 0) return -1;
    if (tm_add_heads(module) < 0 || tm_add_index(module) < 0) return -1;
    if (tm_add_block(module) < 0) return -1;
    if (tm_add_decoder(module) < 0) return -1;
    if (tm_add_entry_thread(module) < 0) return -1;
    if (tm_add_sync_thread(module) < 0) return -1;
    if (tm_add_json_parser(module) < 0) return -1;
    if (tm_add_record_encoder(module) < 0) return -1;
    if (tm_add_change_encoder(module) < 0) return -1;
    if (tm_add_statsd(module) < 0) return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, add_types},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tidemill._native",
    .m_doc = "The compiled part of tidemill. Use it through tidemill.native.",
    .m_size = 0,
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
