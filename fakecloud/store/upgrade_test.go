package store_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// A release is a schema version. What one wrote is kept as SQL in testdata,
// written once when the version was made and never again:
//
//	go test ./fakecloud/store -run EveryRelease -update
//
// A dump that is missing is an error, as is one whose schema is not what the
// migrations make of it: a migration that was released must not be edited.
var update = flag.Bool("update", false, "write the dumps of schema versions that have none")

// rows are what a new dump has in its tables; a table without gets a row that is
// made up. Columns are named, since later versions have more.
var rows = []string{
	`INSERT INTO projects (id, name, default_tags, created_at) VALUES ('p-1', 'default', '{"team":"blue"}', 1700000000000), ('p-2', 'other', '{}', 1700000000001)`,
	`INSERT INTO tokens (name, project_id, hash, created_at) VALUES ('ccm', 'p-1', x'00ff10', 1700000000002)`,
	`INSERT INTO resources (id, kind, project_id, name, state, zone, address, address6, network_id, refers_to, first_address, version, due_at, serial, document) VALUES
		('n-1', 'network', 'p-1', 'default', '', '', NULL, NULL, NULL, NULL, NULL, 1, NULL, 1, '{"id":"n-1","project":"p-1","name":"default","cidr":"","default":true,"tags":{},"version":1,"createdAt":"2023-11-14T22:13:20Z","updatedAt":"2023-11-14T22:13:20Z"}'),
		('i-1', 'instance', 'p-1', 'worker-1', 'running', 'nebula-1a', '127.30.16.1', NULL, 'n-1', NULL, NULL, 2, NULL, 2, '{"id":"i-1","project":"p-1","name":"worker-1","region":"nebula-1","zone":"nebula-1a","type":"small","network":"n-1","state":"running","address":"127.30.16.1","secondary":["127.30.16.7","fd00:16::1"],"external":["127.30.64.9"],"tags":{"cluster":"lab"},"version":2,"createdAt":"2023-11-14T22:13:20.003Z","updatedAt":"2023-11-14T22:13:20.004Z"}'),
		('i-2', 'instance', 'p-1', 'worker-2', 'stopping', 'nebula-1b', '127.30.16.2', NULL, 'n-1', NULL, NULL, 3, 1700000000007, 3, '{"id":"i-2","project":"p-1","name":"worker-2","region":"nebula-1","zone":"nebula-1b","type":"small","network":"n-1","state":"stopping","address":"127.30.16.2","tags":{},"version":3,"createdAt":"2023-11-14T22:13:20.005Z","updatedAt":"2023-11-14T22:13:20.006Z"}'),
		('i-3', 'instance', 'p-1', 'worker-1', 'terminated', 'nebula-1a', NULL, NULL, 'n-1', NULL, NULL, 4, NULL, 4, '{"id":"i-3","project":"p-1","name":"worker-1","region":"nebula-1","zone":"nebula-1a","type":"small","network":"n-1","state":"terminated","stateReason":"it''s gone","address":"","tags":{},"version":4,"createdAt":"2023-11-14T22:13:20.008Z","updatedAt":"2023-11-14T22:13:20.009Z"}'),
		('lb-1', 'load-balancer', 'p-1', 'web', 'active', '', '127.30.64.1', 'fd00:30::1', NULL, NULL, NULL, 1, NULL, 5, '{"id":"lb-1","project":"p-1","name":"web","region":"nebula-1","address":"127.30.64.1","address6":"fd00:30::1","state":"active","listeners":[{"protocol":"tcp","port":8080,"targetPort":30080}],"targets":["i-2","i-1"],"scheme":"public","algorithm":"round-robin","drain":1500000000,"tags":{},"version":1,"createdAt":"2023-11-14T22:13:20.01Z","updatedAt":"2023-11-14T22:13:20.011Z"}'),
		('a-1', 'address', 'p-1', 'kept', 'in-use', '', '127.30.64.9', NULL, NULL, 'i-1', NULL, 2, NULL, 6, '{"id":"a-1","project":"p-1","name":"kept","region":"nebula-1","ip":"127.30.64.9","state":"in-use","holder":{"kind":"instance","id":"i-1"},"tags":{},"version":2,"createdAt":"2023-11-14T22:13:20.012Z","updatedAt":"2023-11-14T22:13:20.013Z"}'),
		('r-1', 'route', 'p-1', 'pods-1', 'active', '', NULL, NULL, 'n-1', 'i-1', 183763200, 1, NULL, 7, '{"id":"r-1","project":"p-1","name":"pods-1","network":"n-1","destination":"10.244.1.0/24","instance":"i-1","state":"active","tags":{},"version":1,"createdAt":"2023-11-14T22:13:20.014Z","updatedAt":"2023-11-14T22:13:20.015Z"}')`,
	`INSERT INTO serials (one, last) VALUES (1, 7) ON CONFLICT DO UPDATE SET last = 7`,
	`INSERT INTO events (project_id, time, type, resource, resource_id, name, from_state, to_state, reason, body) VALUES
		('p-1', 1700000000012, 'created', 'instance', 'i-1', 'worker-1', '', 'pending', '', '{}'),
		('p-1', 1700000000013, 'updated', 'instance', 'i-1', 'worker-1', 'pending', 'running', '', '{}')`,
}

