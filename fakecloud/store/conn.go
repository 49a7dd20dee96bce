package store

import (
	"context"
	"database/sql"

	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// maxStatements bounds the prepared statements that the driver keeps for each
// connection: more than there are queries, so that each is compiled once.
const maxStatements = "512"

// conn is a connection that is one user's at a time, and does the generated
// queries' work. It knows no cancellation: interrupted, SQLite undoes the
// transaction, which others may share; and a read is over before its caller
// can be gone.
type conn struct{ sql *sql.Conn }

var _ db.DBTX = conn{}

// pinConn takes a connection out of the pool for good, and sets it up.
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

// run executes a statement that takes and gives nothing, such as BEGIN.
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
