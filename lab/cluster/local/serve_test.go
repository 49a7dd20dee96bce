package local

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
)

func newSite(t *testing.T) Site {
	t.Helper()
	t.Setenv("CCMLAB_HOME", t.TempDir())
	lab, err := state.Create("lab")
	require.NoError(t, err)
	t.Cleanup(lab.Unlock)
	s := NewSite(lab, cluster.Binaries{})
	t.Cleanup(func() {
		_, err := s.Down(context.Background())
		assert.NoError(t, err)
	})
	return s
}

func (s Site) script(component, script string) process.Spec {
	return process.Spec{
		Component: component, Path: "/bin/sh", Args: []string{"-c", script}, LogFile: s.LogFile(component),
	}
}

// What was told to end before it was found ends while it is waited for, and is
// started anew; what is started and ends is an error.
func TestServe(t *testing.T) {
	s := newSite(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	needed, last := s.script("needed", "exec sleep 1000"), s.script("last", "exec sleep 1000")
	begun := map[string]*process.Process{}
	for _, spec := range []process.Spec{needed, last} {
		p, err := s.Host.Start(spec)
		require.NoError(t, err)
		begun[spec.Component] = p
	}
	for _, dying := range []string{"needed", "last"} {
		told := false
		err := s.Serve(ctx, "another to run", func(context.Context) error {
			if !told {
				told = true
				return errors.Join(errors.New("not yet"), begun[dying].Signal(syscall.SIGTERM))
			}
			running, err := s.Host.Running()
			if err != nil {
				return err
			}
			if p := running[dying]; p == nil || p.PID == begun[dying].PID {
				return errors.New("it is the one that was told to end")
			}
			return nil
		}, needed, last)
		require.NoError(t, err, dying)
	}

	err := s.Serve(
		ctx, "it to be ready", func(context.Context) error { return errors.New("never") }, needed,
		s.script("broken", "echo the reason; exit 3"),
	)
	require.ErrorContains(t, err, "broken ended at its start (exit status 3)")
	assert.ErrorContains(t, err, "the reason")
}
