package local

import (
	"errors"
	"fmt"

	"github.com/ccmlab/ccmlab/lab/process"
)

// Ended returns an error that names the components that do not run, with the end of
// their logs.
func (s Site) Ended(components ...string) error {
	running, err := s.Host.Running()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range components {
		if running[name] == nil {
			errs = append(errs, fmt.Errorf("%s has ended\n%s", name, process.LogHint(s.LogFile(name))))
		}
	}
	return errors.Join(errs...)
}
