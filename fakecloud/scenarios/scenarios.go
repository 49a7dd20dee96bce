// Package scenarios runs faults and actions over time, by the cloud's clock: an incident
// that can be repeated. It knows nothing of HTTP. Begin with Spec and Runner.Run; the ready
// scenarios are the YAML files beside it.
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

// Parse reads a scenario's YAML. Fields that the API does not know are refused by name.
// Whether the rest makes sense, the cloud decides.
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

// Available gives the ready scenarios, by name.
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

// Find gives the ready scenario of a name, or the one in a file.
func Find(nameOrFile string) (api.ScenarioCreate, error) {
	text, err := files.ReadFile(nameOrFile + ".yaml")
	if err == nil {
		return Parse(text)
	}
	if !strings.ContainsAny(nameOrFile, "./") {
		return api.ScenarioCreate{}, fmt.Errorf(
			"no ready scenario is named %q, and no file: `fakecloud scenarios list --available` shows those there are",
			nameOrFile,
		)
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
