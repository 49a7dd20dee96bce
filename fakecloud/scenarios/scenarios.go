// Package scenarios runs faults and actions over time, by the cloud's clock: an
// incident that can be had again.
package scenarios

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

//go:embed *.yaml
var files embed.FS

// Parse reads a scenario's YAML. What the API does not know is refused, by its
// name; whether the rest makes sense, the cloud says.
func Parse(text []byte) (api.ScenarioCreate, error) {
	var s api.ScenarioCreate
	if err := yaml.UnmarshalStrict(text, &s); err != nil {
		return api.ScenarioCreate{}, fmt.Errorf("is no scenario: %w", err)
	}
	switch {
	case s.Name == "":
		return api.ScenarioCreate{}, fmt.Errorf("is no scenario: it has no name")
	case len(s.Steps) == 0:
		return api.ScenarioCreate{}, fmt.Errorf("is no scenario: it has no steps")
	}
	return s, nil
}

// Available are the ready scenarios, by name.
func Available() ([]api.ScenarioCreate, error) {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, err
	}
	var all []api.ScenarioCreate
	for _, e := range entries {
		text, err := files.ReadFile(e.Name())
		if err != nil {
			return nil, err
		}
		s, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s %w", e.Name(), err)
		}
		all = append(all, s)
	}
	return all, nil
}

// Find gives the ready scenario of that name, or that of the file.
func Find(nameOrFile string) (api.ScenarioCreate, error) {
	text, err := files.ReadFile(nameOrFile + ".yaml")
	if err == nil {
		return Parse(text)
	}
	if !strings.ContainsAny(nameOrFile, "./") {
		return api.ScenarioCreate{}, fmt.Errorf("no ready scenario is named %q, and no file: `fakecloud scenarios list --available` shows those there are", nameOrFile)
	}
	if text, err = os.ReadFile(nameOrFile); err != nil {
		return api.ScenarioCreate{}, err
	}
	s, err := Parse(text)
	if err != nil {
		return s, fmt.Errorf("%s %w", nameOrFile, err)
	}
	return s, nil
}