// changed are the columns ("table.column") whose values a migration changes on
// purpose, and the tables that it drops.
var changed = map[string]bool{"sqlite_sequence": true, "serials.last": true}

func TestEveryReleaseIsUpgraded(t *testing.T) {
	for v := int64(1); v <= newest(t); v++ {
		t.Run(fmt.Sprint(v), func(t *testing.T) {
			if *update {
				writeDump(t, v)
			}
			path := filepath.Join(t.TempDir(), "cloud.db")
			conn := load(t, path, v)
			made := raw(t, filepath.Join(t.TempDir(), "made.db"))
			migrateTo(t, made, v)
			require.Equal(t, schema(t, made), schema(t, conn),
				"a migration up to %d differs from what was released: undo that, and make the change in a new migration", v)
			before := content(t, conn)
			require.NoError(t, conn.Close())
			for table, has := range before {
				assert.NotEmpty(t, has.rows, "the dump has no row in %s", table)
			}

			s, err := store.Open(t.Context(), path)
			require.NoError(t, err)
			assertUsable(t, s)
			require.NoError(t, s.Close())
			require.NoError(t, store.CheckFile(t.Context(), path))
			upgraded := raw(t, path)
			assertKept(t, before, content(t, upgraded))
			now := raw(t, filepath.Join(t.TempDir(), "now.db"))
			migrateTo(t, now, newest(t))
			assert.Equal(t, schema(t, now), schema(t, upgraded))
		})
	}
}

// Until version 11, the log had one oldest event for all projects.
func TestEventsRemovedBeforeAnUpgradeAreMissed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	conn := load(t, path, 10)
	_, err := conn.ExecContext(t.Context(), "DELETE FROM events WHERE seq = (SELECT min(seq) FROM events)")
	require.NoError(t, err)
	oldest := query(t, conn, "SELECT min(seq) FROM events")[0]
	require.NoError(t, conn.Close())
	first, err := strconv.ParseInt(oldest, 10, 64)
	require.NoError(t, err)
	s := open(t, path)
	for _, project := range []string{"p-1", "p-2", ""} {
		_, err := s.EventsAfter(t.Context(), project, first-2, 10)
		require.ErrorIs(t, err, store.ErrEventsExpired, "project %q", project)
		_, err = s.EventsAfter(t.Context(), project, first-1, 10)
		require.NoError(t, err, "project %q", project)
	}
}

// A backup of any release can be restored.
func TestEveryReleaseIsRestored(t *testing.T) {
	data := filepath.Join(t.TempDir(), "cloud.db")
	for v := int64(1); v <= newest(t); v++ {
		path := filepath.Join(t.TempDir(), "backup.db")
		require.NoError(t, load(t, path, v).Close())
		require.NoError(t, store.Restore(t.Context(), data, path))
		s := open(t, data)
		assertUsable(t, s)
		require.NoError(t, s.Close())
	}
}

func TestMigrationsCanBeUndone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	conn := load(t, path, newest(t))
	_, err := migrationsOf(t, conn).DownTo(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	assertUsable(t, open(t, path))
}

// An error at the commit would be that of every change in it.
func TestNoConstraintIsDeferred(t *testing.T) {
	conn := raw(t, filepath.Join(t.TempDir(), "cloud.db"))
	migrateTo(t, conn, newest(t))
	assert.NotContains(t, strings.ToUpper(schema(t, conn)), "DEFERRABLE")
}

