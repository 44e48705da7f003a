/* Parses values: each becomes a row, or is refused for a reason.
 *
 * A refused value leaves nothing in the columns. docs/json-values.md has the rules.
 */
#include "json.h"
#include <string.h>

static json_status add_problem(json_rows *rows, json_problem problem) {
    json_status status = json_reserve(&rows->scan, &rows->problems, sizeof problem);
    if (status) return status;
    memcpy(rows->problems.at + rows->problems.length, &problem, sizeof problem);
    rows->problems.length += sizeof problem;
    return JSON_OK;
}

/* Add the reason why a value is refused as a whole. */
json_status json_refuse(json_rows *rows, int64_t row, json_reason reason) {
    return add_problem(rows, (json_problem){row, reason, 0, 0, 0});
}

/* Note why a field refuses its value. Only the first of each column counts. */
static void note(json_rows *rows, json_reason reason, int number, const uint8_t *start,
                 const uint8_t *end) {
    json_problem *found = &rows->found[rows->plan->nodes[number].column];
    if (found->row >= 0) return;
    found->row = 0;
    found->reason = reason;
    found->node = number;
    found->start = start - rows->data;
    found->end = end - rows->data;
    rows->founds++;
}

/* Return how many values a top-level column has before the current row. */
static size_t before(const json_rows *rows, int column) {
    return rows->check || rows->dropped[column] ? 0 : rows->rows;
}

/* Read the value of a column's field. A value of a wrong type is noted and skipped. */
static json_status read_column(json_rows *rows, int column, const uint8_t **position) {
    int number = rows->plan->nodes[0].child[column];
    size_t length = before(rows, column);
    const uint8_t *start = *position, *at = start;
    if (rows->columns[number].length > length) {
        json_truncate(rows->plan, rows->columns, number, length);
    }
    json_status status = json_read_value(rows, number, &at, 1);
    if (status == JSON_WRONG || status == JSON_OTHER_CASE) {
        json_status cause = status;
        at = start;
        status = json_skip(&rows->scan, &at, 1);
        if (status) return status;
        json_truncate(rows->plan, rows->columns, number, length);
        status = json_append_null(&rows->scan, rows->plan, rows->columns, number);
        if (cause == JSON_WRONG) {
            note(rows, JSON_REASON_TYPE, number, start, at);
        } else {
            note(rows, JSON_REASON_CASE, rows->case_node, rows->case_start, rows->case_end);
        }
    }
    *position = at;
    return status;
}

/* Give the columns without a field a null, or note a field whose name differs only in case. */
static json_status complete(json_rows *rows, const uint8_t *object, bool others) {
    const json_node *row = &rows->plan->nodes[0];
    for (int k = 0; k < row->children; k++) {
        json_column *column = &rows->columns[row->child[k]];
        if (column->length > before(rows, k)) continue;
        if (others && column->other_object == object) {
            note(rows, JSON_REASON_CASE, row->child[k], column->other_start, column->other_end);
        }
        json_status status =
            json_append_null(&rows->scan, rows->plan, rows->columns, row->child[k]);
        if (status) return status;
    }
    return JSON_OK;
}

static json_status read_row(json_rows *rows, const uint8_t **position) {
    const json_node *row = &rows->plan->nodes[0];
    const uint8_t *at = json_space(*position, rows->scan.end), *object = at;
    bool others = false;
    int expected = 0;
    if (at >= rows->scan.end || *at++ != '{') return JSON_MALFORMED;
    for (bool first = true;; first = false) {
        int child;
        const uint8_t *name_end;
        json_next found = json_next_field(&at, rows->scan.end, first);
        if (found == NEXT_WRONG) return JSON_MALFORMED;
        if (found == NEXT_END) break;
        const uint8_t *name = at;
        json_status status = json_read_name(rows, row, &at, expected, &child, &name_end);
        if (status) return status;
        if (child < 0) {
            others |= json_note_other(rows, row, object, name, name_end);
            status = json_skip(&rows->scan, &at, 1);
        } else {
            expected = child + 1;
            status = read_column(rows, child, &at);
        }
        if (status) return status;
    }
    *position = at;
    return complete(rows, object, others);
}

static void undo(json_rows *rows) {
    const json_node *row = &rows->plan->nodes[0];
    for (int k = 0; k < row->children; k++) {
        json_truncate(rows->plan, rows->columns, row->child[k], before(rows, k));
    }
}

/* Add the reasons of all columns that have one, in order. */
static json_status refuse_columns(json_rows *rows, int64_t row) {
    json_status status = JSON_OK;
    for (int k = 0; k < rows->plan->nodes[0].children && status == JSON_OK; k++) {
        if (rows->found[k].row < 0) continue;
        rows->found[k].row = row;
        status = add_problem(rows, rows->found[k]);
    }
    return status;
}

static bool without_event_time(const json_rows *rows) {
    int column = rows->plan->event_time;
    if (column < 0) return false;
    return !rows->columns[rows->plan->nodes[0].child[column]].valid[before(rows, column)];
}

/* Parse one value to a row of all columns, or add the reasons why it is refused. */
json_status json_row(json_rows *rows, int64_t row, const uint8_t *at, const uint8_t *end,
                     bool *accepted) {
    const uint8_t *start = at;
    const json_node *top = &rows->plan->nodes[0];
    *accepted = false;
    rows->scan.end = end;
    if (rows->founds) {
        for (int k = 0; k < top->children; k++) rows->found[k].row = -1;
        rows->founds = 0;
    }
    json_status status = read_row(rows, &at);
    if (status == JSON_NO_MEMORY || status == JSON_TOO_LARGE) return status;
    bool more = status == JSON_OK && json_space(at, end) != end;
    if (status != JSON_OK || more) {
        undo(rows);
        if (!json_is_utf8(start, end)) return json_refuse(rows, row, JSON_REASON_UTF8);
        return json_refuse(rows, row, more ? JSON_REASON_MORE : JSON_REASON_OBJECT);
    }
    if (rows->founds || without_event_time(rows)) {
        undo(rows);
        if (rows->founds) return refuse_columns(rows, row);
        return json_refuse(rows, row, JSON_REASON_EVENT_TIME);
    }
    *accepted = true;
    rows->rows++;
    if (rows->check) {
        undo(rows);
        return JSON_OK;
    }
    for (int k = 0; k < top->children; k++) {
        if (rows->dropped[k]) json_truncate(rows->plan, rows->columns, top->child[k], 0);
    }
    return JSON_OK;
}
