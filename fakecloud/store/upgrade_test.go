package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/internal/must"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// What fakecloud wrote under each released schema is kept as SQL in testdata, made by `sqlite3 cloud.db .dump` and
// never edited. 00002 is v0.1.0's.
var releases = []string{"00002", "00013", "00014", "00015"}

// changed are the tables whose content a migration, or the test itself, changes on purpose.
var changed = []string{"sqlite_sequence", "goose_db_version", "serials"}

// So is a backup of any release, when it is restored.
func TestEveryReleaseIsUpgraded(t *testing.T) {
	restored := filepath.Join(t.TempDir(), "restored.db")
	for _, release := range releases {
		path := filepath.Join(t.TempDir(), "cloud.db")
		conn := load(t, path, release)
		before := content(t, conn)
		require.NoError(t, conn.Close())

		require.NoError(t, store.Restore(t.Context(), restored, path))
		for _, file := range []string{restored, path} {
			s := open(t, file)
			assertUsable(t, s)
			require.NoError(t, s.Close())
		}
		require.NoError(t, store.CheckFile(t.Context(), path))
		upgraded := raw(t, path)
		assertKept(t, before, content(t, upgraded))
		newest := load(t, filepath.Join(t.TempDir(), "newest.db"), releases[len(releases)-1])
		assert.Equal(t, schema(t, newest), schema(t, upgraded), "schemas differ after an upgrade of %s", release)
	}
}

// Files that were never released, and those of a newer fakecloud, are left as they were.
func TestUnknownSchemasAreRefused(t *testing.T) {
	for version, by := range map[int]string{3: "unreleased", 12: "unreleased", 16: "newer"} {
		path := filepath.Join(t.TempDir(), "cloud.db")
		conn := load(t, path, "00002")
		_, err := conn.ExecContext(
			t.Context(), "INSERT INTO goose_db_version (version_id, is_applied) VALUES (?, 1)", version,
		)
		require.NoError(t, errors.Join(err, conn.Close()))
		_, err = store.Open(t.Context(), path)
		require.ErrorIs(t, err, store.ErrUnusable)
		require.ErrorContains(t, err, fmt.Sprintf("%s fakecloud (schema %d", by, version))
		assert.Empty(t, query(t, raw(t, path), "SELECT name FROM sqlite_schema WHERE name = 'resources'"))
	}
}

