package chaos

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

// journal writes what happens, as it happens, and counts it.
type journal struct {
	log  *slog.Logger
	file *os.File
	dir  string // the file's
	mu   sync.Mutex
	sums map[string]int
}

func newJournal(dir string, seed uint64) (*journal, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(dir, fmt.Sprintf("%d.jsonl", seed)))
	if err != nil {
		return nil, err
	}
	fmt.Printf("seed %d for %s; what happens is written to %s\n", seed, *duration, file.Name())
	return &journal{log: slog.New(slog.NewJSONHandler(file, nil)), file: file, dir: dir, sums: map[string]int{}}, nil
}

// add writes a line and counts it. A journal that cannot be written is no reason to stop.
func (j *journal) add(err error, what string, attrs ...any) {
	key := what
	if err != nil {
		key += ", failed"
		attrs = append(attrs, "error", err.Error())
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.sums[key]++
	j.log.Info(what, attrs...)
}

// close prints how often what happened.
func (j *journal) close() {
	for _, what := range slices.Sorted(maps.Keys(j.sums)) {
		fmt.Printf("%7d  %s\n", j.sums[what], what)
	}
	_ = j.file.Close()
}
