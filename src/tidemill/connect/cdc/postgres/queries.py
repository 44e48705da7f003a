"""The SQL of the questions to the catalog. ``catalog`` fills their places and reads the answers."""

from __future__ import annotations

TREE = """
CASE c.relkind WHEN 'p' THEN (WITH RECURSIVE tree AS (
   SELECT i.inhrelid, i.xmin, {pending} AS pending FROM pg_inherits i WHERE i.inhparent = c.oid
   UNION ALL
   SELECT i.inhrelid, i.xmin, t.pending OR {pending} FROM tree t
     JOIN pg_inherits i ON i.inhparent = t.inhrelid)
 SELECT json_build_array(
     left(md5(string_agg(concat_ws(' ', m.oid, m.relfilenode, t.xmin, t.pending), ','
       ORDER BY m.oid)), 16),
     string_agg(DISTINCT m.relreplident::text, '') FILTER (WHERE m.relkind <> 'p'
       AND NOT t.pending))
   FROM tree t JOIN pg_class m ON m.oid = t.inhrelid) END
"""
"""Return a digest of the partitions of c, and the replica identities of those that have rows.

The digest has the moment when a partition was attached, because its rows can change while it is
detached, and its file, because TRUNCATE of a partition is not in the stream.
"""

TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relkind = 'p', c.relreplident, c.reltuples,
  (SELECT coalesce(json_agg(json_build_array(a.attname, a.attnum, a.atttypid::int8,
      format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated <> '',
      a.atthasdef OR a.atthasmissing OR a.attidentity <> '' OR a.atttypid >= 16384 AND EXISTS
        (SELECT FROM pg_type d
          WHERE d.oid = a.atttypid AND d.typtype = 'd' AND d.typdefault IS NOT NULL),
      a.attstorage, a.attcollation::int8, a.xmin::text::int8) ORDER BY a.attnum), '[]')
     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
  (SELECT json_agg(a.attname ORDER BY k.place) FROM pg_index i,
      LATERAL unnest(i.indkey) WITH ORDINALITY AS k(number, place), pg_attribute a
    WHERE i.indrelid = c.oid AND i.indisprimary AND k.place <= i.indnkeyatts
      AND a.attrelid = c.oid AND a.attnum = k.number),
  (SELECT json_agg(a.attname ORDER BY k.place) FROM pg_index i,
      LATERAL unnest(i.indkey) WITH ORDINALITY AS k(number, place), pg_attribute a
    WHERE i.indrelid = c.oid AND i.indisreplident AND k.place <= i.indnkeyatts
      AND a.attrelid = c.oid AND a.attnum = k.number),
  EXISTS (SELECT FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate),
  coalesce((SELECT (k.oid::int8 << 31) # k.xmin::text::int8 FROM pg_constraint k
    WHERE k.conrelid = c.oid AND k.contype = 'p'), 0),
  c.relfilenode::int8, c.relnatts, (SELECT coalesce(max(a.attnum), 0) FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND a.attisdropped), {tree}
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE {condition} ORDER BY n.nspname, c.relname
"""

FAILING = """
WITH RECURSIVE member (listed, oid) AS (
  SELECT r.prrelid, r.prrelid FROM pg_publication_rel r
    JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s
  UNION ALL
  SELECT m.listed, i.inhrelid FROM member m JOIN pg_class c ON c.oid = m.oid AND c.relkind = 'p'
    JOIN pg_inherits i ON i.inhparent = m.oid)
SELECT DISTINCT m.listed::int8 FROM member m JOIN pg_class c ON c.oid = m.oid
WHERE c.relkind <> 'p' AND CASE c.relreplident
  WHEN 'n' THEN true
  WHEN 'd' THEN NOT EXISTS (SELECT FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate)
  WHEN 'i' THEN NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
  ELSE false END
"""
"""The tables that a publication lists and of which updates and deletes fail.

They, or one of their partitions, have no replica identity.
"""

USER_TABLES = """c.relkind IN ({kinds}) AND c.relpersistence = 'p' {partitions}
AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg\\_%'"""

TYPE = """
SELECT t.typname, t.typtype, t.typcategory, t.typelem::int8, t.typbasetype::int8, t.typdelim,
  t.typcategory = 'A' AND t.typelem <> 0 AND t.typlen = -1 AND
    EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid)
FROM pg_type t WHERE t.oid = %s
"""

CHANGED = """
SELECT c.oid::int8 FROM pg_class c WHERE c.relkind IN ('r', 'p')
  AND (c.xmin::text::int8 - %s) & 4294967295 < 2147483648 AND c.xmin::text::int8 > 2
UNION SELECT a.attrelid::int8 FROM pg_attribute a WHERE a.attnum > 0 AND NOT a.attisdropped
  AND (a.xmin::text::int8 - %s) & 4294967295 < 2147483648 AND a.xmin::text::int8 > 2
UNION SELECT i.indrelid::int8 FROM pg_index i WHERE i.indisprimary
  AND (i.xmin::text::int8 - %s) & 4294967295 < 2147483648 AND i.xmin::text::int8 > 2
UNION SELECT r.prrelid::int8 FROM pg_publication_rel r
    JOIN pg_publication p ON p.oid = r.prpubid AND p.pubname = %s
  WHERE (r.xmin::text::int8 - %s) & 4294967295 < 2147483648 AND r.xmin::text::int8 > 2
"""

CHANGED_LABELS = """
SELECT EXISTS (SELECT FROM pg_enum e
  WHERE (e.xmin::text::int8 - %s) & 4294967295 < 2147483648 AND e.xmin::text::int8 > 2)
"""

USED_TYPES = """
WITH RECURSIVE used (relation, type) AS (
  SELECT a.attrelid, a.atttypid FROM pg_attribute a
    WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
      AND a.atttypid >= 16384
  UNION
  SELECT u.relation, part.type FROM used u JOIN pg_type t ON t.oid = u.type, LATERAL (
    SELECT t.typbasetype WHERE t.typbasetype <> 0
    UNION ALL SELECT t.typelem WHERE t.typelem <> 0
    UNION ALL SELECT a.atttypid FROM pg_attribute a
      WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid{multirange}
  ) AS part (type))
SELECT t.oid::int8, t.oid::regtype::text,
  CASE t.typtype WHEN 'e' THEN
    (SELECT json_object_agg(e.oid::text, concat_ws(' ', e.xmin, e.enumlabel))
      FROM pg_enum e WHERE e.enumtypid = t.oid)
    ELSE (SELECT json_object_agg(a.attnum::text, concat_ws(' ', a.atttypid, a.attisdropped))
      FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0) END,
  array_agg(u.relation::int8), t.typtype = 'c'
FROM used u JOIN pg_type t ON t.oid = u.type WHERE t.typtype IN ('e', 'c') GROUP BY t.oid
"""
