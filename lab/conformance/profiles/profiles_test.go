package profiles

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

// upstreamSource is what a core requirement rests on: a file of upstream's, an enhancement proposal,
// an issue, or a page of the documentation.
var upstreamSource = regexp.MustCompile(
	`https://|k8s\.io/[a-z-]+ [a-z]+[a-z/_.]*|KEP-\d+|kubernetes/[a-z-]+#\d+|kubernetes\.io: [A-Z]`,
)

// Core is what upstream's documentation or code requires. What has no such source is extended.
func TestCoreTestsCiteUpstream(t *testing.T) {
	for _, test := range All() {
		if test.Level == conformance.Core {
			assert.Regexp(t, upstreamSource, test.Source, test.ID)
		}
	}
}

// A driver that is a program names features: a name that no list has would be refused as a mistake.
func TestEveryNeededFeatureIsListed(t *testing.T) {
	all := append(conformance.AllFeatures(),
		conformance.FeatureReplicas, conformance.FeatureRenameCluster, conformance.FeatureFlags, conformance.FeatureHealthAddress)
	for _, test := range All() {
		for _, f := range test.Needs {
			assert.Contains(t, all, f, test.ID)
		}
	}
}

// An incident is shown to people, and they are to be able to read of the real one.
func TestIncidentsOfNodesAreTold(t *testing.T) {
	for _, test := range slices.Concat(resilienceNodeTests, resilienceClusterTests) {
		if assert.NotNil(t, test.Incident, test.ID) {
			assert.Equal(t, "resilience-"+test.Incident.Name, test.ID)
			assert.NotEmpty(t, test.Incident.Known, test.ID)
			for _, known := range test.Incident.Known {
				assert.True(t, strings.HasPrefix(known, "https://"), known)
			}
		}
	}
}

// namesIn adds to found the names in a node, and those in the functions of these names.
func namesIn(n ast.Node, functions map[string]*ast.BlockStmt, found map[string]bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok && !found[name.Name] {
			found[name.Name] = true
			if body := functions[name.Name]; body != nil {
				namesIn(body, functions, found)
			}
		}
		return true
	})
}

// testsWithServices returns patterns for the IDs of tests whose Run leads to T.NewService, by the package's source.
func testsWithServices(t *testing.T) (patterns []string) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	files = slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
	functions, literals := map[string]*ast.BlockStmt{}, []*ast.CompositeLit{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				functions[n.Name.Name] = n.Body
			case *ast.CompositeLit:
				literals = append(literals, n)
			}
			return true
		})
	}
	for _, literal := range literals {
		fields := map[string]ast.Expr{}
		for _, element := range literal.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				if name, ok := pair.Key.(*ast.Ident); ok {
					fields[name.Name] = pair.Value
				}
			}
		}
		used := map[string]bool{}
		if fields["ID"] == nil || fields["Run"] == nil {
			continue
		}
		if namesIn(fields["Run"], functions, used); used["NewService"] {
			patterns = append(patterns, idPattern(fields["ID"]))
		}
	}
	return patterns
}

// idPattern matches the IDs that an expression gives: what is not a text in it may be anything.
func idPattern(id ast.Expr) string {
	var texts []string
	whole := true
	ast.Inspect(id, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			text, _, cut := strings.Cut(strings.Trim(n.Value, `"`), "%")
			texts = append(texts, regexp.QuoteMeta(text))
			whole = whole && !cut
		case *ast.Ident:
			whole = false
		}
		return true
	})
	if whole {
		return "^" + strings.Join(texts, "") + "$"
	}
	return "^" + strings.Join(texts, ".*")
}

// A cloud may have no load balancers: what makes a Service of that type says that it needs them, and foundations.go
// says it of all that builds on lb-created.
func TestWhatMakesServicesNeedsLoadBalancers(t *testing.T) {
	patterns := testsWithServices(t)
	assert.Greater(t, len(patterns), 50, "the source is read wrongly")
	for _, pattern := range patterns {
		for _, test := range All() {
			if regexp.MustCompile(pattern).MatchString(test.ID) {
				assert.Contains(t, test.Needs, conformance.FeatureLoadBalancers, "%s: foundations.go is to say that it builds on %s",
					test.ID, balancerMade)
			}
		}
	}
}