// assertUsable reads and writes what every release has had.
func assertUsable(t *testing.T, s *store.Store) {
	t.Helper()
	ctx := t.Context()
	var after int64
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
		in, err := tx.GetResource(ctx, db.GetResourceParams{ID: "i-1", Kind: "instance"})
		require.NoError(t, err)
		assert.Contains(t, in.Document, `"name":"worker-1"`)
		lb, err := tx.GetResource(ctx, db.GetResourceParams{ID: "lb-1", Kind: "load-balancer"})
		require.NoError(t, err)
		assert.Contains(t, lb.Document, `"address":"127.30.64.1"`)
		seqs, err := tx.Strings(ctx, "SELECT seq FROM sqlite_sequence WHERE name = 'events'")
		require.NoError(t, err)
		_, err = fmt.Sscan(seqs[0], &after)
		require.NoError(t, err)
		return errors.Join(addProject(ctx, tx, "p"), addInstance(ctx, tx, 7))
	}))
	b, err := s.EventsAfter(ctx, "p", after, 10)
	require.NoError(t, err)
	assert.Len(t, b.Events, 1)
}

// assertKept compares rows by the columns that both versions have, in tables or views.
func assertKept(t *testing.T, before, after map[string]table) {
	t.Helper()
	for name, old := range before {
		if changed[name] {
			continue
		}
		now, ok := after[name]
		var both []string
		for _, c := range old.columns {
			if slices.Contains(now.columns, c) && !changed[name+"."+c] {
				both = append(both, c)
			}
		}
		if assert.True(t, ok, "table %s is gone", name) && assert.NotEmpty(t, both, name) {
			assert.Subset(t, now.only(both), old.only(both), name)
		}
	}
}

func raw(t *testing.T, path string) *sql.DB {
	t.Helper()
	conn, err := sql.Open("sqlite3", path)
	require.NoError(t, err)
	conn.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = conn.Close() }) // Some tests have closed it.
	return conn
}

func migrationsOf(t *testing.T, conn *sql.DB) *goose.Provider {
	t.Helper()
	p, err := goose.NewProvider(
		goose.DialectSQLite3, conn, os.DirFS("migrations"), goose.WithDisableGlobalRegistry(true),
	)
	require.NoError(t, err)
	return p
}

func migrateTo(t *testing.T, conn *sql.DB, v int64) {
	t.Helper()
	_, err := migrationsOf(t, conn).UpTo(t.Context(), v)
	require.NoError(t, err)
}

func newest(t *testing.T) int64 {
	t.Helper()
	sources := migrationsOf(t, raw(t, store.Memory)).ListSources()
	return sources[len(sources)-1].Version
}

func dumpOf(v int64) string { return filepath.Join("testdata", fmt.Sprintf("%05d.sql", v)) }

// load makes a database of a dump.
func load(t *testing.T, path string, v int64) *sql.DB {
	t.Helper()
	text, err := os.ReadFile(dumpOf(v))
	require.NoError(t, err, "schema version %d has no dump: run go test ./fakecloud/store -run EveryRelease -update", v)
	conn := raw(t, path)
	_, err = conn.ExecContext(t.Context(), string(text))
	require.NoError(t, err)
	if v >= 4 && v < 7 {
		// The dumps give two resources the same ID, which no release did.
		_, err = conn.ExecContext(t.Context(), "UPDATE addresses SET id = 'a-1' WHERE id = '{}'")
		require.NoError(t, err)
	}
	return conn
}

// schema is all that a migration can have made, in the order of its making, but
// triggers last.
func schema(t *testing.T, conn *sql.DB) string {
	t.Helper()
	return made(t, conn, "type <> 'trigger'") + made(t, conn, "type = 'trigger'")
}

func made(t *testing.T, conn *sql.DB, what string) string {
	t.Helper()
	all := query(
		t, conn, "SELECT sql || ';' FROM sqlite_schema WHERE name NOT LIKE 'sqlite%' AND "+what+" ORDER BY rowid",
	)
	return strings.Join(append(all, ""), "\n")
}

// table is what is in one, each value as SQL.
type table struct {
	columns []string
	rows    [][]string
}

