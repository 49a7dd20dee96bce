package lessons

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ccmlab/ccmlab/lab"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants"
	"github.com/ccmlab/ccmlab/lab/conformance/program"
	"github.com/ccmlab/ccmlab/lab/suite"
	"github.com/ccmlab/ccmlab/lab/ui"
)

// mutantsDir is a folder beside the programs. It holds the mutants that were compiled
// before, and in a bundle those of all lessons.
const mutantsDir = "suspects"

// mutantBinary returns the program of a mutant. A clone compiles it; a bundle has it.
func mutantBinary(ctx context.Context, mutant string, note func(string)) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	ready := filepath.Join(filepath.Dir(self), mutantsDir, mutant)
	root, notClone := findClone()
	if notClone != nil {
		program := filepath.Join(ready, "ccm")
		if _, err := os.Stat(program); err != nil {
			return "", fmt.Errorf(
				"there is no CCM with this lesson's mistake: `make bundle` packs it, for `lab lesson --bundle FILE`, and bin/lab of a clone compiles it (%w; %w)",
				err, notClone,
			)
		}
		return program, nil
	}
	chosen, err := mutants.Choose(mutant)
	if err != nil {
		return "", err
	}
	return chosen[0].Build(ctx, root, ready, note) // Quick when nothing has changed.
}

// mutantBinaryOf returns the program of a lesson's mutant; "" if the lesson has none.
func mutantBinaryOf(ctx context.Context, l *Lesson, steps *ui.Steps) (program string, err error) {
	if l.Mutant == "" {
		return "", nil
	}
	return program, steps.Do("suspect", func(note func(string)) (string, error) {
		program, err = mutantBinary(ctx, l.Mutant, func(string) { note("it is being compiled") })
		return "a CCM with a mistake is there", err
	})
}

// installMutantCCM replaces the lab's CCM by the mutant, if the lesson has one.
func (s *Seat) installMutantCCM(ctx context.Context, path string, steps *ui.Steps) error {
	if path == "" {
		return nil
	}
	return steps.Do("ccm", func(func(string)) (string, error) {
		opened, err := lab.OpenLocked(s.name)
		if err != nil {
			return "", err
		}
		defer opened.State.Unlock()
		if err := suite.UseCCM(ctx, opened, &program.CCM{Path: path}, "", ""); err != nil {
			return "", fmt.Errorf("having the CCM with a mistake run: %w", err)
		}
		return "the one with a mistake runs", nil
	})
}