// What is kept as JSON becomes what the API shows.
func TestUpgradeRenamesStoredFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	conn := load(t, path, "00013")
	renamed := map[string]struct{ old, now string }{
		"route": {
			`{"network":"n-1","destination":"10.9.0.0/24","instance":"i-1"}`,
			`{"networkId":"n-1","destination":"10.9.0.0/24","instanceId":"i-1"}`,
		},
		"address": {`{"ip":"127.30.64.7","holder":{"kind":"","id":""}}`, `{"ip":"127.30.64.7"}`},
		"firewall": {
			`{"instances":["i-1"],"rules":[{"protocol":"tcp","firstPort":1,"lastPort":2}]}`,
			`{"instanceIds":["i-1"],"rules":[{"protocol":"tcp","firstPort":1,"lastPort":2}]}`,
		},
	}
	for kind, r := range renamed {
		for _, insert := range []string{
			`INSERT INTO resources (id, kind, project_id, name, state, zone, version, serial, document)
				VALUES ('new-' || ?1, ?1, 'p-1', 'new', '', '', 1, random(), ?2)`,
			`INSERT INTO events (project_id, time, type, resource, resource_id, name, from_state, to_state, reason, body)
				VALUES ('p-1', 1, 'created', ?1, 'new-' || ?1, 'new', '', '', '', ?2)`,
			`INSERT INTO idempotency_keys (project_id, key, fingerprint, expires_at, result)
				VALUES ('p-1', 'new-' || ?1, X'01', 1, ?2)`,
		} {
			must.Do(conn.ExecContext(t.Context(), insert, kind, r.old))(t)
		}
	}
	specs := map[string]string{
		"f-1": `{"match":{"tag":"a"},"effect":{"delay":1500000000,"jitter":2000000,"throttle":{"perSecond":1}}}`,
		"f-2": `{"match":{},"effect":{"status":503,"retryAfter":5000000000},"times":1}`,
		"f-3": `{"match":{},"effect":{"zoneOutage":"nebula-1a"},"scenario":"s-1"}`,
	}
	for id, spec := range specs {
		must.Do(conn.ExecContext(t.Context(), `INSERT INTO faults (id, project_id, spec, created_at, matched, hits, phase)
			VALUES (?, 'p-1', ?, 1, 0, 0, 1)`, id, spec))(t)
	}
	must.Do(conn.ExecContext(t.Context(), "INSERT INTO fault_instances VALUES ('f-3', 'i-1')"))(t)
	require.NoError(t, conn.Close())
	require.NoError(t, open(t, path).Close())
	upgraded := raw(t, path)
	assert.Equal(t, []string{
		`f-1{"match":{"tag":"a"},"effect":{"throttle":{"perSecond":1},"delayMilliseconds":1500,"jitterMilliseconds":2}}`,
		`f-2{"match":{},"effect":{"status":503,"retryAfterSeconds":5},"times":1}`,
	}, query(t, upgraded, "SELECT id || spec FROM faults WHERE id LIKE 'f-%' ORDER BY id"), "nothing of scenarios")
	assert.Empty(t, query(t, upgraded, "SELECT fault_id FROM fault_instances WHERE fault_id = 'f-3'"))
	for kind, r := range renamed {
		for _, stored := range []string{
			"SELECT document FROM resources WHERE id = 'new-", "SELECT body FROM events WHERE resource_id = 'new-",
			"SELECT result FROM idempotency_keys WHERE key = 'new-",
		} {
			assert.JSONEq(t, r.now, query(t, upgraded, stored+kind+"'")[0], stored)
		}
	}
}

// The tokens of v0.1.0 can do what they could, its resources are in default networks, and what it has is counted.
func TestAccessAfterUpgrade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	require.NoError(t, load(t, path, "00002").Close())
	require.NoError(t, open(t, path).Close())
	conn := raw(t, path)
	for statement, want := range map[string][]string{
		"SELECT role || ' ' || origin || ' ' || coalesce(expires_at, 'never') FROM tokens": {"admin flag never"},
		"SELECT id || ' ' || created_at FROM networks WHERE is_default ORDER BY id": {
			"n-1 2023-11-14T22:13:20.000Z", "n-2 2023-11-14T22:13:20.001Z",
		},
		"SELECT DISTINCT network_id FROM instances":                      {"n-1"},
		"SELECT instance_id FROM load_balancer_targets ORDER BY 1":       {"i-1", "i-2"},
		"SELECT targets FROM load_balancers":                             {`["i-2","i-1"]`},
		"SELECT max(serial) = (SELECT last FROM serials) FROM resources": {"1"},
		"SELECT count(DISTINCT serial) = count(*) FROM resources":        {"1"},
		"SELECT project_id || ' ' || kind || ' ' || zone || ' ' || used FROM usage ORDER BY 1": {
			"p-1 instances  2", "p-1 live-instances nebula-1a 1", "p-1 live-instances nebula-1b 1",
			"p-1 load-balancers  1", "p-1 networks  1", "p-2 networks  1",
		},
	} {
		assert.Equal(t, want, query(t, conn, statement), statement)
	}
	must.Do(conn.ExecContext(t.Context(), `UPDATE resources SET document = json_set(document, '$.targets[1]',
		json('{"ip":"127.90.0.9"}')) WHERE kind = 'load-balancer'`))(t)
	assert.Equal(t, []string{`["i-2","127.90.0.9"]`}, query(t, conn, "SELECT targets FROM load_balancers"))
}

