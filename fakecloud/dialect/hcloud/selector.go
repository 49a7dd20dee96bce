package hcloud

import (
	"regexp"
	"slices"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// requirement is one part of a label selector: the label has one of the values, or any if
// there are none; or that is not so.
type requirement struct {
	key    string
	values []string
	not    bool
}

// The grammar of labels, as docs.hetzner.cloud has it under "Labels".
var (
	labelName   = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)
	labelPrefix = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
)

// checkLabels refuses labels that Hetzner Cloud does not take.
func checkLabels(labels map[string]string) error {
	for key, value := range labels {
		if !isLabelKey(key) || value != "" && !labelName.MatchString(value) {
			return dialect.Invalid("labels", "%q: %q is no label: see docs.hetzner.cloud, Labels", key, value)
		}
	}
	return nil
}

func isLabelKey(key string) bool {
	prefix, name, hasPrefix := strings.Cut(key, "/")
	if !hasPrefix {
		prefix, name = "", key
	}
	return labelName.MatchString(name) && (!hasPrefix || len(prefix) <= 253 && labelPrefix.MatchString(prefix))
}

type selector []requirement

func (s selector) matches(labels map[string]string) bool {
	for _, r := range s {
		value, has := labels[r.key]
		if met := has && (r.values == nil || slices.Contains(r.values, value)); met == r.not {
			return false
		}
	}
	return true
}

// The forms of a requirement, as docs.hetzner.cloud has them under "Label Selector".
var (
	setForm      = regexp.MustCompile(`^([^\s=!,()]+)\s+(in|notin)\s+\(([^()]*)\)$`)
	equalityForm = regexp.MustCompile(`^([^\s=!,()]+)\s*(==|=|!=)\s*([^\s=!,()]*)$`)
	existsForm   = regexp.MustCompile(`^(!?)\s*([^\s=!,()]+)$`)
)

// parseSelector reads a label selector: k, !k, k=v, k==v, k!=v, k in (v,w), k notin (v,w), and
// several of them with commas between.
func parseSelector(text string) (selector, error) {
	var s selector
	for _, part := range splitRequirements(text) {
		part = strings.TrimSpace(part)
		switch set, equal, exists := setForm.FindStringSubmatch(part), equalityForm.FindStringSubmatch(part),
			existsForm.FindStringSubmatch(part); {
		case set != nil:
			r := requirement{key: set[1], not: set[2] == "notin"}
			for _, v := range strings.Split(set[3], ",") {
				r.values = append(r.values, strings.TrimSpace(v))
			}
			s = append(s, r)
		case equal != nil:
			s = append(s, requirement{key: equal[1], values: []string{equal[3]}, not: equal[2] == "!="})
		case exists != nil:
			s = append(s, requirement{key: exists[2], not: exists[1] != ""})
		default:
			return nil, dialect.Invalid("label_selector", "has %q, which is no requirement", part)
		}
	}
	return s, nil
}

// splitRequirements splits at the commas that are in no parentheses.
func splitRequirements(text string) (parts []string) {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	depth, from := 0, 0
	for i, c := range text {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == ',' && depth == 0:
			parts = append(parts, text[from:i])
			from = i + 1
		}
	}
	return append(parts, text[from:])
}
