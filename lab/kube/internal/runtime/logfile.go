package runtime

// This file answers how a container's log looks on disk.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

type stream string

const (
	stdout stream = "stdout"
	stderr stream = "stderr"
)

// logFile writes the format that the kubelet reads back for `kubectl logs`:
// time, stream, F for a full line, text (k8s.io/cri-client/pkg/logs).
type logFile struct {
	path string

	mu        sync.Mutex
	file      *os.File // nil when there is no path, or after close
	followers map[chan logLine]bool
}

type logLine struct {
	stream stream
	text   string
}

// follow returns what is written from now on. A reader that is slow misses lines
// rather than hold the container up.
func (l *logFile) follow() (<-chan logLine, func()) {
	lines := make(chan logLine, 256)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.followers == nil {
		l.followers = map[chan logLine]bool{}
	}
	l.followers[lines] = true
	return lines, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.followers, lines)
	}
}

func openLogFile(path string) (*logFile, error) {
	l := &logFile{path: path}
	if path == "" {
		return l, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	return l, l.reopen()
}

// reopen continues in a file at the same path, after the kubelet has renamed the
// one that was open (log rotation).
func (l *logFile) reopen() error {
	if l.path == "" {
		return nil
	}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
	}
	l.file = file
	return nil
}

// write drops what cannot be written: a full disk must not stop the container.
func (l *logFile) write(to stream, text string) {
	text = strings.ReplaceAll(text, "\n", " ")
	line := fmt.Sprintf("%s %s F %s\n", time.Now().UTC().Format(time.RFC3339Nano), to, text)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_, _ = l.file.WriteString(line)
	}
	for follower := range l.followers {
		select {
		case follower <- logLine{to, text}:
		default:
		}
	}
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close()
		l.file = nil
	}
}
