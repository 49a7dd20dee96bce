package store

import "math"

// Kept bounds what is kept of each project in a table: the newest rows, and so many bytes
// of them.
type Kept struct{ Rows, Bytes int64 }

// rowsBetween is how many rows are added before those beyond the bound are removed.
func (k Kept) rowsBetween() int64 { return max(1, min(k.Rows/100, 256)) }

// projectTable is the rows of one project in a table.
type projectTable struct{ table, project string }

// additions is what this process added to the rows of a project.
type additions struct {
	rows  int64 // since rows were last pruned
	bytes int64 // no more than so many are in the table
}

// unknownSize is larger than any bound: what a process finds in a table is pruned and
// measured with its first addition.
const unknownSize = math.MaxInt64 / 2

// additionsTo needs no lock, as writes take turns. If the write is undone, what it added
// still counts, so that the next removal comes early.
func (tx *Tx) additionsTo(table, project string) *additions {
	key := projectTable{table, project}
	if tx.additions[key] == nil {
		tx.additions[key] = &additions{rows: unknownSize, bytes: unknownSize}
	}
	return tx.additions[key]
}

// PruneRows counts rows that were added to a project's, and now and then has prune remove
// the oldest beyond kept.Rows.
func (tx *Tx) PruneRows(table, project string, added int64, kept Kept, prune func() error) error {
	a := tx.additionsTo(table, project)
	if a.rows += added; a.rows < kept.rowsBetween() {
		return nil
	}
	a.rows = 0
	return prune()
}

// PruneBytes counts bytes that were added to a project's rows. When there may be more than
// kept.Bytes, it measures them. If there are, it has prune remove the oldest rows down to
// keep bytes, which is less than the bound: the next rows are not measured at once.
func (tx *Tx) PruneBytes(
	table, project string,
	added int64,
	kept Kept,
	measure func() (int64, error),
	prune func(keep int64) error,
) error {
	a := tx.additionsTo(table, project)
	if a.bytes += added; a.bytes <= kept.Bytes {
		return nil
	}
	bytes, err := measure()
	if err != nil {
		return err
	}
	if a.bytes = bytes; bytes <= kept.Bytes {
		return nil
	}
	a.bytes = kept.Bytes - kept.Bytes/16
	return prune(a.bytes)
}
