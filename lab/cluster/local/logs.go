package local

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/nxadm/tail"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
)

// FileLogs are the log files of a folder.
func FileLogs(dir string) ([]cluster.Log, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		return nil, err
	}
	logs := make([]cluster.Log, len(files))
	for i, file := range files {
		logs[i] = cluster.Log{
			Name: strings.TrimSuffix(filepath.Base(file), ".log"), Where: file,
			Copy: func(ctx context.Context, w io.Writer, last int, follow bool) error {
				return copyFile(ctx, w, file, last, follow)
			},
		}
	}
	return logs, nil
}

func copyFile(ctx context.Context, w io.Writer, file string, last int, follow bool) error {
	config := tail.Config{Follow: follow, ReOpen: follow, MustExist: true, Logger: tail.DiscardingLogger}
	if last > 0 {
		lines, err := process.Tail(file, last)
		if err != nil {
			return err
		}
		for _, line := range lines {
			_, _ = fmt.Fprintln(w, line)
		}
		if !follow {
			return nil
		}
		config.Location = &tail.SeekInfo{Whence: io.SeekEnd}
	}
	t, err := tail.TailFile(file, config)
	if err != nil {
		return err
	}
	defer t.Cleanup()
	for {
		select {
		case line, ok := <-t.Lines:
			if !ok {
				return nil
			}
			if _, err := fmt.Fprintln(w, line.Text); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}