// Until v0.1.0, the log had one oldest event for all projects.
func TestEventsRemovedBeforeAnUpgradeAreMissed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cloud.db")
	conn := load(t, path, "00002")
	must.Do(conn.ExecContext(t.Context(), "DELETE FROM events WHERE seq = (SELECT min(seq) FROM events)"))(t)
	oldest := query(t, conn, "SELECT min(seq) FROM events")[0]
	require.NoError(t, conn.Close())
	first := must.Do(strconv.ParseInt(oldest, 10, 64))(t)
	s := open(t, path)
	for _, project := range []string{"p-1", "p-2", ""} {
		_, err := s.EventsAfter(t.Context(), project, first-2, 10)
		require.ErrorIs(t, err, store.ErrEventsExpired, "project %q", project)
		must.Do(s.EventsAfter(t.Context(), project, first-1, 10))(t, "project %q", project)
	}
}

// An error at the commit would be that of every change in it.
func TestNoConstraintIsDeferred(t *testing.T) {
	conn := load(t, filepath.Join(t.TempDir(), "cloud.db"), releases[len(releases)-1])
	for _, statement := range schema(t, conn) {
		assert.NotContains(t, strings.ToUpper(statement), "DEFERRABLE")
	}
}

// assertUsable reads and writes what every release has had.
func assertUsable(t *testing.T, s *store.Store) {
	t.Helper()
	ctx := t.Context()
	var after int64
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
		in := must.Do(tx.GetResource(ctx, db.GetResourceParams{ID: "i-1", Kind: "instance"}))(t)
		assert.Contains(t, in.Document, `"name":"worker-1"`)
		lb := must.Do(tx.GetResource(ctx, db.GetResourceParams{ID: "lb-1", Kind: "load-balancer"}))(t)
		assert.Contains(t, lb.Document, `"address":"127.30.64.1"`)
		seqs := must.Do(tx.Strings(ctx, "SELECT seq FROM sqlite_sequence WHERE name = 'events'"))(t)
		must.Do(fmt.Sscan(seqs[0], &after))(t)
		return errors.Join(addProject(ctx, tx, "p"), addInstance(ctx, tx, 7))
	}))
	assert.Len(t, must.Do(s.EventsAfter(ctx, "p", after, 10))(t).Events, 1)
}

// assertKept compares rows by the columns that both versions have, in tables or views. A document is compared by
// the columns of its view: a migration may rewrite it.
func assertKept(t *testing.T, before, after map[string]table) {
	t.Helper()
	for name, old := range before {
		if slices.Contains(changed, name) {
			continue
		}
		now, ok := after[name]
		var both []string
		for _, c := range old.columns {
			if slices.Contains(now.columns, c) && c != "document" {
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
	conn := must.Do(sql.Open("sqlite3", path))(t)
	conn.SetMaxOpenConns(1)
	t.Cleanup(func() { _ = conn.Close() }) // Some tests have closed it.
	return conn
}

// load makes a database of a dump.
func load(t *testing.T, path, release string) *sql.DB {
	t.Helper()
	text := must.Do(os.ReadFile(filepath.Join("testdata", release+".sql")))(t)
	conn := raw(t, path)
	must.Do(conn.ExecContext(t.Context(), string(text)))(t)
	return conn
}

var commentsAndSpace = regexp.MustCompile(`--[^\n]*|\s+`)

// schema is all that migrations made, whether a table had its columns from the start or later.
func schema(t *testing.T, conn *sql.DB) (statements []string) {
	t.Helper()
	for _, statement := range query(t, conn, "SELECT sql FROM sqlite_schema WHERE sql <> '' ORDER BY type, name") {
		statements = append(statements, commentsAndSpace.ReplaceAllString(statement, ""))
	}
	return statements
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
				quoted = strings.Replace(quoted, c, "CAST(round(unixepoch("+c+", 'subsec') * 1000) AS INTEGER)", 1)
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
	got := must.Do(conn.QueryContext(context.WithoutCancel(t.Context()), text))(t)
	defer func() { require.NoError(t, got.Close()) }()
	for got.Next() {
		var s string
		require.NoError(t, got.Scan(&s))
		out = append(out, s)
	}
	require.NoError(t, got.Err())
	return out
}
