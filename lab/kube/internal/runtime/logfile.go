package runtime

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

type logStream string

const (
	stdout logStream = "stdout"
	stderr logStream = "stderr"
)

// logFile writes a container's log in the format that the kubelet reads for `kubectl logs`: time,
// stream, F for a full line, text (k8s.io/cri-client/pkg/logs).
type logFile struct {
	path string

	mu   sync.Mutex
	file *os.File // nil without a path and after close
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

// reopen continues in a new file at the same path, after the kubelet has renamed the open one (log
// rotation).
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

// writeLine writes a line of the log. It ignores errors: a full disk must not stop the container.
func (l *logFile) writeLine(to logStream, text string) {
	text = strings.ReplaceAll(text, "\n", " ")
	line := fmt.Sprintf("%s %s F %s\n", time.Now().UTC().Format(time.RFC3339Nano), to, text)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_, _ = l.file.WriteString(line)
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