// only are the rows without other columns.
func (one table) only(columns []string) (out []string) {
	for _, row := range one.rows {
		var values []string
		for _, c := range columns {
			values = append(values, c+"="+row[slices.Index(one.columns, c)])
		}
		out = append(out, strings.Join(values, " "))
	}
	return out
}

func content(t *testing.T, conn *sql.DB) map[string]table {
	t.Helper()
	out := map[string]table{}
	for _, name := range query(t, conn, "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')") {
		columns := query(t, conn, "SELECT name FROM pragma_table_info('"+name+"') ORDER BY cid")
		one := table{columns: columns}
		quoted := "quote(" + strings.Join(columns, ") || char(31) || quote(") + ")"
		if len(query(t, conn, "SELECT 1 FROM sqlite_schema WHERE type = 'view' AND name = '"+name+"'")) > 0 {
			// Views show the times of a document, and tables have Unix milliseconds.
			for _, c := range []string{"created_at", "updated_at"} {
				quoted = strings.Replace(
					quoted, c, "CAST(round(unixepoch("+c+", 'subsec') * 1000) AS INTEGER)", 1,
				)
			}
		}
		for _, row := range query(t, conn, "SELECT "+quoted+" FROM "+name+" ORDER BY 1") {
			one.rows = append(one.rows, strings.Split(row, "\x1f"))
		}
		out[name] = one
	}
	return out
}

func query(t *testing.T, conn *sql.DB, text string) (out []string) {
	t.Helper()
	got, err := conn.QueryContext(context.WithoutCancel(t.Context()), text)
	require.NoError(t, err)
	defer func() { require.NoError(t, got.Close()) }()
	for got.Next() {
		var s string
		require.NoError(t, got.Scan(&s))
		out = append(out, s)
	}
	require.NoError(t, got.Err())
	return out
}

// writeDump makes the dump of a version that has none.
func writeDump(t *testing.T, v int64) {
	t.Helper()
	if _, err := os.Stat(dumpOf(v)); err == nil {
		return
	}
	conn := raw(t, filepath.Join(t.TempDir(), "new.db"))
	migrateTo(t, conn, v)
	tables := query(
		t, conn, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY rowid",
	)
	for _, name := range tables {
		for _, insert := range rows {
			if strings.HasPrefix(insert, "INSERT INTO "+name+" ") {
				_, err := conn.ExecContext(t.Context(), insert)
				require.NoError(t, err)
			}
		}
		if len(query(t, conn, "SELECT 1 FROM "+name)) == 0 {
			makeUp(t, conn, name)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "-- What a fakecloud of schema version %d wrote. Never edited: see upgrade_test.go.\n\n", v)
	b.WriteString(made(t, conn, "type <> 'trigger'"))
	has := content(t, conn)
	for _, name := range append(tables, "sqlite_sequence") {
		fmt.Fprintln(&b)
		if name == "sqlite_sequence" {
			fmt.Fprintln(&b, "DELETE FROM sqlite_sequence;")
		}
		for _, r := range has[name].rows {
			fmt.Fprintf(
				&b, "INSERT INTO %s (%s) VALUES (%s);\n", name, strings.Join(has[name].columns, ", "),
				strings.Join(r, ", "),
			)
		}
	}
	b.WriteString(made(t, conn, "type = 'trigger'")) // They would act on the rows.
	require.NoError(t, os.WriteFile(dumpOf(v), []byte(b.String()), 0o644))
}

// makeUp inserts a row that fits the columns' types and references.
func makeUp(t *testing.T, conn *sql.DB, name string) {
	t.Helper()
	columns := query(t, conn, "SELECT name FROM pragma_table_info('"+name+"') ORDER BY cid")
	values := query(t, conn, `SELECT coalesce(
			(SELECT '(SELECT ' || f."to" || ' FROM ' || f."table" || ' LIMIT 1)' FROM pragma_foreign_key_list('`+name+
		`') AS f WHERE f."from" = c.name),
			CASE c.type WHEN 'INTEGER' THEN '1' WHEN 'REAL' THEN '1.0' WHEN 'BLOB' THEN 'x''01''' ELSE '''{}''' END)
		FROM pragma_table_info('`+name+`') AS c ORDER BY c.cid`)
	_, err := conn.ExecContext(
		t.Context(),
		fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", name, strings.Join(columns, ", "), strings.Join(values, ", ")),
	)
	require.NoError(t, err, "table %s needs a row in rows", name)
}
