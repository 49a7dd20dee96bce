package mutants

import (
	"context"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/ccmlab/ccmlab/lab/build"
	"github.com/ccmlab/ccmlab/lab/conformance/mutants/mutation"
)

// equivalentFile declares the mutants that no test has to catch.
const equivalentFile = "equivalent.yaml"

//go:embed equivalent.yaml
var equivalentDeclaration []byte

// Equivalents maps mutants made mechanically that no test has to catch to the reason: they differ in
// nothing that anybody could require. A key is a mutant's ID, or a pattern of path.Match.
type Equivalents map[string]string

// LoadEquivalents reads the declaration.
func LoadEquivalents() (Equivalents, error) {
	e := Equivalents{}
	if err := yaml.UnmarshalStrict(equivalentDeclaration, &e); err != nil {
		return nil, fmt.Errorf("%s: %w", equivalentFile, err)
	}
	return e, nil
}

// ReasonFor returns why a mutant is equivalent, or "" if it is not declared to be.
func (e Equivalents) ReasonFor(id string) string {
	_, reason := FindReason(e, id)
	return reason
}

// FindReason returns the reason for an ID, and the key that has it: the ID, or a pattern that matches it.
// Both are "" if there is none.
func FindReason(reasons map[string]string, id string) (key, reason string) {
	if reason, named := reasons[id]; named {
		return id, reason
	}
	for _, key := range slices.Sorted(maps.Keys(reasons)) {
		if Matches(key, id) {
			return key, reasons[key]
		}
	}
	return "", ""
}

// Matches tells whether a pattern of path.Match matches the ID.
func Matches(pattern, id string) bool {
	matched, err := path.Match(pattern, id)
	return err == nil && matched
}

// Stale returns the entries that no mutant matches: the product has moved on.
func (e Equivalents) Stale(all []mutation.Mutant) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(e)), func(key string) bool {
		return slices.ContainsFunc(all, func(m mutation.Mutant) bool { return Matches(key, m.ID) })
	})
}

// Generate makes mutants mechanically of the CCM of the clone at root.
func Generate(ctx context.Context, root string) (*mutation.Set, error) {
	return mutation.Generate(ctx, mutation.Options{
		Dir: filepath.Join(root, "ccm"), BuildFlags: build.Own(root).Flags,
		Interfaces: []string{
			"k8s.io/cloud-provider.InstancesV2", "k8s.io/cloud-provider.LoadBalancer", "k8s.io/cloud-provider.Routes",
		},
	})
}

// BuildGenerated compiles the program that has all mutants of the set, into dir, and returns its path.
func BuildGenerated(
	ctx context.Context, set *mutation.Set, root, dir string, note func(string),
) (program string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	overlay, err := set.WriteOverlay(dir)
	if err != nil {
		return "", err
	}
	return buildCCM(ctx, overlay, root, dir, note)
}
