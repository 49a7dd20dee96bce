package annotations

import (
	"fmt"
	"strings"
)

// Markdown is the document of all annotations.
func Markdown() string {
	var b strings.Builder
	b.WriteString(`<!-- Generated from ccm/annotations/definitions.go by go generate. -->

# Annotations of a Service

What the cloud's load balancers can do that a Service has no field for. All
begin with ` + "`" + Prefix + "`" + `. They are checked together with the Service
before the cloud is called, and an Event of reason ` + "`InvalidService`" + ` names
everything that is wrong; meanwhile the balancer stays as it is, but for its targets,
which follow the nodes. An annotation
with the prefix that is not in this table is an error too. Without its
annotation, an option goes back to its default, except where it says otherwise.

| annotation | values | default | in the cloud |
|---|---|---|---|
`)
	for _, d := range Definitions {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Want, d.Default, d.Effect)
	}
	b.WriteString("\nAn example of each, which do not all go together:\n\n```yaml\nmetadata:\n  annotations:\n")
	for _, d := range Definitions {
		fmt.Fprintf(&b, "    %s%s: %q\n", Prefix, d.Name, d.Example)
	}
	b.WriteString("```\n")
	return b.String()
}
