package store

import "context"

// Exec runs a statement that no query has.
func (tx *Tx) Exec(ctx context.Context, statement string) error {
	_, err := tx.conn.ExecContext(ctx, statement)
	return err
}

// Waiting is how many writes have not had their turn.
func (s *Store) Waiting() int { return int(s.waiting.Load()) }

// Strings are the first column's values.
func (tx *Tx) Strings(ctx context.Context, query string) (out []string, err error) {
	rows, err := tx.conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, rows.Err()
}
