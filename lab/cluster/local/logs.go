package local

// This file answers: what is in a component's log file, and what comes into it?
// A component that starts again appends to its file; one that is put aside and
// made anew is followed into the new one.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/nxadm/tail"

	"github.com/ccmlab/ccmlab/lab/cluster"
)

// nodePrefix begins the component's name of a machine, nodeFile its log file's.
const nodePrefix, nodeFile = "node/", "node-"

// FileLogs are the log files of a folder, by the names of their components.
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

// copyFile writes each line at once and whole, so that what comes after it is in
// the same place of the file that was looked at first.
func copyFile(ctx context.Context, w io.Writer, file string, last int, follow bool) error {
	begin, err := lastLines(file, last)
	if err != nil {
		return err
	}
	t, err := tail.TailFile(file, tail.Config{
		Follow: follow, ReOpen: follow, MustExist: true, CompleteLines: true, Logger: tail.DiscardingLogger,
		Location: &tail.SeekInfo{Offset: begin, Whence: io.SeekStart},
	})
	if err != nil {
		return err
	}
	defer func() {
		t.Kill(nil)
		for range t.Lines { // It may be about to say one more.
		}
		t.Cleanup()
	}()
	for {
		select {
		case line, ok := <-t.Lines:
			if !ok {
				return t.Wait()
			}
			if _, err := fmt.Fprintln(w, line.Text); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
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
