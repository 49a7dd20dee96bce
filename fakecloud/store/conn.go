package store

import (
	"context"
	"database/sql"

	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// maxStatements bounds how many prepared statements the driver keeps for each connection.
// There are more than queries, so that each query is compiled once.
const maxStatements = "512"

// conn is a connection that has one user at a time. It ignores cancellation: if SQLite is
// interrupted, it undoes the whole transaction, which other writes may share, and reads
// are over quickly anyway.
type conn struct{ sql *sql.Conn }

var _ db.DBTX = conn{}

// pinConn takes a connection out of the pool for good and sets it up.
func pinConn(ctx context.Context, pool *sql.DB, pragmas ...string) (conn, error) {
	c, err := pool.Conn(ctx)
	if err != nil {
		return conn{}, err
	}
	for _, p := range pragmas {
		if _, err := c.ExecContext(ctx, "PRAGMA "+p); err != nil {
			return conn{}, err
		}
	}
	return conn{c}, nil
}

// run executes a statement without parameters and results, such as BEGIN.
func (c conn) run(statement string) error {
	_, err := c.sql.ExecContext(context.Background(), statement)
	return err
}

func (c conn) ExecContext(_ context.Context, query string, args ...any) (sql.Result, error) {
	return c.sql.ExecContext(context.Background(), query, args...)
}

func (c conn) PrepareContext(_ context.Context, query string) (*sql.Stmt, error) {
	return c.sql.PrepareContext(context.Background(), query)
}

func (c conn) QueryContext(_ context.Context, query string, args ...any) (*sql.Rows, error) {
	return c.sql.QueryContext(context.Background(), query, args...)
}

func (c conn) QueryRowContext(_ context.Context, query string, args ...any) *sql.Row {
	return c.sql.QueryRowContext(context.Background(), query, args...)
}
