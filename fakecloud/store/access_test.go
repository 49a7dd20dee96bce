package store_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// A file from before there were roles and networks: its tokens can do what they
// could, its resources are in default networks, and what it has is counted.
func TestAccessOfOlderSchema(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "cloud.db")
	conn, err := sql.Open("sqlite3", path)
	require.NoError(t, err)
	migrations, err := goose.NewProvider(
		goose.DialectSQLite3, conn, os.DirFS("migrations"), goose.WithDisableGlobalRegistry(true),
	)
	require.NoError(t, err)
	_, err = migrations.UpTo(ctx, 3)
	require.NoError(t, err)
	_, err = conn.ExecContext(ctx, `
		INSERT INTO projects VALUES ('p-1', 'one', '{}', 7), ('p-2', 'two', '{}', 8);
		INSERT INTO tokens VALUES ('ccm', 'p-1', x'01', 0);
		INSERT INTO instances VALUES
			('i-1', 'p-1', 'a', 'r', 'z1', 'small', 'running', '', '127.0.0.1', '{}', 1, 0, 0, NULL),
			('i-2', 'p-1', 'b', 'r', 'z2', 'small', 'terminating', '', '127.0.0.2', '{}', 1, 0, 0, NULL),
			('i-3', 'p-1', 'c', 'r', 'z1', 'small', 'terminated', '', NULL, '{}', 1, 0, 0, NULL);
		INSERT INTO routes VALUES ('r-1', 'p-1', 'a', '10.1.2.0/25', 'i-1', 'active', '', '{}', 1, 0, 0)`)
	require.NoError(t, err)
	used := func(tx *store.Tx, project, kind string) int64 {
		room, err := tx.Room(ctx, db.RoomParams{ProjectID: project, Kind: kind, DefaultMax: 9})
		require.NoError(t, err)
		assert.EqualValues(t, 9, room.Max)
		return room.Used
	}
	s := open(t, path)
	require.NoError(t, s.Read(ctx, func(tx *store.Tx) error {
		token, err := tx.GetToken(ctx, "ccm")
		require.NoError(t, err)
		assert.True(t, token.Role == "admin" && token.Origin == "flag" && token.ExpiresAt == nil)
		for query, want := range map[string]string{
			"SELECT id || created_at FROM networks WHERE project_id = 'p-1' AND is_default": "n-11970-01-01T00:00:00.007Z",
			"SELECT network_id FROM instances WHERE id = 'i-3'":                             "n-1",
			"SELECT network_id FROM routes WHERE id = 'r-1'":                                "n-1",
			"SELECT first_address FROM routes WHERE id = 'r-1'":                             fmt.Sprint(10<<24 + 1<<16 + 2<<8),
		} {
			got, err := tx.Strings(ctx, query)
			require.NoError(t, err)
			assert.Equal(t, []string{want}, got, query)
		}
		assert.EqualValues(t, []int64{2, 1, 1, 0, 0, 1}, []int64{
			used(tx, "p-1", "instances"), used(tx, "p-1", "routes"), used(tx, "p-1", "networks"),
			used(tx, "p-1", "load-balancers"),
			used(tx, "p-2", "instances"), used(tx, "p-2", "networks"),
		})
		zones, err := tx.LiveInstancesPerZone(ctx, "p-1")
		assert.Equal(t, []db.LiveInstancesPerZoneRow{{Zone: "z1", Live: 1}}, zones)
		return err
	}))
	require.NoError(t, s.Write(ctx, func(tx *store.Tx) error {
		return errors.Join(
			tx.Exec(ctx, "UPDATE resources SET state = 'terminated' WHERE id = 'i-2'"),
			tx.DeleteResource(ctx, "i-3"), tx.DeleteResource(ctx, "r-1"),
		)
	}))
	require.NoError(t, s.Read(ctx, func(tx *store.Tx) error {
		assert.EqualValues(t, []int64{1, 0}, []int64{used(tx, "p-1", "instances"), used(tx, "p-1", "routes")})
		return nil
	}))
	_, err = migrations.DownTo(ctx, 3)
	require.NoError(t, errors.Join(err, migrations.Close()))
}
