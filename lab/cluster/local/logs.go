package local

// Log files of components. A component that starts again appends to its file. A file
// that is rotated is followed into the new one.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

// nodePrefix begins the component's name of a machine, nodeFile its log file's.
const nodePrefix, nodeFile = "node/", "node-"

// FileLogs are the log files in a folder, named by their components.
func FileLogs(dir string) ([]cluster.Log, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return nil, err
	}
	logs := make([]cluster.Log, len(files))
	for i, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".log")
		if machine, ok := strings.CutPrefix(name, nodeFile); ok {
			name = nodePrefix + machine
		}
		logs[i] = cluster.Log{
			Name: name, Where: file,
			Copy: func(ctx context.Context, w io.Writer, last int, follow bool) error {
				return copyFile(ctx, w, file, last, follow)
			},
		}
	}
	return logs, nil
}

// followInterval is how often a followed log is polled. Polling is cheap, misses
// nothing, and needs no inotify instance, of which a user has few.
const followInterval = 200 * time.Millisecond

// copyFile writes the last lines of a file. With follow it also writes new lines until
// ctx ends.
func copyFile(ctx context.Context, w io.Writer, file string, last int, follow bool) error {
	begin, err := lastLines(file, last)
	if err != nil {
		return err
	}
	t := tail{name: file, w: w}
	if err := t.open(begin); err != nil {
		return err
	}
	defer func() { _ = t.file.Close() }()
	if err := t.copyLines(); err != nil || !follow {
		return errors.Join(err, t.endLine())
	}
	tick := time.NewTicker(followInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return t.endLine()
		case <-tick.C:
		}
		if err := t.readMore(); err != nil {
			return err
		}
	}
}

// tail reads a file of a name as it grows.
type tail struct {
	name  string
	w     io.Writer
	file  *os.File
	begun []byte // the last line, as far as it is there
}

func (t *tail) open(at int64) error {
	f, err := os.Open(t.name)
	if err != nil {
		return err
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return errors.Join(err, f.Close())
	}
	t.file = f
	return nil
}

// readMore copies what has come. A file of another identity has taken the name, or
// there is less in it than was read: it is read from its beginning.
func (t *tail) readMore() error {
	now, err := os.Stat(t.name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	was, statErr := t.file.Stat()
	read, seekErr := t.file.Seek(0, io.SeekCurrent)
	if err := errors.Join(statErr, seekErr); err != nil {
		return err
	}
	if was.Size() < read {
		if _, err := t.file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		t.begun = nil
	}
	if err := t.copyLines(); err != nil || now == nil || os.SameFile(now, was) {
		return err
	}
	old := t.file
	if err := t.open(0); errors.Is(err, fs.ErrNotExist) {
		return nil // Gone again; another look will tell.
	} else if err != nil {
		return err
	}
	if err := errors.Join(t.endLine(), old.Close()); err != nil {
		return err
	}
	return t.copyLines()
}

// copyLines writes the whole lines that there are.
func (t *tail) copyLines() error {
	block := make([]byte, 64<<10)
	for {
		n, err := t.file.Read(block)
		t.begun = append(t.begun, block[:n]...)
		if whole := bytes.LastIndexByte(t.begun, '\n') + 1; whole > 0 {
			if _, err := t.w.Write(t.begun[:whole]); err != nil {
				return err
			}
			t.begun = append(t.begun[:0], t.begun[whole:]...)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// endLine writes a last line that was not ended.
func (t *tail) endLine() error {
	if len(t.begun) == 0 {
		return nil
	}
	_, err := t.w.Write(append(t.begun, '\n'))
	t.begun = nil
	return err
}

// lastLines is where the last n lines of a file begin; of 0, the file itself.
func lastLines(file string, n int) (offset int64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return 0, err
	}
	block := make([]byte, 64<<10)
	for at := end; at > 0; {
		size := min(at, int64(len(block)))
		at -= size
		if _, err := f.ReadAt(block[:size], at); err != nil {
			return 0, err
		}
		for i := size; i > 0; {
			i = int64(bytes.LastIndexByte(block[:i], '\n'))
			if i < 0 {
				break
			}
			if at+i == end-1 { // The end of the last line begins none.
				continue
			}
			if n--; n == 0 {
				return at + i + 1, nil
			}
		}
	}
	return 0, nil
}
