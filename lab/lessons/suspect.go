package lessons

// This file answers: where does a CCM come from that has a mistake to be found?

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// suspects is a folder beside the programs, with those that were built before.
const suspects = "suspects"

// suspect is the program of a mutant: one that is there, or made from the clone.
func suspect(ctx context.Context, mutant string, note func(string)) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	ready := filepath.Join(filepath.Dir(self), suspects, mutant)
	program := filepath.Join(ready, "ccm")
	root, err := cloneOf()
	if err != nil {
		if _, missing := os.Stat(program); !errors.Is(missing, fs.ErrNotExist) {
			return program, missing
		}
		return "", err
	}
	chosen, err := mutants.Choose(mutant)
	if err != nil {
		return "", err
	}
	return chosen[0].Build(ctx, root, ready, note) // Quick when nothing has changed.
}

// accuse has the lab's CCM be the one with the mistake.
func (s *Seat) accuse(ctx context.Context, l *Lesson, steps *ui.Steps) error {
	if l.Mutant == "" {
		return nil
	}
	return steps.Do("suspect", func(note func(string)) (string, error) {
		program, err := suspect(ctx, l.Mutant, func(string) { note("it is being compiled") })
		if err != nil {
			return "", err
		}
		opened, err := lab.OpenLocked(s.name)
		if err != nil {
			return "", err
		}
		defer opened.State.Unlock()
		if err := opened.UseCCM(ctx, program, nil); err != nil {
			return "", fmt.Errorf("having the CCM with a mistake run: %w", err)
		}
		return "a CCM with a mistake runs", nil
	})
}
