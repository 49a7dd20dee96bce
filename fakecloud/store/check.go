package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"slices"

	"github.com/pressly/goose/v3"
)

// ErrUnusable means that a file is damaged, of another program or of a newer fakecloud.
var ErrUnusable = errors.New("not a usable database")

func unusableError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnusable, fmt.Errorf(format, args...))
}

var sqliteHeader = []byte("SQLite format 3\x00")

// CheckFile refuses a file that Open or Restore could not use. The error is ErrUnusable if
// the file's content is the cause. The file is only read. Its write-ahead log beside it
// counts as part of it.
func CheckFile(ctx context.Context, path string) error {
	head, err := readHead(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(head, sqliteHeader) {
		return unusableError("its header is not SQLite's")
	}
	if err := checkLog(path + "-wal"); err != nil {
		return err
	}
	// SQLite moves a log's pages to the data file on closing, unless it may not.
	conn, err := sql.Open("sqlite3", fileURI(path)+"?mode=ro&_busy_timeout=10000")
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var verdict string
	if err := conn.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&verdict); err != nil {
		return unusableError("%w", err)
	}
	if verdict != "ok" {
		return unusableError("%s", verdict)
	}
	if err := checkSchema(ctx, conn); err != nil {
		return err
	}
	return checkReferences(ctx, conn)
}

func checkReferences(ctx context.Context, conn *sql.DB) error {
	var table, parent string
	var row sql.NullInt64
	err := conn.QueryRowContext(ctx, `SELECT "table", rowid, parent FROM pragma_foreign_key_check LIMIT 1`).
		Scan(&table, &row, &parent)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return unusableError("%w", err)
	}
	return unusableError("row %d of table %s refers to one that is missing in table %s", row.Int64, table, parent)
}

// checkSchema refuses a schema that no release up to this one has written.
func checkSchema(ctx context.Context, conn *sql.DB) error {
	var ours bool
	if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE name = ?", goose.DefaultTablename).
		Scan(&ours); err != nil {
		return unusableError("%w", err)
	}
	if !ours {
		return unusableError("it is another program's")
	}
	var has int64
	if err := conn.QueryRowContext(ctx, "SELECT max(version_id) FROM "+goose.DefaultTablename).Scan(&has); err != nil {
		return unusableError("%w", err)
	}
	known, err := knownSchemas()
	if err != nil {
		return err
	}
	switch newest := known[len(known)-1]; {
	case has > newest:
		return unusableError(
			"it was written by a newer fakecloud (schema %d, this one knows %d): use that one", has, newest,
		)
	case has > 0 && !slices.Contains(known, has):
		return unusableError(
			"it was written by an unreleased fakecloud (schema %d; this one opens %d): use that one", has, known,
		)
	}
	return nil
}

// knownSchemas are the numbers of the migrations, in ascending order.
func knownSchemas() (known []int64, err error) {
	files, err := migrations.ReadDir("migrations")
	for _, f := range files {
		number, parseErr := goose.NumericComponent(f.Name())
		err = errors.Join(err, parseErr)
		known = append(known, number)
	}
	return known, err
}

// checkIfExists is CheckFile for a file that need not exist yet.
func checkIfExists(ctx context.Context, path string) error {
	head, err := readHead(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(head) == 0 {
		// SQLite would remove the log of a missing database.
		if log, err := os.Stat(path + "-wal"); err == nil && log.Size() > 0 {
			return unusableError("it is empty or missing, but its write-ahead log (-wal) is there")
		}
		return nil
	}
	return CheckFile(ctx, path)
}

func readHead(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, len(sqliteHeader))
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return head[:n], err
}

// fileURI names a file to SQLite, whatever characters its path has.
func fileURI(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }
