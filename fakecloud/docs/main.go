// Command docs generates parts of fakecloud/README.md: the life cycles, from the cloud's own
// tables of transitions, and the problem codes, from the API's spec. It replaces the text
// between the markers <!-- generated: NAME --> and <!-- end -->.
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
	if err := updateReadme(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func updateReadme(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	codes, err := problemTable()
	if err != nil {
		return err
	}
	out, err := replaceBlocks(string(text), map[string]string{
		"instance":      stateDiagram(cloud.InstanceRules),
		"load-balancer": stateDiagram(cloud.LoadBalancerRules),
		"delays":        delayTable(cloud.Profiles),
		"problems":      codes,
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(out), 0o644) //nolint:gosec // A document, for everyone.
}

var blockPattern = regexp.MustCompile(`(?s)<!-- generated: ([a-z-]+) -->\n.*?<!-- end -->`)

// replaceBlocks replaces every generated block of the text by the part of its name. A block
// without a part and a part without a block are errors.
func replaceBlocks(text string, parts map[string]string) (string, error) {
	var errs []error
	seen := map[string]bool{}
	out := blockPattern.ReplaceAllStringFunc(text, func(old string) string {
		name := blockPattern.FindStringSubmatch(old)[1]
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

// stateDiagram draws a state machine for Mermaid. It leaves out rules that keep the state, and
// draws one arrow for all rules between the same two states.
func stateDiagram[S ~string](rules []cloud.Rule[S]) string {
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
		fmt.Fprintf(&b, "    %s --> %s: %s\n", stateName(w.from), stateName(w.to), strings.Join(on[w], ", "))
	}
	b.WriteString("```\n")
	return b.String()
}

// stateName is the name of a state, or Mermaid's [*] for no state: before the creation and
// after the end.
func stateName[S ~string](s S) string {
	if s == "" {
		return "[*]"
	}
	return string(s)
}

// delayTable is a table of how long transitional states last in each profile.
func delayTable(profiles []cloud.Profile) string {
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
			b.WriteString(" " + p.Delays[d].String() + jitterText(p) + " |")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func jitterText(p cloud.Profile) string {
	if p.Jitter == 0 {
		return ""
	}
	return fmt.Sprintf(" ± %.0f %%", 100*p.Jitter)
}

// problemTable is the table in the spec's description of the problem codes.
func problemTable() (string, error) {
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
