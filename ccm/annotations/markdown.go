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

Options of the cloud's load balancers for which a Service has no field. All
begin with ` + "`" + Prefix + "`" + `. They are checked together with the Service
before the cloud is called, and an Event of reason ` + "`InvalidService`" + ` names
everything that is wrong; meanwhile only the targets of the balancer follow the
nodes. An annotation with the prefix that is not in this table is an error, too.
Without its annotation, an option returns to its default, unless the table says
otherwise.

| annotation | values | default | in the cloud |
|---|---|---|---|
`)
	for _, d := range Definitions {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Want, d.Default, d.Effect)
	}
	b.WriteString("\nAn example of each; some exclude others:\n\n```yaml\nmetadata:\n  annotations:\n")
	for _, d := range Definitions {
		fmt.Fprintf(&b, "    %s%s: %q\n", Prefix, d.Name, d.Example)
	}
	b.WriteString("```\n")
	return b.String()
}
