package kind

import (
	"fmt"
	"strings"
	"sync"

	kindlog "sigs.k8s.io/kind/pkg/log"
)

// logger shows kind's progress as that of the current step, and records kind's messages
// in case it fails.
type logger struct {
	note func(string)
	mu   sync.Mutex
	said []string
}

func (l *logger) add(message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, strings.TrimSpace(message))
}

func (l *logger) Warn(message string)               { l.add(message) }
func (l *logger) Warnf(format string, args ...any)  { l.add(fmt.Sprintf(format, args...)) }
func (l *logger) Error(message string)              { l.add(message) }
func (l *logger) Errorf(format string, args ...any) { l.add(fmt.Sprintf(format, args...)) }
func (l *logger) V(level kindlog.Level) kindlog.InfoLogger {
	return infoLogger{logger: l, level: level}
}

// infoLogger shows messages of level 0, which are kind's steps.
type infoLogger struct {
	*logger
	level kindlog.Level
}

func (l infoLogger) Enabled() bool { return true }
func (l infoLogger) Info(message string) {
	l.add(message)
	if text := strings.Trim(message, " •✓✗.\n"); l.level == 0 && text != "" {
		l.note("kind: " + text)
	}
}
func (l infoLogger) Infof(format string, args ...any) { l.Info(fmt.Sprintf(format, args...)) }
