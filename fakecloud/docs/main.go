// Command docs writes into fakecloud/README.md what code knows better than
// people: the life cycles, from the tables that the cloud looks transitions up
// in, and the problem codes, from the API's spec. It replaces what stands between
// the markers <!-- generated: NAME --> and <!-- end -->.
package main

import (
	"errors"
	"fmt"
	"log"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
)

//go:generate go run . ../README.md

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: docs README.md")
	}
	if err := update(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func update(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	codes, err := problems()
	if err != nil {
		return err
	}
	out, err := replace(string(text), map[string]string{
		"instance":      diagram(cloud.InstanceRules),
		"load-balancer": diagram(cloud.LoadBalancerRules),
		"delays":        delays(cloud.Profiles),
		"problems":      codes,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(out), 0o644) //nolint:gosec // A document, for everyone.
}

var block = regexp.MustCompile(`(?s)<!-- generated: ([a-z-]+) -->\n.*?<!-- end -->`)

// replace fills every block of the text; each part must have one.
func replace(text string, parts map[string]string) (string, error) {
	var errs []error
	seen := map[string]bool{}
	out := block.ReplaceAllStringFunc(text, func(old string) string {
		name := block.FindStringSubmatch(old)[1]
		part, ok := parts[name]
		if !ok {
			errs = append(errs, fmt.Errorf("nothing generates %q", name))
			return old
		}
		seen[name] = true
		return "<!-- generated: " + name + " -->\n" + part + "<!-- end -->"
	})
	for name := range parts {
		if !seen[name] {
			errs = append(errs, fmt.Errorf("there is no place for %q", name))
		}
	}
	return out, errors.Join(errs...)
}

// diagram draws a state machine for Mermaid. What changes nothing is left out,
// and ways between the same two states share an arrow.
func diagram[S ~string](rules []cloud.Rule[S]) string {
	type way struct{ from, to S }
	var ways []way
	on := map[way][]string{}
	for _, r := range rules {
		if r.Same {
			continue
		}
		w := way{r.From, r.To}
		if on[w] == nil {
			ways = append(ways, w)
		}
		on[w] = append(on[w], string(r.On))
	}
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n")
	for _, w := range ways {
		fmt.Fprintf(&b, "    %s --> %s: %s\n", node(w.from), node(w.to), strings.Join(on[w], ", "))
	}
	b.WriteString("```\n")
	return b.String()
}

// node is a state's name; before and after there is one, Mermaid's [*].
func node[S ~string](s S) string {
	if s == "" {
		return "[*]"
	}
	return string(s)
}

// delays is how long each profile's transitional states last.
func delays(profiles []cloud.Profile) string {
	states := map[cloud.Delay]bool{}
	head, line := "| state |", "|---|"
	for _, p := range profiles {
		head += " " + p.Name + " |"
		line += "---|"
		for d := range p.Delays {
			states[d] = true
		}
	}
	var b strings.Builder
	b.WriteString(head + "\n" + line + "\n")
	for _, d := range slices.Sorted(maps.Keys(states)) {
		b.WriteString("| " + string(d) + " |")
		for _, p := range profiles {
			b.WriteString(" " + p.Delays[d].String() + jitter(p) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func jitter(p cloud.Profile) string {
	if p.Jitter == 0 {
		return ""
	}
	return fmt.Sprintf(" ± %.0f %%", 100*p.Jitter)
}

// problems is the table in the description of the spec's problem codes.
func problems() (string, error) {
	spec, err := openapi3.NewLoader().LoadFromData(api.Spec)
	if err != nil {
		return "", err
	}
	_, table, ok := strings.Cut(spec.Components.Schemas["ProblemCode"].Value.Description, "\n\n")
	if !ok {
		return "", errors.New("the spec's ProblemCode has no table")
	}
	return strings.TrimSpace(table) + "\n", nil
}
